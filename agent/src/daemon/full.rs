//! A full disk: what is on its way is given up for it, and the rest waits until there is room.
//!
//! The host goes on serving and the device goes on saying that it is there. What was to be written
//! down is tried again after pauses, so that room made by a person is found without a restart.

use std::time::Duration;

use super::Daemon;
use crate::activate::Told;
use crate::clock;
use crate::failure::chain;
use crate::store::StoreError;

/// First and longest pause before the disk is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How often it is seen to that there is a reserve.
const RESERVE: Duration = Duration::from_secs(30);
/// Most events that wait for room; the oldest go first.
const MOST_TOLD: usize = 64;

/// How full it is.
#[derive(Debug, Default)]
pub(super) struct Full {
    /// Until when nothing is written, and the pause that it is.
    until: Option<(Duration, Duration)>,
    /// When to see to the reserve.
    reserve_at: Duration,
    /// Whether there is none.
    bare: bool,
    /// Whether it was reported that the disk is full, since there was last a reserve.
    reported: bool,
}

impl Full {
    /// Begins a pause, longer than the one before; returns its end.
    fn pause(&mut self, now: Duration) -> Duration {
        let pause = match self.until {
            // One pause holds for all that fails during it.
            Some((until, pause)) if now < until => return until.max(now + pause.min(PAUSES.0)),
            Some((_, pause)) => (pause * 2).min(PAUSES.1),
            None => PAUSES.0,
        };
        self.until = Some((now + pause, pause));
        now + pause
    }

    /// Whether a pause is on.
    pub fn waits(&self, now: Duration) -> bool {
        self.until.is_some_and(|(until, _)| now < until)
    }

    /// Everything could be written.
    pub fn over(&mut self) {
        self.until = None;
    }

    /// When to look again.
    pub fn wake_at(&self) -> Option<Duration> {
        let reserve = self.bare.then_some(self.reserve_at);
        self.until.map(|(until, _)| until).into_iter().chain(reserve).min()
    }

    /// What a person should know.
    pub fn trouble(&self) -> Option<String> {
        (self.until.is_some() || self.bare)
            .then(|| "the disk is full: nothing new is fetched until there is room".to_owned())
    }
}

impl Daemon {
    /// Takes an error that a full disk caused; hands any other back.
    pub(super) fn wait_for_room(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_full() {
            return Err(error);
        }
        let now = clock::since_boot();
        if !self.full.waits(now) {
            tracing::error!("{}: waiting for room", chain(&error));
        }
        self.dirty = true;
        let until = self.full.pause(now);
        self.activation.make_room(until);
        Ok(())
    }

    /// Reports that the reserve was taken, and makes it again when there is room.
    pub(super) fn mind_the_reserve(&mut self, now: Duration) {
        if self.store.database().found_full() && !self.full.reported {
            self.full.reported = true;
            self.full.bare = true;
            self.full.reserve_at = now + RESERVE;
            if !self.full.waits(now) {
                self.activation.make_room(now);
            }
            let what = "the disk is full: what was on its way was dropped; make room and it is fetched again";
            self.told.push_back(Told { kind: "disk-full", package: None, what: what.to_owned() });
            self.dirty = true;
        }
        if now >= self.full.reserve_at {
            self.full.reserve_at = now + RESERVE;
            match self.store.keep_reserve() {
                Ok(there) => {
                    self.full.bare = !there;
                    self.full.reported &= !there;
                }
                Err(error) => tracing::warn!("{}", chain(&error)),
            }
        }
    }

    /// Writes down what is to be reported. What does not get through stays.
    pub(super) fn tell(&mut self) -> Result<(), StoreError> {
        let surplus = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..surplus);
        while let Some(told) = self.told.front().cloned() {
            self.reporter.event(told.kind, told.package.as_ref(), told.what)?;
            self.told.pop_front();
            self.dirty = true;
        }
        Ok(())
    }
}
