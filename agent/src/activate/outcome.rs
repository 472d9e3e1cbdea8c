//! What came of what was started, and what follows from it.

use selvedge_control::{
    ClientError, HostStatus, Loaded, PackageRef, PackageState, PackageStatus, ProbeResult, Reason,
    settings_digest,
};
use selvedge_deployment::{Event, Measured, Release};
use selvedge_package::{Digest, PackageName};

use super::carry::OpenError;
use super::operate::{Answer, Role, Tried, Work};
use super::rest::Rest;
use super::{Activation, HostView, now_ms};
use crate::failure::chain;
use crate::store::{Partial, StoreError};
use crate::supervise::Probed;
use crate::{clock, source};

/// What came of something that was started.
#[derive(Debug)]
pub enum Outcome {
    /// Of an operation with the host.
    Host {
        /// Which.
        number: u64,
        /// What was said.
        answer: Answer,
    },
    /// Of a probe.
    Probed {
        /// Which.
        number: u64,
        /// What it found.
        probed: Probed,
        /// Bytes of memory that it had at most.
        peak: u64,
    },
    /// Of beginning or resuming a blob.
    Opened {
        /// The blob.
        digest: Digest,
        /// What is there of it.
        result: Result<Partial, OpenError>,
    },
    /// Of a request to a web server.
    Source(source::Event),
    /// Of putting a blob into its place.
    Stored {
        /// The blob.
        digest: Digest,
        /// Whether it is there.
        result: Result<(), StoreError>,
    },
}

impl Outcome {
    /// Whether it is no more than a part of a blob that has come.
    pub fn is_progress(&self) -> bool {
        matches!(self, Self::Source(event) if event.is_progress())
    }
}

impl Activation {
    /// Takes what came of something. What was given up meanwhile is ignored.
    pub fn take(&mut self, outcome: Outcome) -> Result<(), StoreError> {
        match outcome {
            Outcome::Opened { digest, result } => self.opened(digest, result)?,
            Outcome::Source(event) => return self.by_http(event),
            Outcome::Stored { digest, result } => self.stored(digest, result)?,
            Outcome::Probed { number, probed, peak } => {
                if let Some(probing) = self.probing.take_if(|probing| probing.number == number) {
                    let tried = (probing.digest, settings_digest(&probing.settings));
                    self.probed(probing.package.clone(), tried, probed, peak)?;
                }
            }
            Outcome::Host { number, answer } => {
                if let Some(operation) = self.operation.take_if(|operation| operation.number == number) {
                    self.answered(operation.work, answer)?;
                }
            }
        }
        self.pursue()
    }

    fn answered(&mut self, work: Work, answer: Answer) -> Result<(), StoreError> {
        match (work, answer) {
            (Work::Load(package, release, role), Answer::Loaded(result)) => match result {
                Ok(loaded) => self.loaded(package, release, role, &loaded),
                Err(error) => self.not_loaded(package, release.digest, role, &error),
            },
            (Work::Activate(package, release, role), Answer::Status(result)) => match result {
                Ok(status) => self.activated(package, &release, role, status),
                Err(error) => {
                    // Whatever it had of it, it is asked again from the beginning.
                    self.host.lost(&package, &release.digest);
                    self.not_loaded(package, release.digest, role, &error)
                }
            },
            (Work::Unload(package), Answer::Status(result)) => {
                match result {
                    Ok(status) => self.host.said(status),
                    Err(error) => self.put_off(&package.name, "unload-failed", &error),
                }
                Ok(())
            }
            (Work::Watch(package, digest), Answer::Status(result)) => match result {
                Ok(status) => self.watched(package, digest, status),
                Err(error) => {
                    tracing::debug!(%error, "the host does not say how a probation goes");
                    Ok(())
                }
            },
            (Work::Ready, Answer::Status(result)) => {
                match result {
                    Ok(status) => {
                        self.rests.forget(&Rest::Ready);
                        self.host.said(HostStatus { ready: true, ..status });
                    }
                    Err(error) => {
                        tracing::warn!("{}", chain(&error));
                        self.rests.rest(Rest::Ready, clock::since_boot());
                    }
                }
                Ok(())
            }
            (Work::Drain, Answer::Status(result)) => {
                if let Ok(status) = result {
                    self.host.said(status);
                }
                // The last requests may take a while: it is asked ever more rarely.
                self.rests.rest(Rest::Drain, clock::since_boot());
                if self.host.packages().iter().all(|found| found.state != PackageState::Draining) {
                    self.rests.forget(&Rest::Drain);
                }
                Ok(())
            }
            (Work::Examine(package, digest, role), Answer::Examined(result)) => match result {
                Ok(damaged) => self.examined(package, digest, role, damaged),
                Err(error) => self.endure(&package, error),
            },
            (work, answer) => {
                tracing::error!(?work, ?answer, "an answer does not belong to what was asked");
                Ok(())
            }
        }
    }

