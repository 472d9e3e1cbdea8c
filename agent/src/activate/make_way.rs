//! Whether the release that answers has to make way before the next one starts.
//!
//! Side by side is the rule. It is one after the other where the manifest says so, or where memory
//! would not hold both: by what the probe of the new one took, and what there is at that moment.

use selvedge_control::{PackageState, PackageStatus};
use selvedge_deployment::{Effect, Event, Phase, Stage, Swap};
use selvedge_package::{Digest, PackageName};

use super::Activation;
use super::operate::tried;
use crate::store::StoreError;

/// Memory that is left for everything else, in bytes.
const MARGIN: u64 = 32 << 20;

impl Activation {
    /// Has the release that answers stopped first, where the one about to be loaded does not fit
    /// beside it.
    pub(super) fn mind_the_memory(&mut self, plan: &[Effect]) -> Result<(), StoreError> {
        if self.operation.is_some() {
            return Ok(());
        }
        let tight = plan.iter().find_map(|effect| match effect {
            Effect::Load(package, release) => {
                let peak = *self.probed.get(&tried(release))?;
                (self.shares(package) && self.is_tight(peak)).then(|| (package.clone(), release.digest))
            }
            _ => None,
        });
        match tight {
            Some((package, digest)) => self.apply(Event::Tight { package, digest }),
            None => Ok(()),
        }
    }

    /// Whether the release on trial would be beside another one of its package.
    pub(super) fn shares(&self, package: &PackageName) -> bool {
        self.swap_on_trial(package) == Some(Swap::Handover) && self.open(package).next().is_some()
    }

    /// Whether memory would not hold what a probe took.
    pub(super) fn is_tight(&self, peak: u64) -> bool {
        // What a probe takes varies, and what is written down of it is a little late.
        let needed = peak.saturating_add(peak / 8).saturating_add(MARGIN);
        self.parts.memory.available().is_some_and(|available| needed > available)
    }

    /// What has to be stopped before the release on trial starts: where that is so, and as long as
    /// something is there.
    pub(super) fn in_the_way(&self, package: &PackageName) -> Option<&PackageStatus> {
        match self.swap_on_trial(package) {
            Some(Swap::StopFirst) => self.open(package).next(),
            Some(Swap::Handover) | None => None,
        }
    }

    /// Whether something is open beside the release that answers that no trial waits for.
    pub(super) fn has_leftover(&self, package: &PackageName, digest: &Digest) -> bool {
        let stage = self.state.slots.get(package).map(|slot| &slot.stage);
        let tried = matches!(stage, Some(Stage::Trial { release, .. }) if release.digest == *digest);
        !tried
            && self.host.packages().iter().any(|found| {
                found.package.name == *package
                    && found.package.digest == *digest
                    && found.state == PackageState::Staged
            })
    }

    /// Releases of a package that the host has for more than a trial.
    fn open(&self, package: &PackageName) -> impl Iterator<Item = &PackageStatus> {
        let open =
            |found: &&PackageStatus| found.package.name == *package && found.state != PackageState::Staged;
        self.host.packages().iter().filter(open)
    }

    fn swap_on_trial(&self, package: &PackageName) -> Option<Swap> {
        match self.state.slots.get(package).map(|slot| &slot.stage) {
            Some(Stage::Trial { rules, phase: Phase::Loading, .. }) => Some(rules.swap),
            _ => None,
        }
    }
}
