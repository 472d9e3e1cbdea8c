//! How far deployments are on all their targets: counted, told as lines, drawn as bars, followed
//! until nothing more is to be expected. It only asks; nothing here changes what runs.

pub mod follow;
pub mod frame;
pub mod view;

use std::fmt;

use crate::failure::Failure;
use crate::rows::deployment::{Detail, Place, Stage};

/// Failures that an error spells out at most.
const SPELT: usize = 5;

/// Targets of a deployment by what becomes of it there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Answering.
    pub serving: usize,
    /// Refused, or did not hold.
    pub failed: usize,
    /// On their way, heard or not.
    pub going: usize,
    /// Among those on their way: not online.
    pub offline: usize,
    /// Another deployment goes before.
    pub lost: usize,
    /// Cannot run it.
    pub blocked: usize,
}

impl Tally {
    /// Counts.
    pub fn of(detail: &Detail) -> Self {
        let mut tally = Self::default();
        for place in &detail.targets {
            match place.stage() {
                Some(Stage::Serving) => tally.serving += 1,
                Some(Stage::Failed) => tally.failed += 1,
                Some(_) => {
                    tally.going += 1;
                    tally.offline += usize::from(!place.online);
                }
                None if place.verdict == crate::rows::deployment::Verdict::Lost => tally.lost += 1,
                None if place.verdict == crate::rows::deployment::Verdict::NoMatch => {}
                None => tally.blocked += 1,
            }
        }
        tally
    }

    /// Targets that shall run it.
    pub fn wins(&self) -> usize {
        self.serving + self.failed + self.going
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("no target matches");
        }
        write!(f, "{} of {} serving", self.serving, self.wins())?;
        for (count, word) in [
            (self.failed, "failed"),
            (self.going - self.offline, "on the way"),
            (self.offline, "offline"),
            (self.blocked, "blocked"),
            (self.lost, "lost to other deployments"),
        ] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        Ok(())
    }
}

/// What a place is doing, for people, in one line.
pub fn doing(place: &Place) -> String {
    let why = place.why.as_deref().filter(|why| !why.is_empty());
    let Some(stage) = place.stage() else {
        let word = place.verdict.word();
        return why.map_or_else(|| word.to_owned(), |why| format!("{word}: {why}"));
    };
    let mut text = match (stage, place.total.filter(|total| *total > 0)) {
        (Stage::Fetching, Some(total)) => format!(
            "fetching, {} of {}",
            crate::output::bytes(place.bytes.unwrap_or(0)),
            crate::output::bytes(total)
        ),
        (Stage::Failed, _) => match &place.failure {
            Some(failure) => format!("failed: {failure}"),
            None => "failed".to_owned(),
        },
        _ => stage.word().to_owned(),
    };
    if stage == Stage::Failed
        && let Some(running) = place.running.as_ref().filter(|running| running.serving)
    {
        text.push_str(&format!("; {} (r{}) still runs", running.version, running.release));
    }
    if !place.online && stage != Stage::Failed && stage != Stage::Unheard {
        text.push_str("; the device is offline");
    }
    text
}

