//! Whether a source is worth waiting for, where there is another way: a server that gives a little now and
//! then, for want of power or of good will, would hold a blob for days.
//!
//! Only the time in which the source is waited for counts, over all blobs that it gives: [`Waits`].

use std::sync::Arc;
use std::time::Duration;

use super::Patience;
use super::waits::{Waiting, Waits};

/// What a source has given of late.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waited: Duration,
    bytes: u64,
    waits: Arc<Waits>,
}

impl Pace {
    /// For a job that is to ask it.
    pub fn waiting(&self) -> Waiting {
        Waiting::new(Arc::clone(&self.waits))
    }

    /// So many bytes came, and were waited for so long. Bytes a second, where that is to be judged and is
    /// too little.
    pub fn note(&mut self, waited: Duration, bytes: u64, patience: &Patience) -> Option<u64> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < patience.pace {
            return None;
        }
        let (waited, bytes) = (std::mem::take(&mut self.waited), std::mem::take(&mut self.bytes));
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = bytes.saturating_mul(1000) / millis;
        (rate < patience.lowest).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_judged_once_in_a_while_by_what_came_in_that_time() {
        let patience = Patience::default();
        let mut pace = Pace::default();
        let (second, block) = (Duration::from_secs(1), 16 * 1024);
        for _ in 0..200 {
            assert_eq!(pace.note(second, block, &patience), None, "just enough");
        }
        let mut pace = Pace::default();
        for _ in 0..59 {
            assert_eq!(pace.note(second, 1000, &patience), None, "too early");
        }
        assert_eq!(pace.note(second, 1000, &patience), Some(1000));
        assert_eq!(pace.note(second, 1000, &patience), None, "it begins anew");
        // One that has waited long begins no window of its own.
        assert_eq!(pace.note(second * 600, block * 9600, &patience), None);
    }
}
