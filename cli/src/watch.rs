//! Waiting until a device runs a release, with what happens meanwhile made visible. It asks the
//! registry again and again and changes nothing; giving up here stops nothing there. It takes no
//! report for an answer that the device gave before it accepted what it shall run now.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use selvedge_package::{DeviceId, PackageName};
use serde_json::Value;

use crate::client::Registry;
use crate::clock::{self, Deadline};
use crate::failure::Failure;
use crate::output::{Output, bytes};
use crate::patience::Patience;
use crate::progress::Step;
use crate::rollout::frame::bar;
use crate::rows::{Event, Target};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(300);
/// How old an event may be to tell why nothing happens.
const RECENT: SignedDuration = SignedDuration::from_mins(10);
/// Events about no package that can hold up every one.
const HOLDS_UP_ALL: &[&str] =
    &["disk-full", "disk-failed", "damaged-blob", "enrolment-refused", "host-trouble"];
/// As those, but over once they have happened: only what happens during the wait tells anything.
const MOMENTARY: &[&str] = &["corrupt-blob", "host-died"];
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
    /// Not yet; what happens, for people, with the hundredths of the bytes that have arrived.
    Waiting(String, Option<u64>),
}

/// How far `target` is, after `waited`.
pub fn progress(wish: &Wish<'_>, target: &Target, waited: Duration) -> Progress {
    let desired =
        target.desired.iter().find(|desired| desired.package == *wish.package).map(|desired| desired.release);
    let Some(release) = wish.release.or(desired) else {
        return Progress::Waiting("it is not assigned there".to_owned(), None);
    };
    if let Some(other) = desired.filter(|desired| *desired != release) {
        return Progress::Replaced(other);
    }
    let fresh = |same_as_before: bool| {
        wish.before.is_none_or(|before| !same_as_before || target.accepted() > before.accepted())
            || waited >= STALE
    };
    // What a device says before it has accepted its present assignments is about earlier ones.
    let current = target.accepted() >= target.desired_sequence;
    let report = target.report(wish.package).filter(|_| current);
    // Other settings of the same release may have failed while the release itself goes on.
    if report.is_some_and(|report| {
        report.serving
            && report.pending.is_none()
            && report.failure.as_ref().is_none_or(|failure| failure.release != release)
            && report.committed.as_ref().is_some_and(|committed| committed.release == release)
    }) {
        return Progress::Running;
    }
    let pending = report
        .and_then(|report| report.pending.as_ref())
        .filter(|pending| pending.release.release == release);
    if let (Some(failure), None, true) = (target.failure(wish.package, release), pending, current) {
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
            return Progress::Waiting(pending.stage.clone(), None);
        }
        let text = format!("fetching, {} of {}", bytes(pending.bytes), bytes(pending.total));
        return Progress::Waiting(text, Some(pending.bytes.saturating_mul(100) / pending.total));
    }
    let text = if desired.is_none() {
        "it is not assigned there".to_owned()
    } else if target.online && !current {
        "the device has not answered yet".to_owned()
    } else if target.online {
        "the device has not begun yet".to_owned()
    } else {
        format!("the device is {}", crate::commands::targets::condition(target))
    };
    Progress::Waiting(text, None)
}

/// The newest event that may tell why nothing happens: about the package and since the deployment, or
/// about the whole device and recent.
fn trouble<'a>(wish: &Wish<'_>, target: &'a Target, now: Timestamp) -> Option<&'a Event> {
    let recent = |event: &Event| {
        let heard = event.received_at.as_ref().and_then(|at| at.parse::<Timestamp>().ok());
        heard.is_some_and(|at| now.duration_since(at) <= RECENT)
    };
    let tells = |event: &&Event| match &event.package {
        Some(package) => {
            package == wish.package.as_str()
                && wish.before.map_or_else(|| recent(event), |before| !before.events.contains(event))
        }
        None => {
            let kind = event.kind.as_str();
            let new = wish.before.is_none_or(|before| !before.events.contains(event));
            recent(event) && (HOLDS_UP_ALL.contains(&kind) || (MOMENTARY.contains(&kind) && new))
        }
    };
    target.events.iter().find(tells)
}

