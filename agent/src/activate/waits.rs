//! What is waited for: time that passes, and a disk that takes no writes.

use std::time::Duration;

use selvedge_deployment::{Effect, State, StateRecord, plan};
use selvedge_package::PackageName;

use super::rest::Rest;
use super::{Activation, carry, operate};
use crate::clock;
use crate::store::{Key, StoreError};

impl Activation {
    /// When to call [`Activation::tick`], if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        let watching = plan(&self.state).iter().any(|effect| matches!(effect, Effect::Watch(..)));
        let watch = (watching && self.host.is_up() && self.operation.is_none())
            .then(|| self.watched + operate::WATCH);
        let or_halted = self.halted.map_or(watch, Some);
        let (transfers, http, rests) = (self.transfers.wake_at(), self.http.wake_at(), self.rests.wake_at());
        [transfers, http, rests, or_halted, self.meter_wakes_at(), self.word_comes_by()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time has passed.
    pub fn tick(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        self.meter(now);
        for actions in [self.transfers.tick(now), self.http.tick(now)] {
            self.follow(actions, now);
        }
        self.look |= self.rests.over(now) | self.http.over(now);
        self.pursue()
    }

    /// Whether nothing may be written now.
    pub(super) fn is_halted(&self, now: Duration) -> bool {
        self.halted.is_some_and(|until| now < until)
    }

    /// The disk takes no writes: nothing that needs one is tried until then.
    pub fn halt(&mut self, until: Duration) {
        self.halted = Some(until);
    }

    /// Reads the stored state again. A write that failed may have become durable all the same; nothing has
    /// followed from it yet.
    pub fn reload(&mut self) -> Result<(), StoreError> {
        let record: Option<StateRecord> = self.parts.store.database().read(Key::Deployment)?;
        let stored = record.map(State::from).unwrap_or_default();
        if stored != self.state {
            tracing::warn!("what a failed write has left is taken up");
            self.state = stored;
        }
        self.halted = None;
        (self.look, self.kept) = (true, None);
        Ok(())
    }

    /// A file operation that failed is no reason to end: the package rests, and it is tried again.
    /// Any other failure of the store is.
    pub(super) fn endure(&mut self, package: &PackageName, error: StoreError) -> Result<(), StoreError> {
        let StoreError::Io { .. } = error else {
            return Err(error);
        };
        let why = crate::failure::chain(&error);
        tracing::warn!(%package, "{why}");
        // What is left over may be what fills the disk.
        self.kept = None;
        if self.rests.rest(Rest::Package(package.clone()), clock::since_boot()) {
            self.tell(carry::disk_trouble(&error), Some(package), why);
        }
        Ok(())
    }
}
