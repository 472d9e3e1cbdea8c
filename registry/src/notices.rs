//! Noticing something about a target, at most once a minute for each kind: what a device or a
//! stranger repeats must not fill the log or cost a durable write each time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use selvedge_package::DeviceId;

use crate::clock;
use crate::error::Error;
use crate::store::Store;

/// A device with another key showed the enrolment token of a target.
pub const ENROLMENT_REFUSED: &str = "enrolment-refused";
/// A device has accepted releases that this registry does not have.
pub const LOST_RELEASES: &str = "lost-releases";
/// A blob that a target needs is missing here, or its file is damaged.
pub const DAMAGED_BLOB: &str = "damaged-blob";

/// Pause between two notices of one kind about one target.
const PAUSE: Duration = Duration::from_secs(60);

/// When what was noticed last. Bounded by the number of targets, which alone are noticed.
#[derive(Debug, Default)]
pub struct Notices {
    last: Mutex<BTreeMap<(DeviceId, &'static str), Instant>>,
}

impl Notices {
    /// Keep a notice about an existing target, unless one of its kind is not a minute old.
    pub async fn keep(
        &self,
        store: &Store,
        device: &DeviceId,
        kind: &'static str,
        what: &str,
    ) -> Result<(), Error> {
        if !self.due(device, kind, clock::instant()) {
            return Ok(());
        }
        tracing::warn!(%device, kind, "{what}");
        let mut change = store.change().await?;
        change.keep_notice(device, kind, what, clock::now().as_millisecond()).await?;
        change.commit().await
    }

    fn due(&self, device: &DeviceId, kind: &'static str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (device.clone(), kind);
        if last.get(&key).is_some_and(|at| now.saturating_duration_since(*at) < PAUSE) {
            return false;
        }
        last.insert(key, now);
        true
    }

    /// Forget a device that was removed.
    pub fn forget(&self, device: &DeviceId) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _), _| known != device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_is_noticed_once_a_minute() {
        let (a, b): (DeviceId, DeviceId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (notices, start) = (Notices::default(), clock::instant());
        assert!(notices.due(&a, DAMAGED_BLOB, start));
        assert!(!notices.due(&a, DAMAGED_BLOB, start + Duration::from_secs(59)));
        assert!(notices.due(&a, ENROLMENT_REFUSED, start) && notices.due(&b, DAMAGED_BLOB, start));
        assert!(notices.due(&a, DAMAGED_BLOB, start + PAUSE));
        notices.forget(&a);
        assert!(notices.due(&a, DAMAGED_BLOB, start) && !notices.due(&b, DAMAGED_BLOB, start));
    }
}
