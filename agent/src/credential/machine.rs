//! Which credential is shown, and when the next one is asked for: decisions alone, time in the events.
//!
//! ```text
//!           Tick, due          Certificate            Proven
//! proven ─────────────▶ request ─────────▶ next, shown ─────▶ proven
//!                                             │  ▲
//!                                      Missed │  │ Tick, after a pause
//!                                             ▼  │
//!                                        proven, shown
//! ```
//! Nothing that has worked is let go of before its successor has, except for a new enrolment. After a
//! kill the same is derived from what is kept: [`Machine::start`].

use std::time::Duration;

use super::{Credential, Kept, Origin, Request};
use jiff::Timestamp;

/// Attempts to connect that fail before the other one is shown.
const MISSES: u32 = 3;
/// Pauses before the new one is shown again while the old one works.
const PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(6 * 3600));
/// How often the new one is shown before another one is asked for.
const ROUNDS: u32 = 4;
/// How long one that has just proved itself is used at least, or a quarter of its life if that is less:
/// where the clock is wrong, each would be due as it comes.
const SHORTEST_USE: Duration = Duration::from_secs(3600);

/// Which one is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Using {
    /// The one that has worked, if there is one.
    Proven,
    /// The one that is to take its place.
    Next,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time has passed.
    Tick {
        /// Since boot.
        at: Duration,
        /// The time, as far as it is known; see [`super::certificate::Now`].
        now: Timestamp,
        /// Since the agent's start: where nobody knows the time, a certificate ages by its use in this run.
        ran: Duration,
    },
    /// A key was made, as [`Effect::MakeRequest`] asked.
    Made(Request),
    /// A certificate came that is this device's, for the key of the request.
    Certificate(Credential),
    /// Something that the Director signed has come over a connection that shows the one in use.
    Proven,
    /// There was no connection, or none that proved anything.
    Missed {
        /// Since boot.
        at: Duration,
        /// The time, as far as it is known.
        now: Timestamp,
    },
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Write down what is kept, before anything else.
    Keep,
    /// Make a key and feed [`Event::Made`].
    MakeRequest,
    /// Connect anew: another one is shown.
    Connect,
}

/// The state: what is kept, and how the attempts of this run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    kept: Kept,
    using: Using,
    /// Failed attempts in a row with the one in use.
    misses: u32,
    /// Whether the one in use has proved itself in this run.
    works: bool,
    /// How often the old one has worked after the new one had not.
    rounds: u32,
    /// When to show the new one again.
    again: Option<Duration>,
    /// Since when the proven one is used in this run, as time since the agent's start.
    used_from: UsedFrom,
}

/// Since when a credential is used in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsedFrom {
    /// It was there when the agent started.
    Start,
    /// It has just proved itself; the next tick says when that was.
    JustNow,
    /// This long after the start.
    Later(Duration),
}

impl Machine {
    /// From what is kept. A new one is shown first: it was checked before it was kept.
    pub fn start(kept: Kept) -> Self {
        let using = if kept.next.is_some() { Using::Next } else { Using::Proven };
        Self { kept, using, misses: 0, works: false, rounds: 0, again: None, used_from: UsedFrom::Start }
    }

    /// What is to be kept.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Which one is shown.
    pub fn using(&self) -> Using {
        self.using
    }

    /// The one that is shown, if any.
    pub fn shown(&self) -> Option<&Credential> {
        match self.using {
            Using::Proven => self.kept.proven.as_ref(),
            Using::Next => self.kept.next.as_ref(),
        }
    }

    /// When to feed a [`Event::Tick`] at the latest.
    pub fn wake_at(&self) -> Option<Duration> {
        self.again
    }

    /// Takes an event; what is to be done comes back, in order.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Tick { at, now, ran } => self.tick(at, now, ran),
            Event::Made(request) if self.kept.next.is_none() && self.kept.request.is_none() => {
                self.kept.request = Some(request);
                vec![Effect::Keep]
            }
            Event::Certificate(credential)
                if self.kept.request.as_ref().is_some_and(|request| request.key == credential.key) =>
            {
                self.kept.request = None;
                self.kept.next = Some(credential);
                self.rounds = 0;
                self.show(Using::Next, &[Effect::Keep, Effect::Connect])
            }
            Event::Proven => self.proven(),
            Event::Missed { at, now } => self.missed(at, now),
            // It comes twice, or too late.
            Event::Made(_) | Event::Certificate(_) => Vec::new(),
        }
    }

    fn tick(&mut self, at: Duration, now: Timestamp, ran: Duration) -> Vec<Effect> {
        if self.again.is_some_and(|again| again <= at) {
            self.again = None;
            if self.using == Using::Proven && self.kept.next.is_some() {
                return self.show(Using::Next, &[Effect::Connect]);
            }
        }
        if self.used_from == UsedFrom::JustNow {
            self.used_from = UsedFrom::Later(ran);
        }
        if self.wants(now, ran) { vec![Effect::MakeRequest] } else { Vec::new() }
    }

    /// Whether one is to be asked for.
    fn wants(&self, now: Timestamp, ran: Duration) -> bool {
        let Kept { proven, next, request } = &self.kept;
        let due = |credential: &Credential| {
            let life = credential.not_after.duration_since(credential.not_before);
            let life = Duration::try_from(life).unwrap_or_default();
            let (used, rested) = match self.used_from {
                UsedFrom::Start => (ran, true),
                UsedFrom::JustNow => (Duration::ZERO, false),
                UsedFrom::Later(from) => {
                    let used = ran.saturating_sub(from);
                    (used, used >= SHORTEST_USE.min(life / 4))
                }
            };
            credential.origin == Origin::Enrolment
                || used >= life / 3 * 2
                || rested && credential.renew_at() <= now
        };
        next.is_none() && request.is_none() && proven.as_ref().is_none_or(due)
    }

    fn proven(&mut self) -> Vec<Effect> {
        self.misses = 0;
        let first = !std::mem::replace(&mut self.works, true);
        match self.using {
            Using::Next if self.kept.next.is_some() => {
                self.kept.proven = self.kept.next.take();
                (self.using, self.rounds, self.again) = (Using::Proven, 0, None);
                self.used_from = UsedFrom::JustNow;
                vec![Effect::Keep]
            }
            Using::Proven if self.kept.next.is_some() && first => {
                self.rounds += 1;
                if self.rounds < ROUNDS {
                    return Vec::new();
                }
                // Something is wrong with the new one.
                self.kept.next = None;
                (self.rounds, self.again) = (0, None);
                vec![Effect::Keep]
            }
            _ => Vec::new(),
        }
    }

    fn missed(&mut self, at: Duration, now: Timestamp) -> Vec<Effect> {
        self.misses = self.misses.saturating_add(1);
        let old = self.kept.proven.as_ref().filter(|old| !old.has_expired(now));
        if self.using == Using::Proven || self.misses < MISSES || old.is_none() {
            return Vec::new();
        }
        let pause = PAUSES.0.saturating_mul(1 << self.rounds.min(16));
        self.again = Some(at + pause.min(PAUSES.1));
        self.show(Using::Proven, &[Effect::Connect])
    }

    fn show(&mut self, using: Using, effects: &[Effect]) -> Vec<Effect> {
        self.using = using;
        self.misses = 0;
        self.works = false;
        effects.to_vec()
    }
}

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;
