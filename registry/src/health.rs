//! One word on how a target is doing, from what it should run and what it says. Pure.
//!
//! A failure of a release that nobody wants any more is history, not health.

use std::fmt;

use selvedge_package::PackageName;
use selvedge_protocol::message::DeviceState;

use crate::resolve::Assigned;
use crate::store::presence::ALLOWED_SILENCE_MS;

/// How a target is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// People have revoked it.
    Revoked,
    /// No device has registered its key.
    WaitingForEnrolment,
    /// A device with another key was refused lately, and the enrolled one has not reported since.
    EnrolmentRefused,
    /// It is enrolled and was never heard since.
    NeverHeard,
    /// It was heard, but not lately.
    Silent,
    /// It is heard and has not reported its state.
    NothingReported,
    /// It refused what it should run, or failed to run it.
    Failing,
    /// It is on its way to what it should run.
    Updating,
    /// It runs what it should run, and nothing else.
    Ok,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoked => "revoked",
            Self::WaitingForEnrolment => "waiting-for-enrolment",
            Self::EnrolmentRefused => "enrolment-refused",
            Self::NeverHeard => "never-heard",
            Self::Silent => "silent",
            Self::NothingReported => "nothing-reported",
            Self::Failing => "failing",
            Self::Updating => "updating",
            Self::Ok => "ok",
        })
    }
}

/// Whether a refused enrolment at `refused_ms` still says how the target is at `now_ms`. A device goes
/// on asking every five minutes at least; a report, which is signed, shows that the right one is there.
pub fn enrolment_refused(refused_ms: i64, reported_ms: Option<i64>, now_ms: i64) -> bool {
    reported_ms.is_none_or(|reported_ms| reported_ms < refused_ms)
        && now_ms.saturating_sub(refused_ms) <= ALLOWED_SILENCE_MS
}

/// Health of a device that is connected and has reported.
pub fn of(desired: &[Assigned], reported: &DeviceState) -> Health {
    if reported.refused.is_some() {
        return Health::Failing;
    }
    let mut health = Health::Ok;
    for wanted in desired {
        let Some(package) = reported.packages.iter().find(|package| package.name == wanted.package) else {
            health = Health::Updating;
            continue;
        };
        // What answers may have failed with other settings: that is a failure too.
        let coming = package.pending.as_ref().is_some_and(|coming| coming.release.release == wanted.release);
        if !coming && package.failure.as_ref().is_some_and(|failure| failure.release == wanted.release) {
            return Health::Failing;
        }
        let committed =
            package.committed.as_ref().is_some_and(|committed| committed.release == wanted.release);
        if committed && package.serving {
            continue;
        }
        health = Health::Updating;
    }
    let wanted = |name: &PackageName| desired.iter().any(|wanted| wanted.package == *name);
    let leaving =
        reported.packages.iter().any(|package| !wanted(&package.name) && package.committed.is_some());
    let coming = reported.packages.iter().any(|package| package.pending.is_some());
    if leaving || coming { Health::Updating } else { health }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::Digest;
    use selvedge_protocol::message::{Failure, PackageReport, Pending, ReleaseRef};

    fn release(release: u64) -> ReleaseRef {
        ReleaseRef { release, version: "1.0.0".to_owned(), digest: Digest::of(b"x") }
    }

    /// A package as reported: committed release, pending release, serving, failed release.
    fn package(committed: u64, pending: u64, serving: bool, failed: u64) -> PackageReport {
        PackageReport {
            name: "a".parse().unwrap(),
            committed: (committed > 0).then(|| release(committed)),
            pending: (pending > 0).then(|| Pending {
                release: release(pending),
                stage: "fetching".to_owned(),
                bytes: 0,
                total: 1,
            }),
            serving,
            failure: (failed > 0).then(|| Failure {
                release: failed,
                reason: "acceptance".to_owned(),
                what: String::new(),
            }),
        }
    }

    fn check(wanted: u64, reported: Option<PackageReport>, expected: Health) {
        let desired: Vec<Assigned> = (wanted > 0)
            .then(|| Assigned {
                package: "a".parse().unwrap(),
                target: String::new(),
                digest: Digest::of(b"x"),
                length: 1,
                release: wanted,
                version: String::new(),
                settings: Default::default(),
            })
            .into_iter()
            .collect();
        let state =
            DeviceState { packages: reported.clone().into_iter().collect(), ..DeviceState::default() };
        assert_eq!(of(&desired, &state), expected, "{wanted} {reported:?}");
    }

    #[test]
    fn a_refused_enrolment_counts_until_the_right_device_reports() {
        for (refused, reported, now, counts) in [
            (5, None, 6, true),
            (5, Some(4), 6, true),
            (5, Some(6), 7, false),
            (5, None, 5 + ALLOWED_SILENCE_MS, true),
            (5, None, 6 + ALLOWED_SILENCE_MS, false),
        ] {
            assert_eq!(enrolment_refused(refused, reported, now), counts, "{refused} {reported:?} {now}");
        }
    }

    #[test]
    fn only_what_is_wanted_now_counts() {
        check(0, None, Health::Ok);
        check(1, None, Health::Updating);
        check(1, Some(package(0, 1, false, 0)), Health::Updating);
        check(1, Some(package(1, 0, true, 0)), Health::Ok);
        check(1, Some(package(1, 0, false, 0)), Health::Updating);
        check(2, Some(package(1, 0, true, 0)), Health::Updating);
        check(2, Some(package(1, 2, true, 0)), Health::Updating);
        check(2, Some(package(1, 0, true, 2)), Health::Failing);
        check(1, Some(package(1, 0, true, 2)), Health::Ok);
        check(3, Some(package(1, 3, true, 2)), Health::Updating);
        check(1, Some(package(1, 0, false, 1)), Health::Failing);
        check(1, Some(package(1, 0, true, 1)), Health::Failing);
        check(1, Some(package(1, 1, true, 1)), Health::Updating);
        check(0, Some(package(1, 0, true, 0)), Health::Updating);
        check(0, Some(package(0, 0, false, 1)), Health::Ok);
        let refused = DeviceState { refused: Some("expired".to_owned()), ..DeviceState::default() };
        assert_eq!(of(&[], &refused), Health::Failing);
    }
}
