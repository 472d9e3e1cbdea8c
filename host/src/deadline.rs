//! When a request has to be answered, and when its package has had all the time that it is given.
//!
//! They differ where a client gives less time than the package's author did, or where a request had to wait
//! for its turn. Guests and models are told to stop at the first. Only a model that runs on after the second
//! is one that cannot be stopped, for which the host ends: no client can bring that about by giving little, and
//! no other request by having the session first.

use std::time::{Duration, Instant};

use crate::clock;

/// The two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When it began to count.
    pub from: Instant,
    /// Nobody waits for the answer after this.
    pub answer: Instant,
    /// The package had all of its time by then; never before `answer`.
    pub end: Instant,
    /// All of its time.
    pub whole: Duration,
}

impl Deadline {
    /// For a package that may take `whole` from `now` on, of which somebody waits until `answer`.
    pub fn new(now: Instant, answer: Instant, whole: Duration) -> Self {
        let end = now + whole;
        Self { from: now, answer: answer.min(end), end, whole }
    }

    /// The time that there was.
    pub fn allowed(&self) -> Duration {
        self.answer.saturating_duration_since(self.from)
    }

    /// For a model's run that begins `now`, after it may have waited for a session that another one had: what it
    /// waited is not its own time.
    #[must_use]
    pub fn begun(self, now: Instant) -> Self {
        Self { end: self.end.max(now + self.whole), ..self }
    }

    /// Cut to `most` from when it began to count.
    #[must_use]
    pub fn within(self, most: Duration) -> Self {
        let end = self.end.min(self.from + most);
        Self { answer: self.answer.min(end), end, whole: self.whole.min(most), ..self }
    }
}

/// The time that a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// So much, from when somebody takes it up.
    For(Duration),
    /// It counts already.
    Until(Deadline),
}

impl Time {
    /// Its deadline, where it is taken up `now`.
    pub fn deadline(self, now: Instant) -> Deadline {
        match self {
            Self::For(whole) => Deadline::new(now, now + whole, whole),
            Self::Until(deadline) => deadline,
        }
    }
}

impl From<Duration> for Time {
    fn from(time: Duration) -> Self {
        Self::For(time)
    }
}

impl From<Deadline> for Time {
    fn from(deadline: Deadline) -> Self {
        Self::Until(deadline)
    }
}

/// All the time that there is.
impl From<Duration> for Deadline {
    fn from(whole: Duration) -> Self {
        Time::For(whole).deadline(clock::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_longer_than_the_package_may_take() {
        let (now, second) = (clock::now(), Duration::from_secs(1));
        let short = Deadline::new(now, now + second, 60 * second);
        assert!(short.answer == now + second && short.end == now + 60 * second && short.allowed() == second);
        let long = Deadline::new(now, now + 3600 * second, second);
        assert!(long.answer == long.end && long.allowed() == second);
        let cut = Deadline::from(3600 * second).within(second);
        assert!(cut.answer == cut.end && cut.end <= clock::now() + second);
        assert_eq!(short.within(3600 * second), short);
        let begun = Deadline::from(10 * second).within(3 * second).begun(now + 60 * second);
        assert!(begun.end == now + 63 * second && begun.answer <= clock::now() + 3 * second);
    }
}
