//! The transitions: one state and one event give one state, or the event is refused.

use std::collections::BTreeMap;

use selvedge_package::{Digest, PackageName};

use crate::event::{Event, Illegal, Note};
use crate::probation::{self, CHECKPOINTS};
use crate::state::{Committed, Failure, Health, Measured, Phase, Release, Rules, Slot, Stage, State, Swap};

/// Starts of one release after which it is given up. A start that a power cut ends counts, so that
/// a release which takes the device down with it does not do so for ever.
pub const MAX_ATTEMPTS: u32 = 5;

/// Crashes of the host after which a committed release that was named for them is quarantined.
pub const MAX_CRASHES: u32 = 3;

/// Crashes count together when they come within this time of the first, in milliseconds, at least: one hour.
pub const CRASH_WINDOW_MS: u64 = 3_600_000;

/// What a step gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The next state: to be persisted before anything else is done.
    pub state: State,
    /// What to tell.
    pub notes: Vec<Note>,
}

/// The next state.
///
/// # Errors
/// [`Illegal`] when the event does not fit; the state stays as it is.
pub fn step(state: &State, event: Event) -> Result<Step, Illegal> {
    let mut next = Step { state: state.clone(), notes: Vec::new() };
    next.apply(event)?;
    Ok(next)
}

impl Step {
    fn apply(&mut self, event: Event) -> Result<(), Illegal> {
        match event {
            Event::Desired { sequence, assignments, unfit, anew } => {
                if sequence < self.state.desired && !anew {
                    return Err(Illegal::OldDesired { offered: sequence, current: self.state.desired });
                }
                self.desired(sequence, assignments, &unfit);
                Ok(())
            }
            Event::Fetched { package, digest, rules } => self.fetched(&package, digest, rules),
            Event::Unusable { package, digest, reason, what } => {
                self.unusable(&package, digest, &reason, &what)
            }
            Event::Begin { package } => self.begin(&package),
            Event::Tight { package, digest } => self.tight(&package, digest),
            Event::Accepted { package, digest, cases } => self.accepted(&package, digest, cases),
            Event::TrialFailed { package, digest, reason, what } => {
                self.trial("trial-failed", &package, digest)?;
                self.roll_back(&package, &reason, &what);
                Ok(())
            }
            Event::Hindered { package, digest, what } => self.hindered(&package, digest, &what),
            Event::Refused { package, digest, reason, what } => {
                self.refused(&package, digest, &reason, &what)
            }
            Event::Activated { package, digest, now_ms } => self.activated(&package, digest, now_ms),
            Event::Proved { package, digest, measured, now_ms } => {
                self.proved(&package, digest, &measured, now_ms)
            }
            Event::Damaged { package, digest } => self.damaged(&package, digest),
            Event::HostDied { suspects, now_ms, within_ms } => {
                self.host_died(&suspects, now_ms, within_ms);
                Ok(())
            }
            Event::Restarted => {
                self.interrupt_trials(|phase| !matches!(phase, Phase::Probation { .. }));
                Ok(())
            }
            Event::Stopping { now_ms } => {
                probation::pause(&mut self.state, now_ms);
                Ok(())
            }
        }
    }

    fn desired(
        &mut self,
        sequence: u64,
        assignments: Vec<(PackageName, Release)>,
        unfit: &BTreeMap<PackageName, String>,
    ) {
        self.state.desired = sequence;
        let names: Vec<_> = self.state.slots.keys().cloned().collect();
        for name in names {
            if !assignments.iter().any(|(assigned, _)| *assigned == name) {
                self.remove(&name);
            }
        }
        for (name, release) in assignments {
            let floor = self.state.floors.get(&name).copied().unwrap_or(0);
            let slot = self.state.slots.entry(name.clone()).or_default();
            if slot.wanted.as_ref() == Some(&release) {
                continue;
            }
            let below = (release.release < floor).then(|| {
                let what = format!("release {} is below this device's floor {floor}", release.release);
                ("below-floor", what)
            });
            let unfit = || unfit.get(&name).map(|why| ("wrong-hardware", why.clone()));
            if let Some((reason, what)) = below.or_else(unfit) {
                let known = |failure: &Failure| failure.digest == release.digest && failure.reason == reason;
                if slot.failure.as_ref().is_some_and(known) {
                    continue;
                }
                // Nobody asks any more for what was on its way; what is committed goes on.
                slot.wanted = None;
                slot.stage = Stage::Idle;
                slot.fall_back(floor);
                slot.failure = Some(Failure::of(&release, reason, &what));
                self.notes.push(match reason {
                    "below-floor" => Note::BelowFloor(name, release, floor),
                    _ => Note::Unfit(name, release, what),
                });
                continue;
            }
            slot.want(release);
            // What its release keys say of the release that answers may have become stricter.
            if let Some(committed) = &slot.committed {
                let floor = committed.release.min_release.min(committed.release.release);
                self.raise_floor(&name, floor);
            }
        }
        // A name whose only assignment was refused leaves a slot that holds just the refusal.
    }

