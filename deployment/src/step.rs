//! The transitions: one state and one event give one state, or the event is refused.

use std::collections::BTreeMap;

use selvedge_package::{Digest, PackageName};

use crate::event::{Event, Illegal, Note};
use crate::state::{Committed, Failure, Health, Phase, Release, Rules, Slot, Stage, State, Swap};

/// Starts of one release after which it is given up. A start that a power cut ends counts, so that
/// a release which takes the device down with it does not do so for ever.
pub const MAX_ATTEMPTS: u32 = 5;

/// Crashes of the host after which a committed release that was named for them is quarantined.
pub const MAX_CRASHES: u32 = 3;

/// Crashes count together when they come within this time of the first, in milliseconds: one hour.
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
            Event::Activated { package, digest, now_ms } => self.activated(&package, digest, now_ms),
            Event::Proved { package, digest, requests, now_ms } => {
                self.proved(&package, digest, requests, now_ms)
            }
            Event::Damaged { package, digest } => self.damaged(&package, digest),
            Event::HostDied { suspects, now_ms } => {
                self.host_died(&suspects, now_ms);
                Ok(())
            }
            Event::Restarted => {
                self.interrupt_trials();
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
                slot.stage = Stage::Staged { release: release.clone(), rules, attempts: 0 };
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
        match slot.stage.release() {
            Some(release) if release.digest == digest => {
                self.roll_back(package, reason, what);
                Ok(())
            }
            _ => Err(wrong("unusable", package, &slot.stage)),
        }
    }

    fn begin(&mut self, package: &PackageName) -> Result<(), Illegal> {
        let slot = self.slot("begin", package)?;
        let Stage::Staged { release, rules, attempts } = &slot.stage else {
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
        if let Stage::Trial { rules, phase, .. } = &mut slot.stage {
            if rules.probation_ms > 0 {
                if *phase == Phase::Accepted {
                    *phase = Phase::Probation { until_ms: now_ms.saturating_add(rules.probation_ms) };
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
        requests: u64,
        now_ms: u64,
    ) -> Result<(), Illegal> {
        let Phase::Probation { until_ms } = *self.trial("proved", package, digest)? else {
            return Err(Illegal::NoCase(package.clone()));
        };
        let slot = self.slot("proved", package)?;
        if let Stage::Trial { rules, .. } = &slot.stage {
            let enough = rules.probation_requests > 0 && requests >= rules.probation_requests;
            if enough || now_ms >= until_ms {
                self.commit(package);
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

    fn host_died(&mut self, suspects: &[Digest], now_ms: u64) {
        let names: Vec<_> = self.state.slots.keys().cloned().collect();
        for name in names {
            let Some(slot) = self.state.slots.get_mut(&name) else {
                continue;
            };
            let tried = matches!(&slot.stage, Stage::Trial { release, phase, .. }
                if suspects.contains(&release.digest) && *phase != Phase::Loading);
            if tried {
                self.roll_back(&name, "host-died", "the host ended while it served this release on trial");
            } else if let Some(committed) = &mut slot.committed
                && suspects.contains(&committed.release.digest)
                && let Health::Sound { crashes, first_ms } = &mut committed.health
            {
                // Crashes that lie far apart are not a pattern: they count within a window only. Time
                // before the first one means that the device was started anew since.
                let within = now_ms.checked_sub(*first_ms).is_some_and(|since| since <= CRASH_WINDOW_MS);
                if *crashes == 0 || !within {
                    (*crashes, *first_ms) = (0, now_ms);
                }
                *crashes += 1;
                if *crashes >= MAX_CRASHES {
                    self.quarantine(&name);
                }
            }
        }
        self.interrupt_trials();
    }

    /// Takes a committed release out of service; the one before it starts as a new trial.
    fn quarantine(&mut self, package: &PackageName) {
        let floor = self.state.floors.get(package).copied().unwrap_or(0);
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let Some(committed) = &mut slot.committed else {
            return;
        };
        committed.health = Health::Quarantined;
        let what = format!("the host ended {MAX_CRASHES} times while it ran this release");
        slot.failure = Some(Failure::of(&committed.release, "quarantined", &what));
        if slot.stage == Stage::Idle
            && let Some((release, rules)) = slot.previous.take()
            && release.release >= floor
        {
            slot.stage = Stage::Staged { release, rules, attempts: 0 };
        }
        self.notes.push(Note::Quarantined(package.clone()));
    }

    fn commit(&mut self, package: &PackageName) {
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let Stage::Trial { release, rules, .. } = std::mem::take(&mut slot.stage) else {
            return;
        };
        // With other settings it is still the same release, and the one to go back to is another.
        if let Some(old) = slot.committed.take()
            && old.health != Health::Quarantined
            && old.release.digest != release.digest
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

    fn roll_back(&mut self, package: &PackageName, reason: &str, what: &str) {
        let Some(slot) = self.state.slots.get_mut(package) else {
            return;
        };
        let stage = std::mem::take(&mut slot.stage);
        if let Some(release) = stage.release() {
            slot.failure = Some(Failure::of(release, reason, what));
            self.notes.push(Note::RolledBack(package.clone(), release.clone()));
        }
    }

    /// What was started and did not end is staged again, its attempts kept.
    fn interrupt_trials(&mut self) {
        for slot in self.state.slots.values_mut() {
            if let Stage::Trial { release, rules, attempt, .. } = &slot.stage {
                slot.stage = Stage::Staged { release: release.clone(), rules: *rules, attempts: *attempt };
            }
        }
    }

    fn slot(&mut self, event: &'static str, package: &PackageName) -> Result<&mut Slot, Illegal> {
        self.state
            .slots
            .get_mut(package)
            .ok_or_else(|| Illegal::UnknownPackage { event, package: package.clone() })
    }

    fn trial(
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
                    Stage::Staged { release, rules: committed.rules, attempts: 0 }
                };
            }
            _ => match &mut self.stage {
                Stage::Fetching(on_its_way) if on_its_way.digest == release.digest => *on_its_way = release,
                _ => self.stage = Stage::Fetching(release),
            },
        }
    }
}

fn wrong(event: &'static str, package: &PackageName, stage: &Stage) -> Illegal {
    Illegal::WrongStage { event, package: package.clone(), stage: stage.word().unwrap_or("idle") }
}