/// Waits for it. Gives the target as it then is, as sent.
pub async fn wait(registry: &Registry, out: Output, wish: &Wish<'_>) -> Result<Value, Failure> {
    let named = wish
        .release
        .map_or_else(|| wish.package.to_string(), |release| format!("{} r{release}", wish.package));
    let step = Step::begin(out, &format!("waiting for {named} on {}", wish.target));
    let registry = &registry.until(wish.deadline);
    let mut shown = String::new();
    let mut told: Option<Event> = None;
    let mut patience = Patience::default();
    loop {
        let (value, target) = match registry.target(wish.target).await {
            Ok(found) => found,
            // A registry that is started again is no reason to give up before the time is over.
            Err(failure) if Patience::is_for(&failure) && !wish.deadline.passed() => {
                let (pause, first) = patience.lost();
                if first {
                    step.say("the registry does not answer; asking again");
                }
                tokio::time::sleep(wish.deadline.cut(pause)).await;
                continue;
            }
            Err(failure) if Patience::is_for(&failure) => {
                let what = format!("{named} on {}", wish.target);
                return Err(Patience::over(&failure, what, wish.deadline.allowed()));
            }
            Err(failure) => return Err(failure),
        };
        if patience.found() {
            step.note("the registry answers again");
            shown.clear();
        }
        let (text, share) = match progress(wish, &target, wish.deadline.elapsed()) {
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
                    advice: format!("`selvedge explain {} {}` says why", wish.target, wish.package),
                });
            }
            Progress::Waiting(text, share) => (text, share),
        };
        // Without a terminal every byte would be a line: there it is one a stage and a tenth.
        let key = if out.is_watched() {
            text.clone()
        } else {
            format!("{} {:?}", text.split(',').next().unwrap_or_default(), share.map(|share| share / 10))
        };
        if key != shown {
            shown = key;
            let bar = share.filter(|_| out.is_watched()).map(|share| format!("{} ", bar(Some(share))));
            step.say(&format!("{}: {named}: {}{text}", wish.target, bar.unwrap_or_default()));
        }
        let event = trouble(wish, &target, clock::now());
        if event != told.as_ref() {
            if let Some(event) = event {
                step.note(&format!("{}: {}", wish.target, said(event)));
            }
            told = event.cloned();
        }
        if wish.deadline.passed() {
            let event = event.map(|event| format!("; {}", said(event))).unwrap_or_default();
            return Err(Failure::TimedOut {
                what: format!("{named} on {} ({text}{event})", wish.target),
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

/// An event for people.
fn said(event: &Event) -> String {
    format!("{}: {}", event.kind, event.what)
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
        // The release goes on, but not with the settings that were wanted.
        package["failure"] = json!({"release": 2, "reason": "acceptance", "what": "threshold"});
        let failed = Progress::Failed("acceptance: threshold".into());
        check(&target(1, package.clone(), None), Some(2), None, 0, failed);
        package["failure"]["release"] = 1.into();
        check(&target(1, package.clone(), None), Some(2), None, 0, Progress::Running);
        package["serving"] = false.into();
        check(
            &target(1, package, None),
            Some(2),
            None,
            0,
            Progress::Waiting("the device has not begun yet".into(), None),
        );
    }

    #[test]
    fn an_old_report_is_no_answer_to_a_new_deployment() {
        let mut package =
            json!({"name": "a", "committed": release(2), "pending": null, "serving": true, "failure": null});
        let with = |accepted: u64, desired: u64, package: &Value| {
            let mut target = target(accepted, package.clone(), None);
            target.desired_sequence = desired;
            target
        };
        let silent = || Progress::Waiting("the device has not answered yet".into(), None);
        // The same release with another setting, the agent stopped: it serves, but not that.
        let before = with(1, 1, &package);
        check(&with(1, 2, &package), Some(2), Some(&before), 0, silent());
        check(&with(1, 2, &package), Some(2), Some(&before), 100, silent());
        check(&with(1, 2, &package), None, None, 100, silent());
        check(&with(2, 2, &package), Some(2), Some(&before), 0, Progress::Running);
        check(&with(3, 2, &package), Some(2), Some(&before), 0, Progress::Running);
        // Nor does an old failure count, nor old progress.
        package["failure"] = json!({"release": 2, "reason": "acceptance", "what": "old"});
        package["serving"] = false.into();
        check(&with(1, 2, &package), Some(2), None, 100, silent());
        package["failure"] = Value::Null;
        package["pending"] = release(2);
        package["pending"]["stage"] = "trial".into();
        package["pending"]["bytes"] = 0.into();
        package["pending"]["total"] = 0.into();
        check(&with(1, 2, &package), Some(2), None, 0, silent());
        // Something on its way is not the end, even where the release already answers.
        package["serving"] = true.into();
        check(&with(2, 2, &package), Some(2), None, 0, Progress::Waiting("trial".into(), None));
    }

    #[test]
    fn events_tell_why_nothing_happens() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let (name, package) = ("edge-1".parse().unwrap(), "a".parse().unwrap());
        let with = |events: Value| {
            let package =
                json!({"name": "a", "committed": null, "pending": null, "serving": false, "failure": null});
            let mut target = target(1, package, None);
            target.events = serde_json::from_value(events).unwrap();
            target
        };
        let event = |kind: &str, package: Option<&str>, minutes: u64| {
            let at = format!("2026-01-01T11:{:02}:00Z", 60 - minutes);
            json!({"at": at, "received_at": at, "kind": kind, "package": package, "what": "why"})
        };
        let told = |target: &Target, before: Option<&Target>| {
            let deadline = Deadline::after(Duration::ZERO);
            let wish = Wish { target: &name, package: &package, release: None, before, deadline };
            trouble(&wish, target, now).map(|event| event.kind.clone())
        };
        let check = |events: Value, before: Option<Value>, expected: Option<&str>| {
            let before = before.map(with);
            assert_eq!(told(&with(events.clone()), before.as_ref()).as_deref(), expected, "{events}");
        };
        check(json!([]), None, None);
        check(json!([event("disk-full", None, 2)]), None, Some("disk-full"));
        check(
            json!([event("disk-full", None, 2)]),
            Some(json!([event("disk-full", None, 2)])),
            Some("disk-full"),
        );
        check(json!([event("disk-full", None, 11)]), None, None);
        check(json!([event("host-died", None, 2)]), Some(json!([])), Some("host-died"));
        check(json!([event("host-died", None, 2)]), Some(json!([event("host-died", None, 2)])), None);
        check(json!([event("started", None, 1)]), None, None);
        check(json!([event("committed", Some("b"), 1)]), None, None);
        check(json!([event("rolled-back", Some("a"), 1)]), None, Some("rolled-back"));
        check(
            json!([event("rolled-back", Some("a"), 1)]),
            Some(json!([event("rolled-back", Some("a"), 1)])),
            None,
        );
        check(
            json!([event("rolled-back", Some("a"), 1), event("disk-full", None, 2)]),
            Some(json!([])),
            Some("rolled-back"),
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
            Progress::Waiting("fetching, 1.0 KiB of 4.0 KiB".into(), Some(25)),
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
        check(&old, Some(2), Some(&old), 0, Progress::Waiting("the device has not begun yet".into(), None));
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
