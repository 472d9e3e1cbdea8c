//! What follows where the host refuses, or says nothing: whose doing that is, and what is tried again.
//!
//! A trial is lost by what its release is and does. Everything else (a host that has just been restarted, a
//! full /tmp, a program that is not there) is the host's trouble: the trial starts again after a pause, as
//! often as any trial that did not end. What is committed is asked for again without end; refused for what
//! it is, it gives way to the release before it.

use std::time::Duration;

use selvedge_control::{ClientError, Reason};
use selvedge_deployment::{Event, Release, Slot};
use selvedge_package::{Digest, PackageName};

use super::Activation;
use super::operate::Role;
use super::rest::Rest;
use crate::clock;
use crate::failure::chain;
use crate::store::StoreError;

/// Refusals of what is committed, for what it is, after which the release before it is tried.
const MOST_REFUSALS: u32 = 10;
/// Least time between the first of them and the last: a host that comes anew ends the pauses between them.
pub const REFUSED_FOR: Duration = Duration::from_secs(8 * 60);

/// Refusals in a row of what is committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusals {
    digest: Digest,
    count: u32,
    since: Duration,
}

impl Refusals {
    /// One more; whether that is enough of them.
    fn count(&mut self, digest: Digest, now: Duration, least: Duration) -> bool {
        if self.digest != digest {
            *self = Self { digest, count: 0, since: now };
        }
        self.count = self.count.saturating_add(1);
        self.count >= MOST_REFUSALS && now.saturating_sub(self.since) >= least
    }
}

/// Whether the host refuses for what the release is, as opposed to how the host is.
pub(super) fn blames(reason: Reason) -> bool {
    match reason {
        Reason::BadManifest | Reason::BadComponent | Reason::BadModel | Reason::BadCase | Reason::Limit => {
            true
        }
        // A file that is damaged is looked at. The others are asked of the wrong host, or a fault of it.
        Reason::Corrupt | Reason::NotLoaded | Reason::BadRequest | Reason::Internal => false,
    }
}

impl Activation {
    /// A load was refused, or not answered.
    pub(super) fn not_loaded(
        &mut self,
        package: PackageName,
        release: &Release,
        role: Role,
        error: &ClientError,
    ) -> Result<(), StoreError> {
        let digest = release.digest;
        match (error, role) {
            (ClientError::Refused { error: refused, .. }, _) if refused.reason == Reason::Corrupt => {
                return self.examine(package, digest, role);
            }
            (ClientError::Refused { error: refused, .. }, Role::Trial) if blames(refused.reason) => {
                return self.fail(package, digest, word(refused.reason), refused.error.clone());
            }
            (ClientError::Late { .. }, Role::Trial) => {
                return self.fail(package, digest, "load-timeout", chain(error));
            }
            (ClientError::Refused { error: refused, .. }, Role::Committed) if blames(refused.reason) => {
                self.put_off(Rest::Serve(package.clone()), &package, "not-served", error);
                let now = clock::since_boot();
                let none = Refusals { digest, count: 0, since: now };
                let refusals = self.refusals.entry(package.clone()).or_insert(none);
                if refusals.count(digest, now, self.parts.refused_for) {
                    let (reason, what) = (word(refused.reason).to_owned(), refused.error.clone());
                    return self.apply(Event::Refused { package, digest, reason, what });
                }
                return Ok(());
            }
            _ => {}
        }
        if matches!(error, ClientError::Broken { .. }) {
            // The end of the host is about to be told, and whose doing that was.
            self.broken_off = Some((digest, role, clock::since_boot()));
        }
        self.not_routed(&package, release, role, error)
    }

    /// The host did not do what it was asked for, and that is its own trouble.
    pub(super) fn not_routed(
        &mut self,
        package: &PackageName,
        release: &Release,
        role: Role,
        error: &ClientError,
    ) -> Result<(), StoreError> {
        match role {
            Role::Committed => {
                self.put_off(Rest::Serve(package.clone()), package, "not-served", error);
                Ok(())
            }
            Role::Trial => {
                let first = self.put_off(Rest::Trial(package.clone()), package, "trial-put-off", error);
                self.hindered(package, release.digest, first, chain(error))
            }
        }
    }

