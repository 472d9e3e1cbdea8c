//! How many bytes a day blobs may bring, and at which hours: for links that cost money.
//!
//! What is received is counted, control traffic, too, which is never held back; blobs wait where the
//! day's budget is used up, on every way by which they come. A day is one of UTC where the kernel
//! vouches for the clock, else 24 hours of running. The count survives restarts: before bytes are
//! asked for, more than they are is written down as used, in steps, so that a power cut at any moment
//! loses a part of the budget and never exceeds it. Nothing here reads a clock or writes: the driver
//! does.

mod windows;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use windows::{WindowError, Windows};

const DAY: Duration = Duration::from_secs(24 * 3600);
const SECONDS: i64 = 24 * 3600;
/// How often time of running is written down while it is what is waited for: a device that is switched
/// off every night gets to the end of its day.
const NOTED: Duration = Duration::from_secs(3600);
/// Bounds of the steps in which use is written down ahead: the smaller, the more writes; the larger,
/// the more a power cut loses.
const STEP: (u64, u64) = (256 << 10, 8 << 20);
/// Bytes of TCP payload of a packet, and of headers of IP and TCP with time stamps; a TLS record's own.
const SEGMENT: u64 = 1448;
const HEADERS: u64 = 52;
const RECORD: u64 = 29;

/// What the person who runs the device allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bytes a day; `None`: any number.
    pub per_day: Option<u64>,
    /// When; none: always.
    pub windows: Windows,
}

/// What is kept across restarts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The day of UTC, counted from 1970; `None` where none is known.
    day: Option<i64>,
    /// Time of running that counts as this day, in milliseconds, where the clock is not trusted.
    running_ms: u64,
    /// Bytes that are used, or written down as used ahead.
    bytes: u64,
}

/// [`Used`] as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub enum UsedRecord {
    /// First format.
    V1(Used),
}

impl From<Used> for UsedRecord {
    fn from(used: Used) -> Self {
        Self::V1(used)
    }
}

impl From<UsedRecord> for Used {
    fn from(UsedRecord::V1(used): UsedRecord) -> Self {
        used
    }
}

/// Why blobs wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The day's budget is used up.
    Budget,
    /// It is not the hour.
    Window,
}

/// The budget of a device.
#[derive(Debug)]
pub struct Budget {
    settings: Settings,
    /// As it was last written down.
    kept: Used,
    /// Bytes that are really used.
    bytes: u64,
    /// The same without what is durable.
    day: Option<i64>,
    running: Duration,
    /// When this was last told the time, and what it was where it is trusted.
    looked: Duration,
    trusted: Option<Timestamp>,
}

impl Budget {
    /// Goes on where the last run ended.
    pub fn resume(settings: Settings, kept: Option<Used>, now: Duration) -> Self {
        let kept = kept.unwrap_or_default();
        Self {
            settings,
            bytes: kept.bytes,
            day: kept.day,
            running: Duration::from_millis(kept.running_ms),
            kept,
            looked: now,
            trusted: None,
        }
    }

    /// Whether there is any limit.
    pub fn limits(&self) -> bool {
        self.settings.per_day.is_some() || !self.settings.windows.is_empty()
    }

    /// It is `now`, and that time of UTC where the clock is trusted.
    pub fn pass(&mut self, now: Duration, trusted: Option<Timestamp>) {
        let passed = now.saturating_sub(self.looked);
        self.looked = now;
        self.trusted = trusted;
        let today = trusted.map(day_of);
        if today.is_none() || self.day > today {
            // No clock, or one that has gone back: it may have been years ahead.
            self.running += passed;
            if self.running >= DAY {
                self.running = Duration::ZERO;
                self.day = today;
                self.bytes = 0;
            }
            return;
        }
        if self.day.is_some() && self.day < today {
            self.bytes = 0;
        }
        // What was counted by running counts for the day on which the clock became right.
        self.day = today;
        self.running = Duration::ZERO;
    }

    /// Bytes were received.
    pub fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Bytes that may still be asked for, what is in flight included; `None`: any number.
    pub fn rest(&self) -> Option<u64> {
        match (self.hold(), self.settings.per_day) {
            (Some(_), _) => Some(0),
            (None, None) => None,
            (None, Some(most)) => {
                // What is not written down as used may not be used.
                let durable = if self.is_of_today() { self.kept.bytes } else { 0 };
                Some(durable.min(most).saturating_sub(self.bytes))
            }
        }
    }

