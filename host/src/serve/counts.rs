//! What became of the requests to a package, and where their time went.
//!
//! Each thread counts for itself: a line of memory that two processors write takes longer to get than the rest of a
//! small request's counting.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::http::StatusCode;

use super::failure::Failure;
use super::reserve;
use crate::clock;

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

/// Where the time of one run went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ran {
    /// Rows of all its requests: 1 where they are not put together.
    pub rows: u64,
    /// Putting them together.
    pub input: Duration,
    /// Module and model.
    pub infer: Duration,
    /// Taking the answer apart.
    pub output: Duration,
}

/// Most sizes of runs that are told apart; what is larger than most is counted with the largest.
const MOST_SIZES: u64 = 1024;

/// Most threads that count for themselves.
const MOST_PARTS: usize = 16;

/// Counters of one package.
#[derive(Debug)]
pub struct Counts(Box<[Part]>);

/// Those of one thread, or of several where there are more than serve. On lines of memory of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    success: AtomicU64,
    failures: [AtomicU64; 4],
    /// Nanoseconds of those that failed.
    failing: AtomicU64,
    /// Nanoseconds, in the order of [`Times`].
    times: [AtomicU64; 4],
    latency: Histogram,
    queue: Histogram,
    compute: Histogram,
    /// Milliseconds since 1970 of the last answer.
    last: AtomicU64,
    runs: Mutex<BTreeMap<u64, Runs>>,
}

/// Runs of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runs {
    /// How many.
    pub count: u64,
    /// Nanoseconds: input, infer, output.
    pub times: [u64; 3],
}

/// Times within each bound and above the one before, and those above the last.
#[derive(Debug, Default)]
struct Histogram([AtomicU64; BOUNDS.len() + 1]);

/// What a [`Histogram`] says.
pub type Parts = [u64; BOUNDS.len() + 1];

impl Histogram {
    fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS.partition_point(|bound| *bound < micros);
        self.0[place].fetch_add(1, Ordering::Relaxed);
    }
}

/// What the counters say at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Answered.
    pub success: u64,
    /// Failed, in the order of [`Reason::ALL`].
    pub failures: [u64; 4],
    /// Nanoseconds of those that failed.
    pub failing: u64,
    /// Nanoseconds: input, queue, infer, output.
    pub times: [u64; 4],
    /// Whole times of answers.
    pub latency: Parts,
    /// Times that they waited.
    pub queue: Parts,
    /// Times of module and model.
    pub compute: Parts,
    /// Milliseconds since 1970 of the last answer; 0 before it.
    pub last: u64,
    /// Runs by their rows.
    pub runs: BTreeMap<u64, Runs>,
}

impl Snapshot {
    /// Adds another package's.
    pub fn add(&mut self, other: &Self) {
        fn each<const N: usize>(ours: &mut [u64; N], theirs: &[u64; N]) {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        }
        self.success += other.success;
        each(&mut self.failures, &other.failures);
        self.failing += other.failing;
        each(&mut self.times, &other.times);
        each(&mut self.latency, &other.latency);
        each(&mut self.queue, &other.queue);
        each(&mut self.compute, &other.compute);
        self.last = self.last.max(other.last);
        for (rows, runs) in &other.runs {
            let ours = self.runs.entry(*rows).or_default();
            ours.count += runs.count;
            each(&mut ours.times, &runs.times);
        }
    }

    /// Runs of any size.
    pub fn executions(&self) -> u64 {
        self.runs.values().map(|runs| runs.count).sum()
    }

    /// Rows of all of them.
    pub fn inferences(&self) -> u64 {
        self.runs.iter().map(|(rows, runs)| rows * runs.count).sum()
    }
}

impl Default for Counts {
    fn default() -> Self {
        // Those that may compute, and the one in reserve.
        let serve = reserve::serving_threads() + 1;
        Self((0..serve.min(MOST_PARTS)).map(|_| Part::default()).collect())
    }
}

impl Counts {
    /// A request begins; it was canceled unless it is ended.
    pub fn begin(&self) -> Attempt<'_> {
        Attempt { counts: self, began: clock::now(), ended: false }
    }

    /// A run gave an answer.
    pub fn ran(&self, ran: Ran) {
        // Nothing panics while it holds the lock, here and below.
        let mut runs = self.own().runs.lock().unwrap_or_else(PoisonError::into_inner);
        let size = runs.entry(ran.rows.clamp(1, MOST_SIZES)).or_default();
        size.count += 1;
        for (sum, part) in size.times.iter_mut().zip([ran.input, ran.infer, ran.output]) {
            *sum += nanos(part);
        }
    }

    /// What they say now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.iter().fold(Snapshot::default(), |mut sum, part| {
            sum.add(&part.snapshot());
            sum
        })
    }

    /// This thread's.
    fn own(&self) -> &Part {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        &self.0[OWN.with(|own| own % self.0.len())]
    }

    fn failed(&self, reason: Reason, took: Duration) {
        let part = self.own();
        part.failures[reason as usize].fetch_add(1, Ordering::Relaxed);
        part.failing.fetch_add(nanos(took), Ordering::Relaxed);
    }
}