    /// Floors only grow.
    fn raise_floor(&mut self, package: &PackageName, to: u64) {
        let floor = self.state.floors.entry(package.clone()).or_default();
        *floor = (*floor).max(to);
    }

    fn remove(&mut self, name: &PackageName) {
        if let Some(slot) = self.state.slots.remove(name)
            && slot.committed.is_some()
        {
            self.state.generation += 1;
            self.notes.push(Note::Removed(name.clone()));
        }
    }

    fn fetched(&mut self, package: &PackageName, digest: Digest, rules: Rules) -> Result<(), Illegal> {
        let slot = self.slot("fetched", package)?;
        if let Some(committed) = &mut slot.committed
            && committed.release.digest == digest
            && committed.health == Health::Damaged
        {
            committed.health = Health::SOUND;
            return Ok(());
        }
        match &slot.stage {
            Stage::Fetching(release) if release.digest == digest => {
                slot.stage = Stage::Staged { release: release.clone(), rules, attempts: 0, proved_ms: 0 };
                Ok(())
            }
            stage => Err(wrong("fetched", package, stage)),
        }
    }

    fn unusable(
        &mut self,
        package: &PackageName,
        digest: Digest,
        reason: &str,
        what: &str,
    ) -> Result<(), Illegal> {
        let slot = self.slot("unusable", package)?;
        match (slot.stage.release(), &slot.committed) {
            (Some(release), _) if release.digest == digest => {
                self.roll_back(package, reason, what);
                Ok(())
            }
            // It answered once, and cannot be repaired: nobody is to wait for it for ever.
            (_, Some(committed))
                if committed.release.digest == digest && committed.health == Health::Damaged =>
            {
                self.quarantine(package, reason, what);
                Ok(())
            }
            _ => Err(wrong("unusable", package, &slot.stage)),
        }
    }

    fn begin(&mut self, package: &PackageName) -> Result<(), Illegal> {
        let slot = self.slot("begin", package)?;
        let Stage::Staged { release, rules, attempts, proved_ms } = &slot.stage else {
            return Err(wrong("begin", package, &slot.stage));
        };
        if *attempts >= MAX_ATTEMPTS {
            let what = format!("given up after {attempts} starts that did not end");
            self.roll_back(package, "attempts-exhausted", &what);
            return Ok(());
        }
        slot.stage = Stage::Trial {
            release: release.clone(),
            rules: *rules,
            attempt: attempts + 1,
            phase: Phase::Loading,
            proved_ms: *proved_ms,
        };
        Ok(())
    }

    /// A trial that would be beside the release that answers takes its place instead.
    fn tight(&mut self, package: &PackageName, digest: Digest) -> Result<(), Illegal> {
        self.trial("tight", package, digest)?;
        let slot = self.slot("tight", package)?;
        match &mut slot.stage {
            Stage::Trial { release, rules, phase: Phase::Loading, .. } => {
                if rules.swap == Swap::Handover {
                    rules.swap = Swap::StopFirst;
                    let note = Note::StopsFirst(package.clone(), release.clone());
                    self.notes.push(note);
                }
                Ok(())
            }
            // It is open already: memory holds both.
            stage => Err(wrong("tight", package, stage)),
        }
    }

    fn accepted(&mut self, package: &PackageName, digest: Digest, cases: usize) -> Result<(), Illegal> {
        let phase = self.trial("accepted", package, digest)?;
        if cases == 0 {
            return Err(Illegal::NoCase(package.clone()));
        }
        if *phase == Phase::Loading {
            *phase = Phase::Accepted;
        }
        Ok(())
    }

