//! What the host refuses: a trial for reasons of its own, which starts again, and what is committed for what
//! it is, which gives way to the release before it.

use selvedge_package::{Digest, PackageName};

use crate::event::{Illegal, Note};
use crate::state::{Failure, Health, Stage};
use crate::step::{MAX_ATTEMPTS, Step, wrong};

impl Step {
    /// A start that was hindered counts as one that did not end, so that this ends, too.
    pub(crate) fn hindered(
        &mut self,
        package: &PackageName,
        digest: Digest,
        what: &str,
    ) -> Result<(), Illegal> {
        self.trial("hindered", package, digest)?;
        let slot = self.slot("hindered", package)?;
        let Stage::Trial { release, rules, attempt, proved_ms, .. } = &slot.stage else {
            return Ok(());
        };
        if *attempt >= MAX_ATTEMPTS {
            let what = format!("given up after {attempt} starts that did not end; the last: {what}");
            self.roll_back(package, "attempts-exhausted", &what);
            return Ok(());
        }
        let (release, rules) = (release.clone(), *rules);
        slot.stage = Stage::Staged { release, rules, attempts: *attempt, proved_ms: *proved_ms };
        Ok(())
    }

    /// The release before it starts as a new trial, where there is one that may and nothing else is on its
    /// way. What is refused stays committed until that one is: it is served as soon as the host takes it,
    /// and where the one before it fails, too, it is all that there is.
    pub(crate) fn refused(
        &mut self,
        package: &PackageName,
        digest: Digest,
        reason: &str,
        what: &str,
    ) -> Result<(), Illegal> {
        let floor = self.state.floors.get(package).copied().unwrap_or(0);
        let slot = self.slot("refused", package)?;
        let refused = slot.committed.as_ref().filter(|committed| {
            committed.release.digest == digest && matches!(committed.health, Health::Sound { .. })
        });
        let Some(refused) = refused.filter(|_| slot.stage == Stage::Idle) else {
            return Err(wrong("refused", package, &slot.stage));
        };
        let failure = Failure::of(&refused.release, reason, what);
        let failed = slot.failure.as_ref().map(|failure| failure.digest);
        let usable =
            |release: &crate::state::Release| release.release >= floor && failed != Some(release.digest);
        let before = slot.previous.take_if(|(release, _)| usable(release));
        if let Some((release, rules)) = before {
            self.notes.push(Note::GivesWay(package.clone(), release.clone()));
            let slot = self.slot("refused", package)?;
            slot.failure = Some(failure);
            slot.stage = Stage::Staged { release, rules, attempts: 0, proved_ms: 0 };
        }
        Ok(())
    }
}
