//! How far a target is with what a deployment assigns to it, from what it reported. Pure.

use selvedge_protocol::message::{DeviceState, Failure, PackageReport};

/// How far a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nobody has enrolled, or no state was reported yet.
    Unheard,
    /// It has said nothing about this release yet.
    Waiting,
    /// Blobs come in.
    Fetching,
    /// Everything is there; the trial has not begun.
    Staged,
    /// On trial.
    Trial,
    /// It answers.
    Serving,
    /// It was given up, or refused.
    Failed,
}

impl State {
    /// Every state, in the order in which they usually come.
    pub const ALL: [Self; 7] = [
        Self::Unheard,
        Self::Waiting,
        Self::Fetching,
        Self::Staged,
        Self::Trial,
        Self::Serving,
        Self::Failed,
    ];

    /// The word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unheard => "unheard",
            Self::Waiting => "waiting",
            Self::Fetching => "fetching",
            Self::Staged => "staged",
            Self::Trial => "trial",
            Self::Serving => "serving",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing more is expected.
    pub fn settled(self) -> bool {
        matches!(self, Self::Serving | Self::Failed)
    }
}

/// Progress of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// How far it is.
    pub state: State,
    /// Bytes that have arrived, and all, while it is on its way.
    pub bytes: Option<(u64, u64)>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

impl Progress {
    fn at(state: State) -> Self {
        Self { state, bytes: None, failure: None }
    }

    fn failed(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::at(State::Failed) }
    }

    /// Of `release` on a target that shall run it since the desired state `sequence`. `package` is what
    /// it reported about the package, `newer` whether that came after the deployment was made. Changed
    /// settings are on their way, and fail, as releases do.
    pub fn of(
        release: u64,
        sequence: u64,
        newer: bool,
        reported: Option<&DeviceState>,
        package: Option<&PackageReport>,
    ) -> Self {
        let Some(reported) = reported else {
            return Self::at(State::Unheard);
        };
        let pending = package.and_then(|package| package.pending.as_ref());
        if let Some(pending) = pending.filter(|pending| pending.release.release == release) {
            let state = match pending.stage.as_str() {
                "fetching" => State::Fetching,
                "staged" => State::Staged,
                "trial" => State::Trial,
                _ => State::Waiting,
            };
            return Self { bytes: Some((pending.bytes, pending.total)), ..Self::at(state) };
        }
        if reported.desired < sequence {
            // What was refused before is not this.
            return match reported.refused.as_ref().filter(|_| newer) {
                Some(why) => Self::failed(Failure { release, reason: "refused".into(), what: why.clone() }),
                None => Self::at(State::Waiting),
            };
        }
        if let Some(failure) = package.and_then(|package| package.failure.as_ref())
            && failure.release == release
        {
            return Self::failed(failure.clone());
        }
        let committed = package.and_then(|package| package.committed.as_ref());
        let answers = package.is_some_and(|package| package.serving)
            && committed.is_some_and(|committed| committed.release == release);
        Self::at(if answers { State::Serving } else { State::Waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::Digest;
    use selvedge_protocol::message::{Pending, ReleaseRef};

    fn release(release: u64) -> ReleaseRef {
        ReleaseRef { release, version: "1.0.0".to_owned(), digest: Digest::of(b"x") }
    }

    /// A package as reported: committed release, pending release with its stage, serving, failed
    /// release; of release 2 by sequence 5.
    fn check(
        desired: u64,
        (committed, pending, serving, failed): (u64, Option<(u64, &str)>, bool, u64),
        expected: State,
    ) {
        let package = PackageReport {
            name: "a".parse().unwrap(),
            committed: (committed > 0).then(|| release(committed)),
            pending: pending.map(|(number, stage)| Pending {
                release: release(number),
                stage: stage.to_owned(),
                bytes: 3,
                total: 7,
            }),
            serving,
            failure: (failed > 0).then(|| Failure {
                release: failed,
                reason: "acceptance".to_owned(),
                what: "case".to_owned(),
            }),
        };
        let reported = DeviceState { desired, packages: vec![package.clone()], ..DeviceState::default() };
        let progress = Progress::of(2, 5, true, Some(&reported), Some(&package));
        assert_eq!(progress.state, expected, "{desired} {package:?}");
        assert_eq!(progress.failure.is_some(), expected == State::Failed);
        assert_eq!(progress.bytes.is_some(), package.pending.is_some_and(|p| p.release.release == 2));
    }

    #[test]
    fn a_release_comes_in_is_tried_and_serves() {
        assert_eq!(Progress::of(2, 5, true, None, None).state, State::Unheard);
        assert_eq!(Progress::of(2, 5, true, Some(&DeviceState::default()), None).state, State::Waiting);
        check(4, (1, None, true, 0), State::Waiting);
        check(5, (1, None, true, 0), State::Waiting);
        check(5, (1, Some((2, "fetching")), true, 0), State::Fetching);
        check(5, (1, Some((2, "staged")), true, 0), State::Staged);
        check(5, (1, Some((2, "trial")), true, 0), State::Trial);
        check(5, (1, Some((3, "trial")), true, 0), State::Waiting);
        check(5, (2, None, true, 0), State::Serving);
        check(5, (2, None, false, 0), State::Waiting);
        check(5, (1, None, true, 2), State::Failed);
        // What another release did, or the same one before it was told to try again.
        check(5, (2, None, true, 1), State::Serving);
        check(4, (1, None, true, 2), State::Waiting);
        // Settings are on their way, and have failed, while the release answers with the old ones.
        check(4, (2, None, true, 0), State::Waiting);
        check(5, (2, Some((2, "staged")), true, 0), State::Staged);
        check(5, (2, None, true, 2), State::Failed);
    }

    #[test]
    fn a_refused_state_is_a_failure() {
        let refused = DeviceState { refused: Some("expired".to_owned()), desired: 4, ..Default::default() };
        assert_eq!(Progress::of(2, 5, false, Some(&refused), None).state, State::Waiting);
        let progress = Progress::of(2, 5, true, Some(&refused), None);
        assert_eq!(progress.failure.map(|failure| failure.what), Some("expired".to_owned()));
        let accepted = DeviceState { desired: 5, ..refused };
        assert_eq!(Progress::of(2, 5, true, Some(&accepted), None).state, State::Waiting);
    }
}
