//! What must be done now, derived from the state alone.

use std::collections::BTreeSet;

use selvedge_package::{Digest, PackageName};

use crate::state::{Health, Phase, Release, Slot, Stage, State, Swap};

/// Something to do. Each is idempotent: done twice it leaves what doing it once leaves. The driver
/// keeps those that it is doing, starts what is new in the plan, and stops what is no longer in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Pull, verify, store and lay out; then `Fetched` or `Unusable`.
    Fetch(PackageName, Release),
    /// Feed `Begin`: the attempt is written, then the start follows from the next plan.
    Begin(PackageName),
    /// Probe in a throw-away child, load in the host, run the acceptance cases; then `Accepted`,
    /// `TrialFailed` or `Damaged`.
    Load(PackageName, Release),
    /// Move the route; then `Activated`.
    Activate(PackageName, Release),
    /// See that the probation ends: `Proved` when its time or its requests are reached.
    Watch(PackageName, Digest),
    /// See that the host has it loaded and routed; `Damaged` when a file of it is.
    Serve(PackageName, Release),
}

/// Everything to do now, in order: what answers comes before what is on its way.
pub fn plan(state: &State) -> Vec<Effect> {
    let mut effects = Vec::new();
    // What the host has ended for comes last: it is not to keep the others from being served.
    let mut by_crashes: Vec<_> = state.slots.iter().collect();
    by_crashes.sort_by_key(|(_, slot)| match slot.committed.as_ref().map(|committed| committed.health) {
        Some(Health::Sound { crashes, .. }) => crashes,
        _ => 0,
    });
    for (name, slot) in by_crashes {
        if let Some(committed) = &slot.committed {
            match committed.health {
                Health::Damaged => effects.push(Effect::Fetch(name.clone(), committed.release.clone())),
                Health::Sound { .. } if holds_route(slot) => {
                    effects.push(Effect::Serve(name.clone(), committed.release.clone()));
                }
                Health::Sound { .. } | Health::Quarantined => {}
            }
        }
    }
    for (name, slot) in &state.slots {
        effects.extend(match &slot.stage {
            Stage::Idle => None,
            Stage::Fetching(release) => Some(Effect::Fetch(name.clone(), release.clone())),
            Stage::Staged { .. } => Some(Effect::Begin(name.clone())),
            Stage::Trial { release, phase, .. } => Some(match phase {
                Phase::Loading => Effect::Load(name.clone(), release.clone()),
                Phase::Accepted => Effect::Activate(name.clone(), release.clone()),
                Phase::Probation { .. } => Effect::Watch(name.clone(), release.digest),
            }),
        });
    }
    effects
}

/// Whether the committed release is the one that the package's name leads to.
fn holds_route(slot: &Slot) -> bool {
    match &slot.stage {
        Stage::Idle | Stage::Fetching(_) | Stage::Staged { .. } => true,
        Stage::Trial { rules, phase, .. } => *phase == Phase::Loading && rules.swap == Swap::Handover,
    }
}

/// Releases that the host may have open now; what else it has is to be unloaded.
pub fn loadable(state: &State) -> BTreeSet<(PackageName, Digest)> {
    let mut keep = BTreeSet::new();
    for (name, slot) in &state.slots {
        let trial = match &slot.stage {
            Stage::Trial { release, rules, phase, .. } => {
                keep.insert((name.clone(), release.digest));
                Some((rules.swap, *phase))
            }
            _ => None,
        };
        let stopped_first = matches!(trial, Some((Swap::StopFirst, _)));
        if let Some(committed) = slot.servable()
            && !stopped_first
        {
            keep.insert((name.clone(), committed.release.digest));
        }
    }
    keep
}

/// Releases whose blobs and directories are needed; what else is stored may be collected.
pub fn stored(state: &State) -> BTreeSet<Digest> {
    let mut keep = BTreeSet::new();
    for slot in state.slots.values() {
        keep.extend(slot.committed.as_ref().map(|committed| committed.release.digest));
        keep.extend(slot.previous.as_ref().map(|(release, _)| release.digest));
        keep.extend(slot.stage.release().map(|release| release.digest));
    }
    keep
}
