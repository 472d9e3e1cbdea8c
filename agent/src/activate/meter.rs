//! Metering: what comes is counted, and blobs wait where the budget or the hour says so.

use std::time::Duration;

use super::Activation;
use crate::budget::{Hold, UsedRecord};
use crate::failure::chain;
use crate::store::{Key, StoreError};

/// How often the clock is looked at while blobs come.
const LOOK: Duration = Duration::from_secs(1);
/// Wait before another try to write down what is used.
const AGAIN: Duration = Duration::from_secs(10);

impl Activation {
    /// So many bytes came: of a blob, or anything else.
    pub fn received(&mut self, bytes: u64) {
        self.budget.spend(bytes);
    }

    /// Lets transfers ask for what the budget leaves. To be called before they may ask.
    pub(super) fn meter(&mut self, now: Duration) {
        if !self.budget.limits() {
            return;
        }
        self.budget.spend(self.http.take_received());
        if self.metered.is_none_or(|at| now >= at + LOOK) || self.budget.wake_at().is_some_and(|at| now >= at)
        {
            self.metered = Some(now);
            let (at, synchronised) = self.parts.floor.now();
            self.budget.pass(now, synchronised.then_some(at));
        }
        self.unmetered.take_if(|until| now >= *until);
        // What is waited for is noted only where something waits.
        let waits = self.budget.hold().is_none() || !self.wanted.is_empty();
        if waits
            && self.unmetered.is_none()
            && let Some(used) = self.budget.ahead()
        {
            let written = self
                .parts
                .store
                .database()
                .write(|transaction| transaction.put(Key::Budget, &UsedRecord::from(used)));
            match written {
                Ok(()) => self.budget.kept(used),
                // Nothing is asked for meanwhile: what is used must be written down before.
                Err(error) => {
                    tracing::warn!(
                        "what is used of the data budget cannot be written down: {}",
                        chain(&error)
                    );
                    self.unmetered = Some(now + AGAIN);
                }
            }
        }
        let hold = self.budget.hold().filter(|_| !self.wanted.is_empty());
        if hold != self.held {
            self.held = hold;
            match (hold, self.budget.trouble()) {
                (Some(hold), Some(why)) => {
                    tracing::info!("{why}");
                    // A window that closes is what was asked for; a budget that is used up is news.
                    if hold == Hold::Budget {
                        self.tell("budget", None, why);
                    }
                }
                _ => tracing::debug!("blobs do not wait"),
            }
        }
        // What is on its way on the one cannot be asked for on the other.
        let left = |rest: Option<u64>, elsewhere: u64| rest.map(|rest| rest.saturating_sub(elsewhere));
        let rest = self.budget.rest();
        let actions = self.transfers.allow(now, left(rest, self.http.transfers().in_flight()));
        self.follow(actions, now);
        let actions = self.http.hold_to(now, left(rest, self.transfers.in_flight()));
        self.follow(actions, now);
    }

    /// When to meter again, if nothing comes before.
    pub(super) fn meter_wakes_at(&self) -> Option<Duration> {
        if !self.budget.limits() || self.wanted.is_empty() {
            return None;
        }
        self.budget.wake_at().into_iter().chain(self.unmetered).min()
    }

    /// What a person should know about waiting for the budget, while there is something to fetch.
    pub fn metering(&self) -> Option<String> {
        if self.wanted.is_empty() {
            return None;
        }
        self.budget.trouble().or_else(|| self.budget.idle_windows())
    }

    /// An orderly end: what was written down as used ahead and was not is free again.
    pub fn end(&mut self) -> Result<(), StoreError> {
        self.disconnected();
        self.stop_sources();
        let Some(used) = self.budget.at_the_end() else { return Ok(()) };
        self.parts.store.database().write(|transaction| transaction.put(Key::Budget, &UsedRecord::from(used)))
    }
}
