//! What is done with the host: one thing at a time, what answers before what is on its way.

use std::time::Duration;

use selvedge_control::{
    ClientError, HostStatus, Load, Loaded, PackageRef, PackageState, Purpose, Settings, settings_digest,
};
use selvedge_deployment::{Effect, Event, Release, Swap, plan};
use selvedge_package::{Digest, PackageName};
use tokio::task::AbortHandle;

use super::rest::Rest;
use super::{Activation, Outcome};
use crate::store::{Store, StoreError};

/// Longest time for moving a route or dropping a package; draining included.
const ROUTE: Duration = Duration::from_secs(120);
/// Time that a host has to say that a load took too long, and to end.
const FAREWELL: Duration = Duration::from_secs(15);
/// Longest time for a status.
const STATUS: Duration = Duration::from_secs(30);
/// How often a probation is looked at.
pub(super) const WATCH: Duration = Duration::from_secs(1);

/// Whether a release is on trial or committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// On trial: what it does decides about it.
    Trial,
    /// Committed: it is to be served whatever happens.
    Committed,
}

/// Something that is done with the host.
#[derive(Debug, Clone)]
pub enum Work {
    /// Open it and run its cases.
    Load(PackageName, Release, Role),
    /// Move the route to it.
    Activate(PackageName, Release, Role),
    /// Drop it.
    Unload(PackageRef),
    /// See how a probation goes.
    Watch(PackageName, Digest),
    /// Hash every file of it: the host says that one is damaged.
    Examine(PackageName, Digest, Role),
    /// Tell the host that everything that is to be served is.
    Ready,
    /// See whether a release that makes room has gone.
    Drain,
}

/// What the host, or the store, said to it.
#[derive(Debug)]
pub enum Answer {
    /// To a load.
    Loaded(Result<Loaded, ClientError>),
    /// To everything else that was asked of the host.
    Status(Result<HostStatus, ClientError>),
    /// To an examination: how many blobs are damaged or missing.
    Examined(Result<usize, StoreError>),
}

/// Work under way.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) number: u64,
    pub(super) work: Work,
    task: AbortHandle,
}

impl Operation {
    pub(super) fn abort(&self) {
        self.task.abort();
    }

    /// The release that the host is opening.
    pub(super) fn loading(&self) -> Option<(Digest, Role)> {
        match &self.work {
            Work::Load(_, release, role) => Some((release.digest, *role)),
            _ => None,
        }
    }
}

/// A probe under way.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) number: u64,
    pub(super) package: PackageName,
    pub(super) digest: Digest,
    pub(super) settings: Settings,
    task: AbortHandle,
}

impl Drop for Probing {
    fn drop(&mut self) {
        // The child dies with the task.
        self.task.abort();
    }
}

impl Activation {
    /// Starts the next thing to be done with the host, and a probe beside it.
    pub(super) fn operate(&mut self, now: Duration) -> Result<(), StoreError> {
        loop {
            let before = self.state.clone();
            let plan = plan(&self.state);
            self.mind_the_probe(&plan);
            if !self.is_halted(now) {
                self.mind_the_memory(&plan)?;
            }
            if self.state != before {
                continue;
            }
            if let Some(work) = self.next(&plan, now) {
                self.start(work)?;
            }
            self.probe_next(&plan, now)?;
            // Starting finds damage sometimes; then there is another plan.
            if self.state == before {
                return Ok(());
            }
        }
    }

