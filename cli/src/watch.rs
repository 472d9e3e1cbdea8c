//! Waiting until a device runs a release, with what happens meanwhile made visible. It asks the
//! registry again and again and changes nothing; giving up here stops nothing there.

use std::time::Duration;

use selvedge_package::{DeviceId, PackageName};
use serde_json::Value;

use crate::client::Registry;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::output::{Output, bytes};
use crate::progress::Step;
use crate::rows::Target;

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(300);
/// How long a failure that was there before must stay to count as today's.
const STALE: Duration = Duration::from_secs(10);

/// What is waited for.
pub struct Wish<'a> {
    /// On which target.
    pub target: &'a DeviceId,
    /// Which package.
    pub package: &'a PackageName,
    /// Which release; `None`: the one that the target shall run.
    pub release: Option<u64>,
    /// The target as it was before the deployment, so that an older failure is not taken for a new one.
    pub before: Option<&'a Target>,
    /// For how long.
    pub deadline: Deadline,
}

/// How far a wish is.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is fulfilled.
    Running,
    /// It cannot be any more: a failure of the release itself.
    Failed(String),
    /// The device refuses its whole desired state.
    Distrusted(String),
    /// Another release took its place.
    Replaced(u64),
    /// Not yet; what happens, for people, with the tenths of the bytes that have arrived.
    Waiting(String, u64),
}

/// How far `target` is, after `waited`.
pub fn progress(wish: &Wish<'_>, target: &Target, waited: Duration) -> Progress {
    let desired =
        target.desired.iter().find(|desired| desired.package == *wish.package).map(|desired| desired.release);
    let Some(release) = wish.release.or(desired) else {
        return Progress::Waiting("it is not assigned there".to_owned(), 0);
    };
    if let Some(other) = desired.filter(|desired| *desired != release) {
        return Progress::Replaced(other);
    }
    let fresh = |same_as_before: bool| {
        wish.before.is_none_or(|before| !same_as_before || target.accepted() > before.accepted())
            || waited >= STALE
    };
    let report = target.report(wish.package);
    if report.is_some_and(|report| {
        report.serving && report.committed.as_ref().is_some_and(|committed| committed.release == release)
    }) {
        return Progress::Running;
    }
    let pending = report
        .and_then(|report| report.pending.as_ref())
        .filter(|pending| pending.release.release == release);
    if let (Some(failure), None) = (target.failure(wish.package, release), pending) {
        let before = wish.before.and_then(|before| before.failure(wish.package, release));
        if fresh(before == Some(failure)) {
            return Progress::Failed(format!("{}: {}", failure.reason, failure.what));
        }
    }
    let refused = |target: &Target| target.reported.as_ref().and_then(|state| state.refused.clone());
    if let Some(refusal) = refused(target)
        && fresh(wish.before.and_then(refused).as_ref() == Some(&refusal))
    {
        return Progress::Distrusted(refusal);
    }
    if let Some(pending) = pending {
        if pending.stage != "fetching" || pending.total == 0 {
            return Progress::Waiting(pending.stage.clone(), 0);
        }
        let text = format!("fetching, {} of {}", bytes(pending.bytes), bytes(pending.total));
        return Progress::Waiting(text, pending.bytes.saturating_mul(10) / pending.total);
    }
    let text = if desired.is_none() {
        "it is not assigned there".to_owned()
    } else if target.online {
        "the device has not begun yet".to_owned()
    } else {
        format!("the device is {}", crate::commands::targets::condition(target))
    };
    Progress::Waiting(text, 0)
}

