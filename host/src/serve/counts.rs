//! What became of the requests to a package, and where their time went: counters without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;

use super::failure::Failure;

/// Bounds of the latency histogram, in microseconds.
pub const BOUNDS: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// Why a request failed, as Triton tells it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Too much to do.
    Rejected,
    /// Its client went away.
    Canceled,
    /// The package.
    Backend,
    /// What the client sent.
    Other,
}

impl Reason {
    /// All, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Canceled, Self::Backend, Self::Other];

    /// Triton's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "REJECTED",
            Self::Canceled => "CANCELED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }

    fn of(failure: &Failure) -> Self {
        match failure.status() {
            _ if failure.is_the_packages() => Self::Backend,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Self::Rejected,
            _ => Self::Other,
        }
    }
}

/// Where the time of an answered request went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Reading its tensors, once its body was here.
    pub input: Duration,
    /// Waiting for its turn.
    pub queue: Duration,
    /// Module and model.
    pub infer: Duration,
    /// Writing its answer.
    pub output: Duration,
}

impl Times {
    fn total(&self) -> Duration {
        self.input + self.queue + self.infer + self.output
    }
}

/// Counters of one package.
#[derive(Debug, Default)]
pub struct Counts {
    success: AtomicU64,
    failures: [AtomicU64; 4],
    /// Microseconds, in the order of [`Times`].
    times: [AtomicU64; 4],
    /// Answers within each bound and above the one before, and those above the last.
    latency: [AtomicU64; BOUNDS.len() + 1],
}

/// What the counters say at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Answered.
    pub success: u64,
    /// Failed, in the order of [`Reason::ALL`].
    pub failures: [u64; 4],
    /// Microseconds: input, queue, infer, output.
    pub times: [u64; 4],
    /// Answers in each part of the histogram.
    pub latency: [u64; BOUNDS.len() + 1],
}

impl Snapshot {
    /// Adds another package's.
    pub fn add(&mut self, other: &Self) {
        fn each<const N: usize>(ours: &mut [u64; N], theirs: &[u64; N]) {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        }
        self.success += other.success;
        each(&mut self.failures, &other.failures);
        each(&mut self.times, &other.times);
        each(&mut self.latency, &other.latency);
    }
}

impl Counts {
    /// A request begins; it was canceled unless it is ended.
    pub fn begin(&self) -> Attempt<'_> {
        Attempt { counts: self, ended: false }
    }

    /// What they say now.
    pub fn snapshot(&self) -> Snapshot {
        fn each<const N: usize>(counts: &[AtomicU64; N]) -> [u64; N] {
            std::array::from_fn(|at| counts[at].load(Ordering::Relaxed))
        }
        Snapshot {
            success: self.success.load(Ordering::Relaxed),
            failures: each(&self.failures),
            times: each(&self.times),
            latency: each(&self.latency),
        }
    }

    fn failed(&self, reason: Reason) {
        self.failures[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A request that is not over.
pub struct Attempt<'a> {
    counts: &'a Counts,
    ended: bool,
}

impl Attempt<'_> {
    /// It was answered, or not.
    pub fn end<T>(mut self, result: &Result<(T, Times), Failure>) {
        self.ended = true;
        let counts = self.counts;
        match result {
            Err(failure) => counts.failed(Reason::of(failure)),
            Ok((_, times)) => {
                counts.success.fetch_add(1, Ordering::Relaxed);
                let parts = [times.input, times.queue, times.infer, times.output];
                for (sum, part) in counts.times.iter().zip(parts) {
                    sum.fetch_add(micros(part), Ordering::Relaxed);
                }
                let total = micros(times.total());
                let place = BOUNDS.partition_point(|bound| *bound < total);
                counts.latency[place].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.counts.failed(Reason::Canceled);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::PredictError;

    #[test]
    fn each_end_is_counted_once() {
        let counts = Counts::default();
        let end = |result: Result<Times, Failure>| counts.begin().end(&result.map(|times| ((), times)));
        let ms = Duration::from_millis;
        end(Ok(Times { input: ms(1), queue: ms(2), infer: ms(3), output: ms(4) }));
        end(Ok(Times { infer: Duration::from_micros(250), ..Times::default() }));
        end(Ok(Times { queue: Duration::from_secs(60), ..Times::default() }));
        end(Err(Failure::Full));
        end(Err(Failure::Busy));
        end(Err(PredictError::Deadline(ms(1)).into()));
        end(Err(Failure::Path));
        drop(counts.begin());
        let told = counts.snapshot();
        assert_eq!((told.success, told.failures), (3, [2, 1, 1, 1]));
        assert_eq!(told.times, [1_000, 60_002_000, 3_250, 4_000]);
        let mut latency = [0; BOUNDS.len() + 1];
        (latency[0], latency[5], latency[15]) = (1, 1, 1);
        assert_eq!(told.latency, latency);
        let mut twice = told.clone();
        twice.add(&told);
        assert_eq!((twice.success, twice.failures[0], twice.latency[5]), (6, 4, 2));
    }
}
