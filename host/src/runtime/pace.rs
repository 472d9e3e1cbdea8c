//! Whether a package answers quickly: in less time than another thread would take to be woken for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What is quick.
const QUICK: Duration = Duration::from_micros(500);

/// Quick answers in a row that make a package quick. One that is not undoes it.
const IN_A_ROW: u32 = 32;

/// How a package's last requests went.
#[derive(Debug, Default)]
pub struct Pace {
    quick: AtomicU32,
}

impl Pace {
    /// A request took so long.
    pub fn took(&self, time: Duration) {
        let quick = self.quick.load(Ordering::Relaxed);
        let next = if time > QUICK { 0 } else { quick.saturating_add(1).min(IN_A_ROW) };
        // Two at once may count as one: it is quick a little later then. Where nothing changes nothing is
        // written, since all processors read it.
        if next != quick {
            self.quick.store(next, Ordering::Relaxed);
        }
    }

    /// Whether the next one is expected to be quick.
    pub fn is_quick(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_quick_answers_make_it_quick_and_one_slow_one_undoes_that() {
        let pace = Pace::default();
        for _ in 0..IN_A_ROW {
            assert!(!pace.is_quick());
            pace.took(Duration::from_micros(20));
        }
        assert!(pace.is_quick());
        pace.took(QUICK * 2);
        assert!(!pace.is_quick());
        pace.took(Duration::ZERO);
        assert!(!pace.is_quick());
    }
}
