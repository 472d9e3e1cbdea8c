//! What came of a probe, and what follows from it.

use selvedge_control::{ProbeResult, Reason};
use selvedge_deployment::Event;
use selvedge_package::{Digest, PackageName};

use super::Activation;
use super::operate::{Role, Tried};
use super::outcome::not_accepted;
use super::refusal::{blames, word};
use super::rest::Rest;
use crate::clock;
use crate::store::StoreError;
use crate::supervise::Probed;

impl Activation {
    pub(super) fn probed(
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
            // The probe was asked for nothing but the settings: those are what it refuses.
            Probed::Answered(ProbeResult::Refused(error))
                if blames(error.reason) || error.reason == Reason::BadRequest =>
            {
                (word(error.reason), error.error)
            }
            Probed::Failed { reason, what } => (reason, what),
            // It has memory to itself when the one that answers has made way.
            Probed::Killed(_) if self.shares(&package) && self.is_tight(peak) => {
                return self.apply(Event::Tight { package, digest });
            }
            Probed::Killed(what) => ("probe-crashed", what),
            Probed::Answered(ProbeResult::Refused(error)) => {
                return self.not_probed(&package, digest, error.error);
            }
            Probed::Answered(ProbeResult::Model(_)) => {
                let what = "the probe answered about a bare model".to_owned();
                return self.not_probed(&package, digest, what);
            }
            Probed::NotRun(why) => return self.not_probed(&package, digest, why),
        };
        self.fail(package, digest, reason, what)
    }

    /// The probe could not do its work: this says nothing about the package.
    fn not_probed(&mut self, package: &PackageName, digest: Digest, why: String) -> Result<(), StoreError> {
        tracing::warn!(%package, "{why}");
        let first = self.rests.rest(Rest::Trial(package.clone()), clock::since_boot());
        if first {
            self.tell("probe-not-run", Some(package), why.clone());
        }
        self.hindered(package, digest, first, why)
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
}
