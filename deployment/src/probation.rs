//! Probation: whether a release keeps to its budget, and how much of its time it has behind it.
//!
//! Time counts while the release answers. A probation that is cut goes on with the next start, from the
//! last eighth that was written down, so that a device which is switched off every night gets to its end.

use crate::state::{Measured, Phase, Rules, Stage, State};

/// Requests from which on a share of failures, or a latency, is judged before the probation is over: the
/// first ones alone say little.
pub const LEAST_JUDGED: u64 = 10;

/// How often the time on probation is written down, at most.
pub const CHECKPOINTS: u64 = 8;

/// Part of a probation that an end in order needs behind it to be forgiven, so that there are at most so
/// many of them.
pub const PAUSES: u64 = 64;

/// Why a release is taken back: a word and a sentence. `None`: it keeps to its budget so far.
pub(crate) fn breach(rules: &Rules, measured: &Measured, over: bool) -> Option<(&'static str, String)> {
    let Measured { requests, failures, latency_ms, memory } = *measured;
    let budget = &rules.budget;
    let all = requests.saturating_add(failures);
    let share = u128::from(failures) * 100;
    if (over || all >= LEAST_JUDGED) && share > u128::from(budget.failures_percent) * u128::from(all) {
        let what = format!(
            "on probation {failures} of {all} requests failed; at most {} % may",
            budget.failures_percent
        );
        return Some(("probation-failures", what));
    }
    let most = u64::from(budget.latency_ms);
    if most > 0 && latency_ms > most && (over || requests >= LEAST_JUDGED) {
        let what = format!(
            "on probation 95 of 100 answers took up to {latency_ms} ms; at most {most} ms are allowed"
        );
        return Some(("probation-latency", what));
    }
    let most = u64::from(budget.memory_mib) << 20;
    if most > 0 && memory > most {
        let what = format!(
            "on probation the host has grown by {} MiB; at most {} MiB are allowed",
            memory.div_ceil(1 << 20),
            budget.memory_mib
        );
        return Some(("probation-memory", what));
    }
    None
}

/// Milliseconds of probation that are over.
pub(crate) fn behind(rules: &Rules, until_ms: u64, now_ms: u64) -> u64 {
    rules.probation_ms.saturating_sub(until_ms.saturating_sub(now_ms))
}

/// What is written down of them next, in steps of so many to a probation; nothing as long as the last note
/// is fresh enough.
pub(crate) fn checkpoint(rules: &Rules, behind: u64, noted: u64, steps: u64) -> Option<u64> {
    let step = (rules.probation_ms / steps).max(1);
    (behind >= noted.saturating_add(step)).then_some(behind)
}

/// The agent ends in order. A start that made headway is forgiven: only those that end before it count
/// as ones that did not end. Headway is bounded by the probation, so this is no way to go on for ever.
pub(crate) fn pause(state: &mut State, now_ms: u64) {
    for slot in state.slots.values_mut() {
        if let Stage::Trial { rules, attempt, phase: Phase::Probation { until_ms }, proved_ms, .. } =
            &mut slot.stage
            && let Some(behind) = checkpoint(rules, behind(rules, *until_ms, now_ms), *proved_ms, PAUSES)
        {
            *proved_ms = behind;
            *attempt = attempt.saturating_sub(1);
        }
    }
}