    /// What has to be durable before more may be asked for, if anything has.
    pub fn ahead(&self) -> Option<Used> {
        let most = self.settings.per_day?;
        if self.hold().is_some() {
            let noted = Duration::from_millis(self.kept.running_ms);
            return (self.running >= noted + NOTED).then(|| self.used(self.bytes));
        }
        let step = (most / 64).clamp(STEP.0, STEP.1);
        let short = !self.is_of_today() || (self.kept.bytes < most && self.rest()? < step / 2);
        short.then(|| self.used(self.bytes.saturating_add(step).min(most)))
    }

    /// What is to be kept at an orderly end, where that is not what was written down ahead.
    pub fn at_the_end(&self) -> Option<Used> {
        let used = self.used(self.bytes);
        (self.settings.per_day.is_some() && used != self.kept).then_some(used)
    }

    /// That is durable now.
    pub fn kept(&mut self, used: Used) {
        self.kept = used;
    }

    /// Why blobs wait, if they do.
    pub fn hold(&self) -> Option<Hold> {
        // Less than any block brings is nothing.
        if self.settings.per_day.is_some_and(|most| self.bytes.saturating_add(SMALLEST) > most) {
            return Some(Hold::Budget);
        }
        let open = self.minute().is_none_or(|minute| self.settings.windows.has(minute));
        (!open).then_some(Hold::Window)
    }

    /// When that may be otherwise: to be told the time then.
    pub fn wake_at(&self) -> Option<Duration> {
        let window = self.minute().and_then(|minute| self.settings.windows.changes_in(minute));
        let window = window.map(|minutes| {
            let gone = self.trusted.map_or(0, |at| at.as_second().rem_euclid(60));
            Duration::from_secs(u64::from(minutes) * 60 - gone.unsigned_abs().min(59))
        });
        let budget = (self.hold() == Some(Hold::Budget)).then(|| match self.trusted {
            Some(at) if self.day <= Some(day_of(at)) => {
                Duration::from_secs((SECONDS - at.as_second().rem_euclid(SECONDS)).unsigned_abs())
            }
            _ => DAY.saturating_sub(self.running),
        });
        window.into_iter().chain(budget).min().map(|wait| self.looked + wait)
    }

    /// Why blobs wait and until when, for people.
    pub fn trouble(&self) -> Option<String> {
        let hold = self.hold()?;
        let until = self.wake_at().map_or(Duration::ZERO, |at| at.saturating_sub(self.looked));
        let when = match self.trusted.and_then(|at| at.checked_add(until).ok()) {
            Some(at) => format!("at {}", at.strftime("%Y-%m-%dT%H:%MZ")),
            None => {
                format!("after {} minutes more of running (the clock is not trusted)", until.as_secs() / 60)
            }
        };
        Some(match hold {
            Hold::Budget => format!(
                "budget: the {} MiB that packages may bring a day (data-budget-mib) are used up; fetching \
                 goes on {when}",
                self.settings.per_day.unwrap_or(0) >> 20
            ),
            Hold::Window => format!(
                "budget: packages are fetched at {} UTC only (data-windows); fetching goes on {when}",
                self.settings.windows
            ),
        })
    }

    /// That windows are set and do not hold, the clock not being trusted.
    pub fn idle_windows(&self) -> Option<String> {
        (!self.settings.windows.is_empty() && self.trusted.is_none()).then(|| {
            "data-windows do not hold, since the clock is not synchronised: packages are fetched at any hour"
                .to_owned()
        })
    }

    fn minute(&self) -> Option<u32> {
        let second = self.trusted?.as_second().rem_euclid(SECONDS);
        u32::try_from(second / 60).ok()
    }

    /// Whether what is durable is at least what is used, of this day and no older one.
    fn is_of_today(&self) -> bool {
        let older = Duration::from_millis(self.kept.running_ms) > self.running;
        self.kept.day == self.day && self.kept.bytes >= self.bytes && !older
    }

    fn used(&self, bytes: u64) -> Used {
        let running_ms = u64::try_from(self.running.as_millis()).unwrap_or(u64::MAX);
        Used { day: self.day, running_ms, bytes }
    }
}

/// The day of UTC, counted from 1970.
fn day_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(SECONDS)
}

/// The smallest packet with a block.
const SMALLEST: u64 = 4096 + 128;

/// What a message of so many bytes costs on a link, estimated: MQTT's and TLS' own, TCP and IP.
pub fn on_the_wire(bytes: usize) -> u64 {
    let bytes = bytes as u64 + RECORD + 5;
    bytes + bytes.div_ceil(SEGMENT) * HEADERS
}

#[cfg(test)]
mod tests;
