//! A disk that takes no writes: full, read-only, or broken.
//!
//! The host goes on serving and the device goes on saying that it is there. What was to be written
//! down is tried again after pauses, so that room made by a person, or a disk that was mounted anew,
//! is found without a restart. For a full disk what is on its way is given up. A disk that failed
//! otherwise has to prove itself first, and what it then holds is what counts.

use std::time::Duration;

use super::Daemon;
use crate::activate::Told;
use crate::clock;
use crate::failure::chain;
use crate::identity::distrust;
use crate::store::{Key, StoreError};

/// First and longest pause before the disk is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How often it is seen to that there is a reserve.
const RESERVE: Duration = Duration::from_secs(30);
/// Most events that wait for room; the oldest go first.
const MOST_TOLD: usize = 64;

/// How the disk does.
#[derive(Debug, Default)]
pub(super) struct DiskHealth {
    /// Until when nothing is written, and the pause that it is.
    until: Option<(Duration, Duration)>,
    /// When to see to the reserve.
    reserve_at: Duration,
    /// Whether there is none.
    bare: bool,
    /// Whether it was reported that the disk is full, since there was last a reserve.
    reported: bool,
    /// What it failed with, where it is not only full; until it has proved itself.
    broken: Option<String>,
}

impl DiskHealth {
    /// Begins a pause, longer than the one before; returns its end.
    fn pause(&mut self, now: Duration) -> Duration {
        let pause = match self.until {
            // One pause holds for all that fails during it.
            Some((until, _)) if now < until => return until,
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

    /// Whether what is on it is not even read.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether a pause was begun and nothing could be written since.
    pub fn is_waiting(&self) -> bool {
        self.until.is_some()
    }

    /// When to look again.
    pub fn wake_at(&self) -> Option<Duration> {
        let reserve = self.bare.then_some(self.reserve_at);
        self.until.map(|(until, _)| until).into_iter().chain(reserve).min()
    }

    /// What a person should know.
    pub fn trouble(&self) -> Option<String> {
        if let Some(why) = &self.broken {
            return Some(format!(
                "the disk fails ({why}): nothing is written until it works again, which is tried every minute; \
                 what is committed is served"
            ));
        }
        (self.until.is_some() || self.bare)
            .then(|| "the disk is full: nothing new is fetched until there is room".to_owned())
    }
}

impl Daemon {
    /// Takes an error of the store: what could not be written waits.
    pub(super) fn endure(&mut self, error: StoreError) {
        let now = clock::since_boot();
        let waits = self.disk.waits(now);
        let until = self.disk.pause(now);
        let why = chain(&error);
        self.dirty = true;
        if error.is_full() && !self.disk.is_broken() {
            if !waits {
                tracing::error!("{why}: waiting for room");
            }
            self.activation.make_room(until);
            return;
        }
        if !waits {
            tracing::error!("{why}: waiting for a disk that works");
        }
        self.breaks(why);
        self.activation.halt(until);
    }

    /// The disk has to prove itself before anything is written again.
    pub(super) fn breaks(&mut self, why: String) {
        if self.disk.broken.replace(why.clone()).is_none() {
            self.told.push_back(Told { kind: "disk-failed", package: None, what: why });
        }
    }

    /// After a disk has failed: has it prove itself, and goes on from what it really holds. A write that
    /// failed may have become durable all the same.
    pub(super) fn recover(&mut self) -> Result<(), StoreError> {
        if !self.disk.is_broken() {
            return Ok(());
        }
        let database = self.store.database();
        database.prove()?;
        let held = match database.read(Key::Trust) {
            Ok(held) => held,
            Err(error @ StoreError::Record { .. }) => {
                self.distrust = Some(distrust(&error));
                None
            }
            Err(error) => return Err(error),
        };
        self.activation.reload()?;
        if held != self.trust {
            self.trust = held;
            (self.fresh, self.refused) = (Some(false), None);
        }
        if let Some(trust) = &self.trust {
            self.floor.raise(trust.floor());
        }
        self.latched.clone_from(&self.distrust);
        let failed = self.disk.broken.take().unwrap_or_default();
        tracing::info!("the disk works again");
        let what = format!("the disk works again, after it failed: {failed}");
        self.told.push_back(Told { kind: "disk-recovered", package: None, what });
        self.dirty = true;
        // What was offered meanwhile was not accepted: whoever offers is to know what is held.
        self.link.introduce();
        self.activation.pursue()
    }

    /// Reports that the reserve was taken, and makes it again when there is room.
    pub(super) fn mind_the_reserve(&mut self, now: Duration) {
        if self.store.database().found_full() && !self.disk.reported {
            self.disk.reported = true;
            self.disk.bare = true;
            self.disk.reserve_at = now + RESERVE;
            if !self.disk.waits(now) {
                self.activation.make_room(now);
            }
            let what = "the disk is full: what was on its way was dropped; make room and it is fetched again";
            self.told.push_back(Told { kind: "disk-full", package: None, what: what.to_owned() });
            self.dirty = true;
        }
        if now >= self.disk.reserve_at {
            self.disk.reserve_at = now + RESERVE;
            match self.store.keep_reserve() {
                Ok(there) => {
                    self.disk.bare = !there;
                    self.disk.reported &= !there;
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
