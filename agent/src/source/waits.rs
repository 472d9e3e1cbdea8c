//! How long a source is waited for: as the clock on the wall goes, however many jobs wait for it at once.
//! Waiting for room among our own connections is not waiting for a source.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time in which at least one job waits for a source, and that no frame has accounted for yet.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Time>);

#[derive(Debug, Default)]
struct Time {
    waiting: usize,
    /// Since when somebody waits without a break.
    since: Option<Instant>,
    /// What was waited before that.
    before: Duration,
}

/// One job's part in it.
#[derive(Debug)]
pub(super) struct Waiting {
    of: Arc<Waits>,
    on: bool,
}

impl Waiting {
    pub fn new(of: Arc<Waits>) -> Self {
        Self { of, on: false }
    }

    /// From now on the source is waited for, if it was not before.
    pub fn start(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.on, true) {
            self.time(|time| {
                time.waiting += 1;
                time.since.get_or_insert(now);
            });
        }
    }

    /// From now on something else is waited for, or nothing.
    pub fn pause(&mut self, now: Instant) {
        if std::mem::replace(&mut self.on, false) {
            self.time(|time| {
                time.waiting -= 1;
                if time.waiting == 0 {
                    time.before += time.since.take().map_or(Duration::ZERO, |since| now - since);
                }
            });
        }
    }

    /// Something has come: how long the source was waited for since anything came from it.
    pub fn take(&self, now: Instant) -> Duration {
        self.time(|time| {
            let lately = time.since.as_mut().map(|since| now - std::mem::replace(since, now));
            std::mem::take(&mut time.before) + lately.unwrap_or_default()
        })
    }

    fn time<R>(&self, change: impl FnOnce(&mut Time) -> R) -> R {
        change(&mut self.of.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a job waited for in vain, having failed or been given up, is not held against the next one.
impl Drop for Waiting {
    fn drop(&mut self) {
        self.pause(Instant::now());
        self.time(|time| {
            if time.waiting == 0 {
                time.before = Duration::ZERO;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Patience;
    use super::super::pace::Pace;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is judged of two blobs at once that bring so many bytes a second each, over some minutes.
    fn judged(bytes: u64) -> Option<u64> {
        let (patience, mut pace, mut now) = (Patience::default(), Pace::default(), Instant::now());
        let mut jobs = [pace.waiting(), pace.waiting()];
        for job in &mut jobs {
            job.start(now);
        }
        (0..200).find_map(|_| {
            now += SECOND;
            jobs.iter().find_map(|job| pace.note(job.take(now), bytes, &patience))
        })
    }

    #[test]
    fn what_several_blobs_bring_at_once_is_added_up() {
        assert_eq!(judged(15 * 1024), None, "30 KiB a second");
        assert_eq!(judged(9 * 1024), None, "18 KiB a second");
        let rate = judged(7 * 1024).expect("14 KiB a second");
        assert!((13 * 1024..=14 * 1024).contains(&rate), "{rate}");
    }

    #[test]
    fn time_counts_once_and_only_while_somebody_waits() {
        let (waits, start) = (Arc::new(Waits::default()), Instant::now());
        let at = |seconds| start + SECOND * seconds;
        let (mut a, mut b) = (Waiting::new(waits.clone()), Waiting::new(waits));
        a.start(at(0));
        a.start(at(1));
        b.start(at(2));
        assert_eq!(a.take(at(3)), SECOND * 3);
        a.pause(at(3));
        assert_eq!(b.take(at(5)), SECOND * 2);
        b.pause(at(6));
        b.pause(at(7));
        a.start(at(100));
        assert_eq!(a.take(at(101)), SECOND * 2, "one before the break, one after it");
        a.pause(at(101));
        assert_eq!(a.take(at(200)), Duration::ZERO);
        // What was given up is forgotten with the last that waited.
        a.start(at(200));
        b.start(at(201));
        drop(a);
        assert_eq!(b.take(at(203)), SECOND * 3);
        b.pause(at(210));
        let mut c = Waiting::new(Arc::clone(&b.of));
        drop(b);
        c.start(at(300));
        assert_eq!(c.take(at(301)), SECOND);
    }
}