    /// The host says how a probation goes. One that does not serve what is on probation proves nothing.
    fn watched(
        &mut self,
        package: PackageName,
        digest: Digest,
        status: HostStatus,
    ) -> Result<(), StoreError> {
        if self.host.status().is_some_and(|said| said.pid != status.pid) {
            // The end of the one before it is about to be told, and whose doing that was.
            tracing::debug!(pid = status.pid, "another host answers");
            return Ok(());
        }
        self.host.said(status);
        if !self.host.serves(&package, &digest) {
            return self.witness(Event::HostDied { suspects: Vec::new(), now_ms: now_ms() });
        }
        let measured = self.host.find(&package, &digest).map(measured).unwrap_or_default();
        self.apply(Event::Proved { package, digest, measured, now_ms: now_ms() })
    }

    fn loaded(
        &mut self,
        package: PackageName,
        release: Release,
        role: Role,
        loaded: &Loaded,
    ) -> Result<(), StoreError> {
        self.rests.forget(&Rest::Package(package.clone()));
        let digest = release.digest;
        let version = self.version(&digest);
        let reference = PackageRef { name: package.clone(), digest };
        self.host.loaded(&reference, release.release, version, &release.settings);
        match (role, loaded.accepted()) {
            (Role::Trial, true) => self.apply(Event::Accepted { package, digest, cases: loaded.cases.len() }),
            (Role::Trial, false) => {
                let (reason, what) = not_accepted(loaded);
                self.apply(Event::TrialFailed { package, digest, reason: reason.to_owned(), what })
            }
            (Role::Committed, true) => Ok(()),
            (Role::Committed, false) => {
                // It was committed with these cases passed, and an answer beats none.
                let (_, what) = not_accepted(loaded);
                self.tell("case-failed-again", Some(&package), what);
                Ok(())
            }
        }
    }

    fn activated(
        &mut self,
        package: PackageName,
        release: &Release,
        role: Role,
        status: HostStatus,
    ) -> Result<(), StoreError> {
        self.host.said(status);
        self.rests.forget(&Rest::Package(package.clone()));
        match role {
            Role::Trial => self.apply(Event::Activated { package, digest: release.digest, now_ms: now_ms() }),
            Role::Committed => Ok(()),
        }
    }

    /// The host refused, or said nothing. The first is about the package, the second is not.
    fn not_loaded(
        &mut self,
        package: PackageName,
        digest: Digest,
        role: Role,
        error: &ClientError,
    ) -> Result<(), StoreError> {
        match (error, role) {
            (ClientError::Refused { error: refused, .. }, _) if refused.reason == Reason::Corrupt => {
                self.examine(package, digest, role)
            }
            (ClientError::Refused { error: refused, .. }, Role::Trial) => {
                let (reason, what) = (word(refused.reason).to_owned(), refused.error.clone());
                self.apply(Event::TrialFailed { package, digest, reason, what })
            }
            (ClientError::Late { .. }, Role::Trial) => {
                let (reason, what) = ("load-timeout".to_owned(), chain(error));
                self.apply(Event::TrialFailed { package, digest, reason, what })
            }
            _ => {
                self.put_off(&package, "not-served", error);
                Ok(())
            }
        }
    }

    fn put_off(&mut self, package: &PackageName, kind: &'static str, error: &ClientError) {
        let what = chain(error);
        tracing::warn!(%package, "{what}");
        let first = self.rests.rest(Rest::Package(package.clone()), clock::since_boot());
        // A host that is gone is reported as that.
        if first && matches!(error, ClientError::Refused { .. } | ClientError::Late { .. }) {
            self.tell(kind, Some(package), what);
        }
    }

