//! What the device's signed state says about what was pushed.

use selvedge_package::{Digest, PackageName};
use selvedge_protocol::message::DeviceState;

use crate::output::bytes;

/// What was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal {
    /// The package.
    pub package: PackageName,
    /// Its version for people.
    pub version: String,
    /// Its release counter.
    pub release: u64,
    /// Digest of its OCI manifest.
    pub digest: Digest,
    /// Bytes of all its blobs.
    pub size: u64,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The device serves it.
    Running,
    /// The device tried it and did not keep it, and why.
    Failed(String),
    /// The device refuses what was signed, and why.
    Refused(String),
    /// Another Director's word counts there: it has this sequence.
    Overruled(u64),
    /// Not there yet: in words, and in tenths of the transfer.
    Waiting(String, u64),
}

/// Judges a state against what was signed with `sequence`.
pub fn verdict(goal: &Goal, sequence: u64, state: Option<&DeviceState>) -> Verdict {
    let waiting = |text: &str| Verdict::Waiting(text.to_owned(), 0);
    let Some(state) = state else {
        return waiting("it has not reported yet");
    };
    if state.desired > sequence {
        return Verdict::Overruled(state.desired);
    }
    if state.desired < sequence {
        return match &state.refused {
            Some(why) => Verdict::Refused(why.clone()),
            None => waiting("it has not accepted that yet"),
        };
    }
    let Some(report) = state.packages.iter().find(|report| report.name == goal.package) else {
        return waiting("it has not begun yet");
    };
    if let Some(pending) = &report.pending {
        if pending.stage != "fetching" || pending.total == 0 {
            return waiting(&pending.stage);
        }
        let text = format!("fetching, {} of {}", bytes(pending.bytes), bytes(pending.total));
        return Verdict::Waiting(text, pending.bytes.saturating_mul(10) / pending.total);
    }
    if let Some(failure) = report.failure.as_ref().filter(|failure| failure.release == goal.release) {
        return Verdict::Failed(format!("{}: {}", failure.reason, failure.what));
    }
    let committed = report.committed.as_ref();
    let is_goal = committed.is_some_and(|held| held.release == goal.release && held.digest == goal.digest);
    match (is_goal, report.serving) {
        (true, true) => Verdict::Running,
        (true, false) => waiting("committed, not served yet"),
        (false, _) => waiting("it has not begun yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::message::{Failure, PackageReport, Pending, ReleaseRef};

    fn goal() -> Goal {
        Goal {
            package: "a".parse().unwrap(),
            version: "1.0.0".to_owned(),
            release: 2,
            digest: Digest::of(b"two"),
            size: 100,
        }
    }

    fn release(release: u64, of: &[u8]) -> ReleaseRef {
        ReleaseRef { release, version: "1.0.0".to_owned(), digest: Digest::of(of) }
    }

    fn check(change: impl Fn(&mut DeviceState, &mut PackageReport), expected: Verdict) {
        let mut package = PackageReport {
            name: "a".parse().unwrap(),
            committed: Some(release(2, b"two")),
            pending: None,
            serving: true,
            failure: None,
        };
        let mut state = DeviceState { desired: 5, ..DeviceState::default() };
        change(&mut state, &mut package);
        state.packages.push(package);
        assert_eq!(verdict(&goal(), 5, Some(&state)), expected);
    }

    fn waiting(text: &str, tenths: u64) -> Verdict {
        Verdict::Waiting(text.to_owned(), tenths)
    }

    #[test]
    fn it_runs_when_exactly_that_is_committed_and_served() {
        check(|_, _| {}, Verdict::Running);
        check(|_, package| package.serving = false, waiting("committed, not served yet", 0));
        check(|_, package| package.committed = Some(release(1, b"two")), waiting("it has not begun yet", 0));
        check(|_, package| package.committed = Some(release(2, b"x")), waiting("it has not begun yet", 0));
        check(|_, package| package.name = "b".parse().unwrap(), waiting("it has not begun yet", 0));
        check(|state, _| state.desired = 4, waiting("it has not accepted that yet", 0));
        check(|state, _| state.desired = 6, Verdict::Overruled(6));
        assert_eq!(verdict(&goal(), 5, None), waiting("it has not reported yet", 0));
    }

    #[test]
    fn settings_alone_are_a_trial_of_the_same_release() {
        let pending = |stage: &str, bytes| {
            Some(Pending { release: release(2, b"two"), stage: stage.to_owned(), bytes, total: 100 })
        };
        check(|_, package| package.pending = pending("trial", 100), waiting("trial", 0));
        check(|_, package| package.pending = pending("fetching", 55), waiting("fetching, 55 B of 100 B", 5));
    }

    #[test]
    fn failures_and_refusals_are_told_where_they_are_about_this() {
        let failed =
            |release| Some(Failure { release, reason: "acceptance".to_owned(), what: "y is 3".to_owned() });
        check(|_, package| package.failure = failed(2), Verdict::Failed("acceptance: y is 3".to_owned()));
        check(|_, package| package.failure = failed(1), Verdict::Running);
        check(
            |state, package| {
                state.desired = 4;
                package.failure = failed(2);
            },
            waiting("it has not accepted that yet", 0),
        );
        check(
            |state, _| {
                state.desired = 4;
                state.refused = Some("not-trusted".to_owned());
            },
            Verdict::Refused("not-trusted".to_owned()),
        );
    }
}