    /// The trial goes on after the pause that has begun. The first time in a row it stays as it is: where
    /// the host has ended, that is told in a moment. From then on it starts anew, which is counted.
    pub(super) fn hindered(
        &mut self,
        package: &PackageName,
        digest: Digest,
        first: bool,
        what: String,
    ) -> Result<(), StoreError> {
        if first {
            return Ok(());
        }
        self.apply(Event::Hindered { package: package.clone(), digest, what })?;
        // Where that was the last attempt, what follows is another release's trial.
        let goes_on = |slot: &Slot| slot.stage.release().is_some_and(|release| release.digest == digest);
        if !self.state.slots.get(package).is_some_and(goes_on) {
            self.rests.forget(&Rest::Trial(package.clone()));
        }
        Ok(())
    }

    /// The trial is lost.
    pub(super) fn fail(
        &mut self,
        package: PackageName,
        digest: Digest,
        reason: &str,
        what: String,
    ) -> Result<(), StoreError> {
        self.rests.forget(&Rest::Trial(package.clone()));
        self.apply(Event::TrialFailed { package, digest, reason: reason.to_owned(), what })
    }

    /// The host has opened what is committed.
    pub(super) fn served(&mut self, package: &PackageName) {
        self.rests.forget(&Rest::Serve(package.clone()));
        self.refusals.remove(package);
    }

    /// Begins a rest; says whether it is the first in a row.
    pub(super) fn put_off(
        &mut self,
        rest: Rest,
        package: &PackageName,
        kind: &'static str,
        error: &ClientError,
    ) -> bool {
        let what = chain(error);
        tracing::warn!(%package, "{what}");
        let first = self.rests.rest(rest, clock::since_boot());
        // A host that is gone is reported as that.
        if first && matches!(error, ClientError::Refused { .. } | ClientError::Late { .. }) {
            self.tell(kind, Some(package), what);
        }
        first
    }

    /// Whether a trial of this package, or a start of one, waits for its next try.
    pub(super) fn trial_rests(&self, package: &PackageName, now: Duration) -> bool {
        let rests = [Rest::Package(package.clone()), Rest::Trial(package.clone())];
        rests.iter().any(|rest| self.rests.has(rest, now))
    }

    /// What failed before keeps nothing from being tried with a host that has just come.
    pub(super) fn forget_rests(&mut self) {
        for name in self.state.slots.keys() {
            for rest in [Rest::Package(name.clone()), Rest::Serve(name.clone()), Rest::Trial(name.clone())] {
                self.rests.forget(&rest);
            }
        }
    }
}

pub(super) fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Corrupt => "corrupt",
        Reason::BadManifest => "bad-manifest",
        Reason::BadComponent => "bad-component",
        Reason::BadModel => "bad-model",
        Reason::BadCase => "bad-case",
        Reason::NotLoaded => "not-loaded",
        Reason::Limit => "limit",
        Reason::BadRequest => "bad-request",
        Reason::Internal => "internal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refusals_in_a_short_time_are_not_enough_nor_are_few_in_a_long_one() {
        let seconds = Duration::from_secs;
        let (one, other) = (Digest::of(b"1"), Digest::of(b"2"));
        let mut refusals = Refusals { digest: one, count: 0, since: seconds(100) };
        assert!((0..1000).all(|_| !refusals.count(one, seconds(579), REFUSED_FOR)));
        assert!(refusals.count(one, seconds(580), REFUSED_FOR));
        // Another release begins anew.
        assert!((0..9).all(|nth| !refusals.count(other, seconds(1000 + nth * 1000), REFUSED_FOR)));
        assert!(refusals.count(other, seconds(10_000), REFUSED_FOR));
    }
}