    fn activated(&mut self, package: &PackageName, digest: Digest, now_ms: u64) -> Result<(), Illegal> {
        let phase = self.trial("activated", package, digest)?;
        if *phase == Phase::Loading {
            return Err(Illegal::NoCase(package.clone()));
        }
        let slot = self.slot("activated", package)?;
        if let Stage::Trial { rules, phase, proved_ms, .. } = &mut slot.stage {
            if rules.probation_ms > 0 {
                if *phase == Phase::Accepted {
                    let left = rules.probation_ms.saturating_sub(*proved_ms);
                    *phase = Phase::Probation { until_ms: now_ms.saturating_add(left) };
                }
            } else {
                self.commit(package);
            }
        }
        Ok(())
    }

    fn proved(
        &mut self,
        package: &PackageName,
        digest: Digest,
        measured: &Measured,
        now_ms: u64,
    ) -> Result<(), Illegal> {
        let Phase::Probation { until_ms } = *self.trial("proved", package, digest)? else {
            return Err(Illegal::NoCase(package.clone()));
        };
        let slot = self.slot("proved", package)?;
        let Stage::Trial { rules, proved_ms, .. } = &mut slot.stage else {
            return Ok(());
        };
        let enough = rules.probation_requests > 0 && measured.requests >= rules.probation_requests;
        let over = enough || now_ms >= until_ms;
        if let Some((reason, what)) = probation::breach(rules, measured, over) {
            self.roll_back(package, reason, &what);
        } else if over {
            self.commit(package);
        } else {
            let behind = probation::behind(rules, until_ms, now_ms);
            if let Some(behind) = probation::checkpoint(rules, behind, *proved_ms, CHECKPOINTS) {
                *proved_ms = behind;
            }
        }
        Ok(())
    }

    fn damaged(&mut self, package: &PackageName, digest: Digest) -> Result<(), Illegal> {
        let slot = self.slot("damaged", package)?;
        let mut found = false;
        if let Some(committed) = &mut slot.committed
            && committed.release.digest == digest
            && committed.health != Health::Quarantined
        {
            committed.health = Health::Damaged;
            found = true;
        }
        if let Stage::Staged { release, .. } | Stage::Trial { release, .. } = &slot.stage
            && release.digest == digest
        {
            slot.stage = Stage::Fetching(release.clone());
            found = true;
        }
        if !found {
            return Err(wrong("damaged", package, &slot.stage));
        }
        self.notes.push(Note::Repairing(package.clone()));
        Ok(())
    }

    fn host_died(&mut self, suspects: &[Digest], now_ms: u64, within_ms: u64) {
        let names: Vec<_> = self.state.slots.keys().cloned().collect();
        for name in names {
            let Some(slot) = self.state.slots.get_mut(&name) else {
                continue;
            };
            let tried = match &slot.stage {
                Stage::Trial { release, phase, .. } if suspects.contains(&release.digest) => Some(*phase),
                _ => None,
            };
            if let Some(phase) = tried {
                let doing = if phase == Phase::Loading { "opened" } else { "had" };
                let what = format!("the host ended while it {doing} this release on trial, and by its fault");
                self.roll_back(&name, "host-died", &what);
            } else if let Some(committed) = &mut slot.committed
                && suspects.contains(&committed.release.digest)
                && let Health::Sound { crashes, first_ms } = &mut committed.health
            {
                // Crashes that lie far apart are not a pattern: they count within a window only. Time
                // before the first one means that the device was started anew since.
                let within = now_ms.checked_sub(*first_ms).is_some_and(|since| since <= within_ms);
                if *crashes == 0 || !within {
                    (*crashes, *first_ms) = (0, now_ms);
                }
                *crashes += 1;
                if *crashes >= MAX_CRASHES {
                    let what = format!("the host ended {MAX_CRASHES} times while it ran this release");
                    self.quarantine(&name, "quarantined", &what);
                }
            }
        }
        self.interrupt_trials(|_| true);
    }

    /// Takes a committed release out of service; the one before it starts as a new trial.
    fn quarantine(&mut self, package: &PackageName, reason: &str, what: &str) {
        let floor = self.state.floors.get(package).copied().unwrap_or(0);
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let Some(committed) = &mut slot.committed else {
            return;
        };
        committed.health = Health::Quarantined;
        slot.failure = Some(Failure::of(&committed.release, reason, what));
        slot.fall_back(floor);
        self.notes.push(Note::Quarantined(package.clone()));
    }