    fn probed(
        &mut self,
        package: PackageName,
        tried: Tried,
        probed: Probed,
        peak: u64,
    ) -> Result<(), StoreError> {
        let digest = tried.0;
        let (reason, what) = match probed {
            Probed::Answered(ProbeResult::Package(loaded)) if loaded.accepted() => {
                match self.over_budget(&digest, peak) {
                    Some(what) => ("acceptance-memory", what),
                    None => {
                        self.rests.forget(&Rest::Package(package));
                        self.probed.insert(tried, peak);
                        return Ok(());
                    }
                }
            }
            Probed::Answered(ProbeResult::Package(loaded)) => not_accepted(&loaded),
            Probed::Answered(ProbeResult::Refused(error)) if error.reason == Reason::Corrupt => {
                return self.examine(package, digest, Role::Trial);
            }
            Probed::Answered(ProbeResult::Refused(error)) => (word(error.reason), error.error),
            Probed::Answered(ProbeResult::Model(_)) => {
                ("probe-failed", "the probe answered about a bare model".to_owned())
            }
            Probed::Failed { reason, what } => (reason, what),
            // It has memory to itself when the one that answers has made way.
            Probed::Killed(_) if self.shares(&package) && self.is_tight(peak) => {
                return self.apply(Event::Tight { package, digest });
            }
            Probed::Killed(what) => ("probe-crashed", what),
            Probed::NotRun(why) => {
                tracing::warn!(%package, "{why}");
                if self.rests.rest(Rest::Package(package.clone()), clock::since_boot()) {
                    self.tell("probe-not-run", Some(&package), why);
                }
                return Ok(());
            }
        };
        self.apply(Event::TrialFailed { package, digest, reason: reason.to_owned(), what })
    }

    /// Whether a release took more memory in its probe than it says that it may.
    fn over_budget(&self, digest: &Digest, peak: u64) -> Option<String> {
        let Ok(Some(Ok(bundle))) = self.parts.store.bundle(digest) else { return None };
        let most = bundle.manifest().acceptance.memory_mib;
        (most > 0 && peak > u64::from(most) << 20).then(|| {
            format!(
                "opening it and running its acceptance cases took {} MiB of memory; at most {most} MiB are \
                 allowed",
                peak.div_ceil(1 << 20)
            )
        })
    }

    /// The host found a file damaged: either a blob is, or only the directory made from them.
    fn examined(
        &mut self,
        package: PackageName,
        digest: Digest,
        role: Role,
        damaged: usize,
    ) -> Result<(), StoreError> {
        if let Err(error) = self.parts.store.remove_layout(&digest) {
            return self.endure(&package, error);
        }
        self.host.lost(&package, &digest);
        self.probed.retain(|(probed, _), _| *probed != digest);
        self.look = true;
        if damaged > 0 {
            return self.apply(Event::Damaged { package, digest });
        }
        let again = !self.rests.rest(Rest::Package(package.clone()), clock::since_boot());
        if again && role == Role::Trial {
            let what = "the host finds a file damaged that is not".to_owned();
            return self.apply(Event::TrialFailed { package, digest, reason: "corrupt".to_owned(), what });
        }
        Ok(())
    }

    /// What the host said last; `None` while it is not there.
    pub fn host(&self) -> Option<&HostStatus> {
        HostView::status(&self.host)
    }
}

/// What the host says of a release on probation.
fn measured(found: &PackageStatus) -> Measured {
    Measured {
        requests: found.requests,
        failures: found.failures,
        // Never more than it was. A number that is none counts as nothing.
        latency_ms: found.latency_ms as u64,
        memory: found.memory,
    }
}

/// Which case failed and how, as the report has it.
fn not_accepted(loaded: &Loaded) -> (&'static str, String) {
    match loaded.first_failure() {
        Some(case) => {
            let failure = case.failure.as_deref().unwrap_or_default();
            ("acceptance-failed", format!("acceptance case `{}` failed: {failure}", case.case))
        }
        None => ("no-case", "it has no acceptance case".to_owned()),
    }
}

fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Corrupt => "corrupt",
        Reason::BadManifest => "bad-manifest",
        Reason::BadComponent => "bad-component",
        Reason::BadModel => "bad-model",
        Reason::BadCase => "bad-case",
        Reason::NotLoaded => "not-loaded",
        Reason::Limit => "limit",
        Reason::BadRequest => "bad-request",
        Reason::Internal => "internal",
    }
}