    fn next(&self, plan: &[Effect], now: Duration) -> Option<Work> {
        if self.operation.is_some() || !self.host.is_up() || self.word_comes_by().is_some() {
            return None;
        }
        let rests = |package: &PackageName| self.rests.has(&Rest::Package(package.clone()), now);
        let keep = self.loadable();
        let surplus = self.host.packages().iter().find(|package| {
            let relieved = match package.state {
                PackageState::Draining => true,
                PackageState::Serving => self.is_relieved(plan, &package.package.name),
                PackageState::Staged => false,
            };
            !relieved
                && !keep.contains(&(package.package.name.clone(), package.package.digest))
                && !rests(&package.package.name)
        });
        if let Some(package) = surplus {
            return Some(Work::Unload(package.package.clone()));
        }
        let served = plan.iter().find_map(|effect| match effect {
            Effect::Serve(package, release)
                if !rests(package)
                    && !self.rests.has(&Rest::Serve(package.clone()), now)
                    && !self.rests.has(&Rest::Stuck(release.digest), now) =>
            {
                let runs = self.host.runs(package, &release.digest, &release.settings);
                if runs && !self.has_leftover(package, &release.digest) {
                    None
                } else if self.host.holds(package, &release.digest, &release.settings) {
                    Some(Work::Activate(package.clone(), release.clone(), Role::Committed))
                } else {
                    Some(Work::Load(package.clone(), release.clone(), Role::Committed))
                }
            }
            _ => None,
        });
        // What is committed is served, or is known not to be: what is on its way can wait for this.
        let ready = || {
            let said = self.host.status().is_none_or(|status| status.ready);
            (!said && !self.rests.has(&Rest::Ready, now)).then_some(Work::Ready)
        };
        let tried = || {
            // What happens to a trial has to be written down.
            let plan = if self.is_halted(now) { &[] } else { plan };
            plan.iter().find_map(|effect| match effect {
                Effect::Load(package, _)
                    if self.in_the_way(package).is_some() && !self.trial_rests(package, now) =>
                {
                    self.in_the_way(package).map(|old| Work::Unload(old.package.clone()))
                }
                Effect::Load(package, release)
                    if self.probed.contains_key(&tried(release)) && !self.trial_rests(package, now) =>
                {
                    Some(Work::Load(package.clone(), release.clone(), Role::Trial))
                }
                Effect::Activate(package, release) if !self.trial_rests(package, now) => {
                    Some(Work::Activate(package.clone(), release.clone(), Role::Trial))
                }
                Effect::Watch(package, digest) if now >= self.watched + WATCH => {
                    Some(Work::Watch(package.clone(), *digest))
                }
                _ => None,
            })
        };
        let drained = || {
            let drains = self.host.packages().iter().any(|found| found.state == PackageState::Draining);
            (drains && !self.rests.has(&Rest::Drain, now)).then_some(Work::Drain)
        };
        served.or_else(ready).or_else(tried).or_else(drained)
    }

    /// Whether the route of this name is about to move to another release: until it has, the one
    /// that answers is left alone, except where the two must not be there together.
    fn is_relieved(&self, plan: &[Effect], name: &PackageName) -> bool {
        plan.iter().any(|effect| match effect {
            Effect::Serve(package, release) => {
                let committed = self.state.slots.get(name).and_then(|slot| slot.committed.as_ref());
                let together = committed.is_none_or(|committed| committed.rules.swap == Swap::Handover);
                package == name && together && !self.host.serves(name, &release.digest)
            }
            Effect::Activate(package, release) => package == name && !self.host.serves(name, &release.digest),
            _ => false,
        })
    }

    fn start(&mut self, work: Work) -> Result<(), StoreError> {
        let client = self.parts.client.clone();
        let patience = self.parts.load;
        let directory = match &work {
            Work::Load(package, release, _) => match self.directory(package, &release.digest)? {
                Some(directory) => directory,
                None => return Ok(()),
            },
            _ => std::path::PathBuf::new(),
        };
        match work {
            Work::Watch(..) => self.watched = crate::clock::since_boot(),
            Work::Load(..) => {
                self.kills = self.parts.memory.kills();
                self.broken_off = None;
            }
            _ => {}
        }
        let asked = work.clone();
        let store = self.parts.store.clone();
        self.operations += 1;
        let number = self.operations;
        let outcomes = self.parts.outcomes.clone();
        let task = tokio::spawn(async move {
            let answer = match asked {
                Work::Load(name, release, role) => {
                    let package = PackageRef { name, digest: release.digest };
                    let purpose = match role {
                        Role::Trial => Purpose::Trial,
                        Role::Committed => Purpose::Serve,
                    };
                    let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
                    let load = Load { package, directory, settings: release.settings, purpose, patience_ms };
                    // The host itself ends what takes too long, and says so.
                    Answer::Loaded(client.load(&load, patience + FAREWELL).await)
                }
                Work::Activate(name, release, _) => {
                    let package = PackageRef { name, digest: release.digest };
                    Answer::Status(client.activate(&package, ROUTE).await)
                }
                Work::Unload(package) => Answer::Status(client.unload(&package, ROUTE).await),
                Work::Watch(..) | Work::Drain => Answer::Status(client.status(STATUS).await),
                Work::Ready => Answer::Status(client.ready(STATUS).await),
                Work::Examine(_, digest, _) => {
                    let examined = tokio::task::spawn_blocking(move || examine(&store, &digest)).await;
                    Answer::Examined(examined.unwrap_or(Ok(0)))
                }
            };
            let _ = outcomes.send(Outcome::Host { number, answer });
        });
        self.operation = Some(Operation { number, work, task: task.abort_handle() });
        Ok(())
    }

