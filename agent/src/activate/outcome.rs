//! What came of what was started, and what follows from it.

use selvedge_control::{HostStatus, Loaded, PackageRef, PackageState, PackageStatus, settings_digest};
use selvedge_deployment::{Event, Measured, Release};
use selvedge_package::{Digest, PackageName};

use super::carry::OpenError;
use super::operate::{Answer, Role, Work};
use super::rest::Rest;
use super::{Activation, HostView, now_ms};
use crate::failure::chain;
use crate::store::{Partial, StoreError};
use crate::supervise::Probed;
use crate::{clock, source};

/// What came of something that was started.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few are on their way at a time")]
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
    /// Chunks of a blob were kept, or were not.
    Settled,
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
        match self {
            Self::Source(event) => event.is_progress(),
            Self::Settled => true,
            _ => false,
        }
    }
}

impl Activation {
    /// Takes what came of something. What was given up meanwhile is ignored.
    pub fn take(&mut self, outcome: Outcome) -> Result<(), StoreError> {
        match outcome {
            Outcome::Opened { digest, result } => self.opened(digest, result)?,
            Outcome::Source(event) => return self.by_http(event),
            Outcome::Settled => return self.settled(),
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
                Err(error) => self.not_loaded(package, &release, role, &error),
            },
            (Work::Activate(package, release, role), Answer::Status(result)) => match result {
                Ok(status) => self.activated(package, &release, role, status),
                Err(error) => {
                    // Whatever it had of it, it is asked again from the beginning.
                    self.host.lost(&package, &release.digest);
                    self.not_routed(&package, &release, role, &error)
                }
            },
            (Work::Unload(package), Answer::Status(result)) => {
                match result {
                    Ok(status) => self.host.said(status),
                    Err(error) => {
                        let rest = Rest::Package(package.name.clone());
                        self.put_off(rest, &package.name, "unload-failed", &error);
                    }
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
            return self.witness(self.host_died(Vec::new()));
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
        if role == Role::Committed {
            self.served(&package);
        }
        let digest = release.digest;
        let version = self.version(&digest);
        let reference = PackageRef { name: package.clone(), digest };
        self.host.loaded(&reference, release.release, version, &release.settings);
        match (role, loaded.accepted()) {
            (Role::Trial, true) => self.apply(Event::Accepted { package, digest, cases: loaded.cases.len() }),
            (Role::Trial, false) => {
                let (reason, what) = not_accepted(loaded);
                self.fail(package, digest, reason, what)
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
            Role::Trial => {
                self.rests.forget(&Rest::Trial(package.clone()));
                self.apply(Event::Activated { package, digest: release.digest, now_ms: now_ms() })
            }
            Role::Committed => Ok(()),
        }
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
            return self.fail(
                package,
                digest,
                "corrupt",
                "the host finds a file damaged that is not".to_owned(),
            );
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
pub(super) fn not_accepted(loaded: &Loaded) -> (&'static str, String) {
    match loaded.first_failure() {
        Some(case) => {
            let failure = case.failure.as_deref().unwrap_or_default();
            ("acceptance-failed", format!("acceptance case `{}` failed: {failure}", case.case))
        }
        None => ("no-case", "it has no acceptance case".to_owned()),
    }
}