/// Waits for it. Gives the target as it then is, as sent.
pub async fn wait(registry: &Registry, out: Output, wish: &Wish<'_>) -> Result<Value, Failure> {
    let named = wish
        .release
        .map_or_else(|| wish.package.to_string(), |release| format!("{} r{release}", wish.package));
    let step = Step::begin(out, &format!("waiting for {named} on {}", wish.target));
    let mut shown = String::new();
    loop {
        let (value, target) = match registry.target(wish.target).await {
            Ok(found) => found,
            // A registry that is started again is no reason to give up before the time is over.
            Err(Failure::Unreachable { .. }) if !wish.deadline.passed() => {
                step.say("the registry does not answer; asking again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let (text, tenths) = match progress(wish, &target, wish.deadline.elapsed()) {
            Progress::Running => {
                step.note(&format!("{}: {named} is serving", wish.target));
                return Ok(value);
            }
            Progress::Failed(why) => {
                return Err(Failure::refused(
                    format!("{} did not keep {named}: {why}", wish.target),
                    format!(
                        "what ran before still runs; `selvedge targets {}` shows its events",
                        wish.target
                    ),
                ));
            }
            Progress::Distrusted(why) => {
                return Err(Failure::Untrusted {
                    what: format!("{} refuses what it was sent: {why}", wish.target),
                    advice: "what ran before still runs; check that the device was enrolled with this registry's roots".to_owned(),
                    source: None,
                });
            }
            Progress::Replaced(other) => {
                return Err(Failure::Conflict {
                    what: format!("{} shall run r{other} of {} now", wish.target, wish.package),
                    advice: format!("`selvedge targets {}` shows what it shall run", wish.target),
                });
            }
            Progress::Waiting(text, tenths) => (text, tenths),
        };
        // Without a terminal every byte would be a line: there it is one a stage and a tenth.
        let key = if out.is_watched() {
            text.clone()
        } else {
            format!("{} {tenths}", text.split(',').next().unwrap_or_default())
        };
        if key != shown {
            shown = key;
            step.say(&format!("{}: {named}: {text}", wish.target));
        }
        if wish.deadline.passed() {
            return Err(Failure::TimedOut {
                what: format!("{named} on {} ({text})", wish.target),
                allowed: wish.deadline.allowed(),
                advice: format!(
                    "it may still happen; `selvedge status {} --wait-for {}` waits on",
                    wish.target, wish.package
                ),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn target(accepted: u64, package: Value, refused: Option<&str>) -> Target {
        serde_json::from_value(json!({
            "name": "edge-1", "kind": "local", "online": true,
            "desired": [{"package": "a", "version": "1.0.0", "release": 2, "digest": DIGEST}],
            "reported": {"generation": 1, "desired": accepted, "refused": refused, "packages": [package]},
        }))
        .unwrap()
    }

    fn check(
        target: &Target,
        release: Option<u64>,
        before: Option<&Target>,
        seconds: u64,
        expected: Progress,
    ) {
        let (name, package) = ("edge-1".parse().unwrap(), "a".parse().unwrap());
        let wish = Wish {
            target: &name,
            package: &package,
            release,
            before,
            deadline: Deadline::after(Duration::ZERO),
        };
        assert_eq!(progress(&wish, target, Duration::from_secs(seconds)), expected);
    }

    fn release(number: u64) -> Value {
        json!({"release": number, "version": "1.0.0", "digest": DIGEST})
    }

    #[test]
    fn running_is_committed_and_serving() {
        let mut package =
            json!({"name": "a", "committed": release(2), "pending": null, "serving": true, "failure": null});
        check(&target(1, package.clone(), None), Some(2), None, 0, Progress::Running);
        check(&target(1, package.clone(), None), None, None, 0, Progress::Running);
        check(&target(1, package.clone(), None), Some(3), None, 0, Progress::Replaced(2));
        package["serving"] = false.into();
        check(
            &target(1, package, None),
            Some(2),
            None,
            0,
            Progress::Waiting("the device has not begun yet".into(), 0),
        );
    }

    #[test]
    fn bytes_and_stages_are_told() {
        let mut pending = release(2);
        pending["stage"] = "fetching".into();
        pending["bytes"] = 1024.into();
        pending["total"] = 4096.into();
        let package =
            json!({"name": "a", "committed": null, "pending": pending, "serving": false, "failure": null});
        check(
            &target(1, package, None),
            Some(2),
            None,
            0,
            Progress::Waiting("fetching, 1.0 KiB of 4.0 KiB".into(), 2),
        );
    }

    #[test]
    fn an_older_failure_is_not_taken_for_a_new_one() {
        let failed = |what: &str| {
            json!({"name": "a", "committed": null, "pending": null, "serving": false,
            "failure": {"release": 2, "reason": "acceptance", "what": what}})
        };
        let old = target(1, failed("old"), None);
        let is = |what: &str| Progress::Failed(format!("acceptance: {what}"));
        check(&old, Some(2), None, 0, is("old"));
        check(&old, Some(2), Some(&old), 0, Progress::Waiting("the device has not begun yet".into(), 0));
        check(&old, Some(2), Some(&old), 11, is("old"));
        check(&target(1, failed("new"), None), Some(2), Some(&old), 0, is("new"));
        check(&target(2, failed("old"), None), Some(2), Some(&old), 0, is("old"));
    }

    #[test]
    fn a_refused_desired_state_is_a_matter_of_trust() {
        let package =
            json!({"name": "a", "committed": release(1), "pending": null, "serving": true, "failure": null});
        check(
            &target(1, package, Some("unknown key")),
            Some(2),
            None,
            0,
            Progress::Distrusted("unknown key".into()),
        );
    }
}