    fn commit(&mut self, package: &PackageName) {
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let Stage::Trial { release, rules, .. } = std::mem::take(&mut slot.stage) else {
            return;
        };
        // With other settings it is still the same release, and the one to go back to is another. What has
        // failed is none to go back to.
        let failed = slot.failure.as_ref().map(|failure| failure.digest);
        if let Some(old) = slot.committed.take()
            && old.health != Health::Quarantined
            && old.release.digest != release.digest
            && failed != Some(old.release.digest)
        {
            slot.previous = Some((old.release, old.rules));
        }
        if slot.failure.as_ref().is_some_and(|failure| failure.digest == release.digest) {
            slot.failure = None;
        }
        // A release that would shut itself out sets the floor at itself.
        let floor = release.min_release.min(release.release);
        slot.committed = Some(Committed { release: release.clone(), rules, health: Health::SOUND });
        self.raise_floor(package, floor);
        self.state.generation += 1;
        self.notes.push(Note::Committed(package.clone(), release));
    }

    pub(crate) fn roll_back(&mut self, package: &PackageName, reason: &str, what: &str) {
        let floor = self.state.floors.get(package).copied().unwrap_or(0);
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let stage = std::mem::take(&mut slot.stage);
        if let Some(release) = stage.release() {
            slot.failure = Some(Failure::of(release, reason, what));
            self.notes.push(Note::RolledBack(package.clone(), release.clone()));
        }
        slot.fall_back(floor);
    }

    /// What was started, did not end and is in such a phase is staged again, its attempts kept.
    fn interrupt_trials(&mut self, which: impl Fn(&Phase) -> bool) {
        for slot in self.state.slots.values_mut() {
            if let Stage::Trial { release, rules, attempt, phase, proved_ms } = &slot.stage
                && which(phase)
            {
                let (release, rules) = (release.clone(), *rules);
                slot.stage = Stage::Staged { release, rules, attempts: *attempt, proved_ms: *proved_ms };
            }
        }
    }

    pub(crate) fn slot(&mut self, event: &'static str, package: &PackageName) -> Result<&mut Slot, Illegal> {
        self.state
            .slots
            .get_mut(package)
            .ok_or_else(|| Illegal::UnknownPackage { event, package: package.clone() })
    }

    pub(crate) fn trial(
        &mut self,
        event: &'static str,
        package: &PackageName,
        digest: Digest,
    ) -> Result<&mut Phase, Illegal> {
        let slot = self.slot(event, package)?;
        if !matches!(&slot.stage, Stage::Trial { release, .. } if release.digest == digest) {
            return Err(wrong(event, package, &slot.stage));
        }
        match &mut slot.stage {
            Stage::Trial { phase, .. } => Ok(phase),
            stage => Err(wrong(event, package, stage)),
        }
    }
}

impl Slot {
    /// Where what is committed is not served any more and nothing is on its way, the release before it
    /// starts as a new trial; not if it is the one that has just failed.
    fn fall_back(&mut self, floor: u64) {
        let quarantined =
            self.committed.as_ref().is_some_and(|committed| committed.health == Health::Quarantined);
        let failed = self.failure.as_ref().map(|failure| failure.digest);
        if quarantined
            && self.stage == Stage::Idle
            && let Some((release, rules)) = self.previous.take()
            && release.release >= floor
            && failed != Some(release.digest)
        {
            self.stage = Stage::Staged { release, rules, attempts: 0, proved_ms: 0 };
        }
    }

    /// Takes a new assignment: it replaces what was on its way and forgives an earlier failure.
    fn want(&mut self, release: Release) {
        self.failure = None;
        self.wanted = Some(release.clone());
        match &mut self.committed {
            Some(committed)
                if committed.release.digest == release.digest && committed.health != Health::Quarantined =>
            {
                let runs_so = committed.release.settings == release.settings;
                let sound = committed.health != Health::Damaged;
                self.stage = if runs_so || !sound {
                    // What is damaged is being fetched, and starts with these settings then.
                    committed.release = release;
                    Stage::Idle
                } else {
                    // Only the settings differ: nothing to fetch, but they are tried as a release is.
                    Stage::Staged { release, rules: committed.rules, attempts: 0, proved_ms: 0 }
                };
            }
            _ => match &mut self.stage {
                Stage::Fetching(on_its_way) if on_its_way.digest == release.digest => *on_its_way = release,
                _ => self.stage = Stage::Fetching(release),
            },
        }
    }
}

pub(crate) fn wrong(event: &'static str, package: &PackageName, stage: &Stage) -> Illegal {
    Illegal::WrongStage { event, package: package.clone(), stage: stage.word().unwrap_or("idle") }
}