impl Part {
    fn snapshot(&self) -> Snapshot {
        fn each<const N: usize>(counts: &[AtomicU64; N]) -> [u64; N] {
            std::array::from_fn(|at| counts[at].load(Ordering::Relaxed))
        }
        Snapshot {
            success: self.success.load(Ordering::Relaxed),
            failures: each(&self.failures),
            failing: self.failing.load(Ordering::Relaxed),
            times: each(&self.times),
            latency: each(&self.latency.0),
            queue: each(&self.queue.0),
            compute: each(&self.compute.0),
            last: self.last.load(Ordering::Relaxed),
            runs: self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// A request that is not over.
pub struct Attempt<'a> {
    counts: &'a Counts,
    began: Instant,
    ended: bool,
}

impl Attempt<'_> {
    /// It was answered, or not.
    pub fn end<T>(mut self, result: &Result<(T, Times), Failure>) {
        self.ended = true;
        match result {
            Err(failure) => self.counts.failed(Reason::of(failure), self.took()),
            Ok((_, times)) => {
                let counts = self.counts.own();
                counts.success.fetch_add(1, Ordering::Relaxed);
                let parts = [times.input, times.queue, times.infer, times.output];
                for (sum, part) in counts.times.iter().zip(parts) {
                    sum.fetch_add(nanos(part), Ordering::Relaxed);
                }
                counts.latency.add(times.total());
                counts.queue.add(times.queue);
                counts.compute.add(times.infer);
                let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
                counts.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        }
    }

    fn took(&self) -> Duration {
        clock::now().saturating_duration_since(self.began)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.counts.failed(Reason::Canceled, self.took());
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
        end(Err(Failure::Full(ms(1))));
        end(Err(Failure::Hopeless(ms(1))));
        end(Err(PredictError::Deadline(ms(1)).into()));
        end(Err(Failure::Path));
        drop(counts.begin());
        let told = counts.snapshot();
        assert_eq!((told.success, told.failures), (3, [2, 1, 1, 1]));
        assert_eq!(told.times, [1_000_000, 60_002_000_000, 3_250_000, 4_000_000]);
        assert!(told.failing > 0 && told.last > 1_700_000_000_000);
        let mut latency = [0; BOUNDS.len() + 1];
        (latency[0], latency[5], latency[15]) = (1, 1, 1);
        assert_eq!(told.latency, latency);
        assert_eq!((told.queue[0], told.queue[3], told.queue[15]), (1, 1, 1));
        assert_eq!((told.compute[0], told.compute[4]), (2, 1));
        let mut twice = told.clone();
        twice.add(&told);
        assert_eq!((twice.success, twice.failures[0], twice.latency[5]), (6, 4, 2));
    }

    #[test]
    fn what_all_threads_count_is_told() {
        let counts = Counts::default();
        let threads = 2 * MOST_PARTS as u64;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    counts.ran(Ran { rows: 3, ..Ran::default() });
                    counts
                        .begin()
                        .end(&Ok(((), Times { infer: Duration::from_millis(2), ..Times::default() })));
                    drop(counts.begin());
                });
            }
        });
        let told = counts.snapshot();
        assert_eq!((told.success, told.failures[1], told.latency[3]), (threads, threads, threads));
        assert_eq!(
            (told.executions(), told.inferences(), told.times[2]),
            (threads, 3 * threads, threads * 2_000_000)
        );
    }

    #[test]
    fn runs_are_counted_by_their_rows() {
        let counts = Counts::default();
        let us = Duration::from_micros;
        counts.ran(Ran { rows: 1, infer: us(5), ..Ran::default() });
        counts.ran(Ran { rows: 4, input: us(1), infer: us(7), output: us(2) });
        counts.ran(Ran { rows: 4, input: us(1), infer: us(9), output: us(2) });
        counts.ran(Ran { rows: u64::MAX, ..Ran::default() });
        let mut told = counts.snapshot();
        assert_eq!(told.runs[&4], Runs { count: 2, times: [2_000, 16_000, 4_000] });
        assert_eq!((told.executions(), told.inferences()), (4, 1 + 8 + MOST_SIZES));
        let other = told.clone();
        told.add(&other);
        assert_eq!((told.executions(), told.runs[&4].times[1]), (8, 32_000));
    }
}