/// What came of deployments that are settled: an error where a target failed, or where none can run
/// any of them though some match.
pub fn outcome(details: &[Detail]) -> Result<(), Failure> {
    let mut failed = Vec::new();
    let mut tally = Tally::default();
    for detail in details {
        let one = Tally::of(detail);
        tally.serving += one.serving;
        tally.failed += one.failed;
        tally.going += one.going;
        tally.blocked += one.blocked;
        for place in detail.targets.iter().filter(|place| place.stage() == Some(Stage::Failed)) {
            let why = place.failure.as_ref().map_or_else(String::new, |failure| format!(": {failure}"));
            failed.push((place.name.to_string(), format!("{} did not keep {}{why}", place.name, detail.row)));
        }
    }
    if let Some((first, _)) = failed.first() {
        let mut what: Vec<String> = failed.iter().take(SPELT).map(|(_, text)| text.clone()).collect();
        if failed.len() > SPELT {
            what.push(format!("and {} more", failed.len() - SPELT));
        }
        let advice =
            format!("what ran before still runs there; `selvedge targets {first}` shows the target's events");
        return Err(Failure::refused(what.join("; "), advice));
    }
    if tally.wins() == 0 && tally.blocked > 0 {
        let why = details.iter().flat_map(|detail| &detail.targets).find_map(|place| place.why.clone());
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        return Err(Failure::refused(
            format!("none of {} targets can run it{why}", tally.blocked),
            "`selvedge explain TARGET` says why for each",
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A deployment with these targets.
    pub fn detail(targets: Value) -> Detail {
        serde_json::from_value(json!({
            "id": "aaaa000000000001", "package": "file-type", "version": "1.1.0", "release": 2,
            "target": null, "selector": "site = oslo", "priority": 0, "targets": targets,
        }))
        .unwrap()
    }

    /// A target in a state.
    pub fn place(name: &str, state: &str) -> Value {
        json!({"name": name, "verdict": "wins", "why": "", "state": state, "online": true, "running": null,
            "bytes": if state == "fetching" { json!(1024) } else { Value::Null },
            "total": if state == "fetching" { json!(4096) } else { Value::Null },
            "failure": if state == "failed" {
                json!({"release": 2, "reason": "acceptance", "what": "case 1: expected pdf, got png"})
            } else { Value::Null }, "settled": matches!(state, "failed" | "serving")})
    }

    fn blocked(name: &str) -> Value {
        json!({"name": name, "verdict": "blocked", "why": "it is x86_64, and the package runs on aarch64",
            "state": null, "online": true})
    }

    #[test]
    fn targets_are_counted_once_each() {
        let mut away = place("d", "waiting");
        away["online"] = false.into();
        let all = detail(json!([place("a", "serving"), place("b", "failed"), place("c", "trial"), away,
            blocked("e"), {"name": "f", "verdict": "lost", "why": "to aaaa: priority", "state": null, "online": true}]));
        let tally = Tally::of(&all);
        assert_eq!(
            tally.to_string(),
            "1 of 4 serving, 1 failed, 1 on the way, 1 offline, 1 blocked, 1 lost to other deployments"
        );
        assert_eq!(Tally::of(&detail(json!([]))).to_string(), "no target matches");
        let words: Vec<String> = all.targets.iter().map(doing).collect();
        assert_eq!(words[0], "serving");
        assert_eq!(words[1], "failed: acceptance: case 1: expected pdf, got png");
        assert_eq!(words[3], "waiting; the device is offline");
        assert_eq!(words[4], "blocked: it is x86_64, and the package runs on aarch64");
        assert_eq!(words[5], "lost: to aaaa: priority");
        assert_eq!(
            doing(&detail(json!([place("a", "fetching")])).targets[0]),
            "fetching, 1.0 KiB of 4.0 KiB"
        );
    }

    #[test]
    fn a_failure_is_named_with_its_reason_and_what_is_blocked_everywhere_is_refused() {
        assert!(outcome(&[detail(json!([place("a", "serving")]))]).is_ok());
        assert!(outcome(&[detail(json!([]))]).is_ok());
        assert!(outcome(&[detail(json!([place("a", "serving"), blocked("b")]))]).is_ok());
        let failure = outcome(&[detail(json!([place("a", "serving"), place("b", "failed")]))]).unwrap_err();
        assert_eq!(failure.exit(), crate::exit::Exit::Refused);
        let said = failure.to_string();
        assert_eq!(said, "b did not keep file-type 1.1.0 (r2): acceptance: case 1: expected pdf, got png");
        let failure = outcome(&[detail(json!([blocked("a"), blocked("b")]))]).unwrap_err();
        assert_eq!(failure.exit(), crate::exit::Exit::Refused);
        assert!(failure.to_string().contains("none of 2 targets") && failure.to_string().contains("x86_64"));
        let many: Vec<Value> = (0..9).map(|n| place(&format!("t{n}"), "failed")).collect();
        let said = outcome(&[detail(json!(many))]).unwrap_err().to_string();
        assert!(said.ends_with("and 4 more"), "{said}");
    }

    #[test]
    fn words_of_a_newer_registry_are_no_error() {
        let new = detail(json!([{"name": "a", "verdict": "pondering", "state": null},
            {"name": "b", "verdict": "wins", "state": "levitating", "online": true}]));
        assert!(!new.targets[1].is_settled());
        assert_eq!(Tally::of(&new).going, 1);
    }
}
