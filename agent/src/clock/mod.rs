//! The device's time, and how far it is trusted. The only place that reads a clock.
//!
//! `now = max(floor, system clock when it is synchronised)`. The floor never goes back: it is the
//! largest of the program's build date, the last accepted floor and the verified issue dates. A
//! device that boots in 1970 is a normal case: it goes by its floor. Durations and timeouts go by
//! the time since boot, which nobody sets.

mod kernel;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use selvedge_package::trust::BELIEVED_BELOW;
use selvedge_protocol::message::Clock as Trusted;

/// No device has a clock from before this program was written.
const BUILT: &str = "2026-11-01T00:00:00Z";

/// The floor of a device that has accepted nothing yet.
pub fn built() -> Timestamp {
    BUILT.parse().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The system's clock, where the kernel vouches for it and it is not far before a time that has surely
/// passed: one that is cannot be right, whoever vouches for it. The device's time is the later of the two.
#[allow(clippy::disallowed_methods)]
pub fn synchronised(floor: Timestamp) -> Option<Timestamp> {
    kernel::is_synchronised()
        .then(Timestamp::now)
        .filter(|clock| clock.saturating_add(BELIEVED_BELOW).is_ok_and(|latest| latest >= floor))
}

/// The trust state's floor, for those who judge by time elsewhere. It only grows.
#[derive(Debug, Clone)]
pub struct Floor(Arc<AtomicI64>);

impl Default for Floor {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(built().as_second())))
    }
}

impl Floor {
    /// A time that has surely passed.
    pub fn raise(&self, to: Timestamp) {
        self.0.fetch_max(to.as_second(), Ordering::Relaxed);
    }

    /// The device's time, and whether the kernel vouches for the clock.
    pub fn now(&self) -> (Timestamp, bool) {
        let floor = Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap_or(Timestamp::UNIX_EPOCH);
        let clock = synchronised(floor);
        (clock.map_or(floor, |clock| clock.max(floor)), clock.is_some())
    }
}

/// How far the system's clock is trusted, as reports say it.
pub fn trusted() -> Trusted {
    if kernel::is_synchronised() { Trusted::Synchronised } else { Trusted::Free }
}

/// The system's own date in milliseconds since 1970, right or wrong: for reports, which say how far
/// it is trusted.
#[allow(clippy::disallowed_methods)]
pub fn system_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Time since the machine's boot, sleep included: for timeouts and probations.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_date_is_a_date() {
        assert!(built() > Timestamp::UNIX_EPOCH);
        assert!(since_boot() > Duration::ZERO);
    }
}
