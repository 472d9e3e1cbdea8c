//! Who is held to have brought the host down, where it did not say itself.
//!
//! What it was opening when it broke, or what is on trial in it, since that is what has changed; the only
//! package, where there is only one. A host that the kernel killed for want of memory has broken, too. One
//! that was killed by somebody else has not: what is on trial starts again, a bounded number of times, but
//! what is committed and was being opened is counted, or it would be opened and killed for ever.

use std::time::Duration;

use selvedge_deployment::{CRASH_WINDOW_MS, Event, Phase, Stage};
use selvedge_package::Digest;

use super::operate::{Operation, Role};
use super::{Activation, now_ms};
use crate::clock;
use crate::supervise::Fate;

/// Within this time after it broke off an exchange the end of a host is told. Nothing else is asked of it
/// meanwhile: what it would be opening then would be held to have ended it.
const TOLD: Duration = Duration::from_secs(5);

/// Loads of the longest kind that crashes count together over: those of one that hangs each time, and what
/// is opened before it.
const LOADS: u64 = 4;

/// Within which time crashes count together where a load may take so long.
fn within_ms(load: Duration) -> u64 {
    let load = u64::try_from(load.as_millis()).unwrap_or(u64::MAX);
    CRASH_WINDOW_MS.max(load.saturating_mul(LOADS))
}

impl Activation {
    /// The host has ended, and these are held to have done it.
    pub(super) fn host_died(&self, suspects: Vec<Digest>) -> Event {
        Event::HostDied { suspects, now_ms: now_ms(), within_ms: within_ms(self.parts.load) }
    }

    /// The release that is held to have ended the host.
    pub(super) fn blamed(&self, fate: Fate) -> Option<Digest> {
        let broken_off = self.broken_off.filter(|_| self.word_comes_by().is_some());
        let opening = self.operation.as_ref().and_then(Operation::loading);
        let loading = broken_off.map(|(digest, role, _)| (digest, role)).or(opening);
        let broke = match fate {
            Fate::Faulted | Fate::Starved => true,
            Fate::Killed => self.memory_ran_out(),
            Fate::Orderly => return None,
        };
        match loading {
            Some((digest, role)) if broke || role == Role::Committed => Some(digest),
            Some(_) => None,
            None if broke => self.on_trial().or_else(|| self.host.only_one()),
            None => None,
        }
    }

    /// Until when the end of the host is awaited, which has broken off an exchange.
    pub(super) fn word_comes_by(&self) -> Option<Duration> {
        let until = self.broken_off.map(|(_, _, at)| at + TOLD)?;
        (clock::since_boot() < until).then_some(until)
    }

    /// Whether the kernel has killed something for want of memory since the host was last looked at.
    fn memory_ran_out(&self) -> bool {
        self.parts.memory.kills().zip(self.kills).is_some_and(|(now, then)| now > then)
    }

    /// The release on trial that the host has open.
    fn on_trial(&self) -> Option<Digest> {
        self.state.slots.iter().find_map(|(name, slot)| match &slot.stage {
            Stage::Trial { release, phase: Phase::Accepted | Phase::Probation { .. }, .. }
                if self.host.find(name, &release.digest).is_some() =>
            {
                Some(release.digest)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_hangs_for_long_is_counted_all_the_same() {
        assert_eq!(within_ms(Duration::from_secs(600)), CRASH_WINDOW_MS);
        for seconds in [1800, 3600, 86_400] {
            // Each of three crashes comes after a load of its own.
            assert!(within_ms(Duration::from_secs(seconds)) > seconds * 1000 * 2 + 600_000, "{seconds}");
        }
        assert_eq!(within_ms(Duration::MAX), u64::MAX);
    }
}