    /// Hashes a release's files, because the host, or a probe, found one that is not what it was.
    pub(super) fn examine(
        &mut self,
        package: PackageName,
        digest: Digest,
        role: Role,
    ) -> Result<(), StoreError> {
        if let Some(operation) = self.operation.take() {
            operation.abort();
        }
        self.start(Work::Examine(package, digest, role))
    }

    /// The directory of a release, laid out if it is not. `None` where something of it is missing or
    /// damaged; the state machine knows by then.
    fn directory(
        &mut self,
        package: &PackageName,
        digest: &Digest,
    ) -> Result<Option<std::path::PathBuf>, StoreError> {
        let laid_out = match self.parts.store.bundle(digest) {
            Ok(Some(Ok(bundle))) => self.parts.store.lay_out(&bundle),
            Ok(_) => Err(StoreError::Missing { digest: *digest }),
            Err(error) => Err(error),
        };
        match laid_out {
            Ok(directory) => Ok(Some(directory)),
            Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => {
                if let Err(error) = self.parts.store.remove_layout(digest) {
                    self.endure(package, error)?;
                }
                self.look = true;
                self.apply(Event::Damaged { package: package.clone(), digest: *digest })?;
                Ok(None)
            }
            Err(error) => {
                self.endure(package, error)?;
                Ok(None)
            }
        }
    }

    /// Ends a probe whose release is not on trial any more.
    fn mind_the_probe(&mut self, plan: &[Effect]) {
        let current = self.probing.as_ref().is_some_and(|probing| {
            plan.iter().any(|effect| {
                matches!(effect, Effect::Load(package, release)
                    if *package == probing.package
                        && release.digest == probing.digest
                        && release.settings == probing.settings)
            })
        });
        if !current {
            self.probing = None;
        }
    }

    fn probe_next(&mut self, plan: &[Effect], now: Duration) -> Result<(), StoreError> {
        if self.probing.is_some() || self.is_halted(now) {
            return Ok(());
        }
        let next = plan.iter().find_map(|effect| match effect {
            Effect::Load(package, release)
                if !self.probed.contains_key(&tried(release))
                    && self.in_the_way(package).is_none()
                    && !self.trial_rests(package, now) =>
            {
                Some((package.clone(), release.digest, release.settings.clone()))
            }
            _ => None,
        });
        let Some((package, digest, settings)) = next else {
            return Ok(());
        };
        // What a probe found damaged is being looked at.
        if self.operation.as_ref().is_some_and(
            |operation| matches!(&operation.work, Work::Examine(_, examined, _) if *examined == digest),
        ) {
            return Ok(());
        }
        let Some(directory) = self.directory(&package, &digest)? else {
            return Ok(());
        };
        self.operations += 1;
        let number = self.operations;
        let outcomes = self.parts.outcomes.clone();
        let probe = self.parts.probe.clone();
        let with = settings.clone();
        let task = tokio::spawn(async move {
            let (probed, peak) = probe.run(&directory, &with).await;
            let _ = outcomes.send(Outcome::Probed { number, probed, peak });
        });
        self.probing = Some(Probing { number, package, digest, settings, task: task.abort_handle() });
        Ok(())
    }
}

/// What a probe is about: a release, and the settings that it was opened with.
pub(super) type Tried = (Digest, Digest);

/// What a probe of this release is about.
pub(super) fn tried(release: &Release) -> Tried {
    (release.digest, settings_digest(&release.settings))
}

/// Hashes everything of a package; what is damaged is removed.
fn examine(store: &Store, digest: &Digest) -> Result<usize, StoreError> {
    let bundle = match store.bundle(digest) {
        Ok(Some(Ok(bundle))) => bundle,
        Ok(_) | Err(StoreError::Damaged { .. }) => return Ok(1),
        Err(error) => return Err(error),
    };
    let mut damaged = 0;
    for blob in bundle.blobs() {
        match store.check_blob(&blob.digest) {
            Ok(()) => {}
            Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => damaged += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}
