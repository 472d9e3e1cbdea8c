//! Following deployments until every target that shall run them does, or has failed. A registry that
//! is away meanwhile is waited for; who follows a package goes over to what replaces its deployment.

use std::time::Duration;

use serde_json::Value;

use crate::client::Registry;
use crate::clock::Deadline;
use crate::failure::Failure;
use crate::patience::Patience;
use crate::rollout::view::View;
use crate::rollout::{doing, outcome};
use crate::rows::deployment::{Deployment, Detail};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(300);
/// Targets that an error names at most.
const NAMED: usize = 5;

/// What happens when a deployment that is followed is replaced by a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// The newer one is followed.
    GoOver,
    /// That is the end: this one was meant.
    End,
}

/// Follows `rows`. Gives the deployments as they then are, as sent; an error where a target failed.
/// Without a deadline it goes on for as long as there is something to wait for, and somebody reads.
pub async fn follow(
    registry: &Registry,
    mut view: View,
    mut rows: Vec<Deployment>,
    deadline: Option<Deadline>,
    replaced: Replaced,
) -> Result<Vec<Value>, Failure> {
    let registry = &deadline.map_or_else(|| registry.clone(), |deadline| registry.until(deadline));
    let passed = || deadline.is_some_and(|deadline| deadline.passed());
    let mut patience = Patience::default();
    loop {
        let (details, sent) = match ask(registry, &mut view, &mut rows, replaced).await {
            Ok(answers) => answers,
            Err(failure) if Patience::is_for(&failure) && !passed() && view.is_read() => {
                let (pause, first) = patience.lost();
                if first {
                    view.say(&format!("{}; asking again", failure.chain()));
                }
                tokio::time::sleep(deadline.map_or(pause, |deadline| deadline.cut(pause))).await;
                continue;
            }
            Err(failure) if Patience::is_for(&failure) && passed() => {
                let what = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let allowed = deadline.map_or(Duration::ZERO, |deadline| deadline.allowed());
                return Err(Patience::over(&failure, what, allowed));
            }
            Err(failure) => return Err(failure),
        };
        if patience.found() {
            view.say("the registry answers again");
        }
        view.show(&details, &sent);
        if details.iter().flat_map(|detail| &detail.targets).all(|place| place.is_settled()) {
            view.end(&details, &sent);
            outcome(&details)?;
            return Ok(sent);
        }
        if !view.is_read() {
            return Ok(sent);
        }
        if let Some(deadline) = deadline.filter(|deadline| deadline.passed()) {
            return Err(late(&details, deadline.allowed()));
        }
        tokio::time::sleep(deadline.map_or(PAUSE, |deadline| deadline.cut(PAUSE))).await;
    }
}

/// Asks for each of `rows`; those that ended give way to what replaced them, or leave.
async fn ask(
    registry: &Registry,
    view: &mut View,
    rows: &mut Vec<Deployment>,
    replaced: Replaced,
) -> Result<(Vec<Detail>, Vec<Value>), Failure> {
    let (mut details, mut sent) = (Vec::new(), Vec::new());
    let mut index = 0;
    while index < rows.len() {
        let value = registry.deployment(&rows[index].id).await?;
        let detail: Detail = registry.read(&value)?;
        let Some(why) = detail.row.ended.clone() else {
            details.push(detail);
            sent.push(value);
            index += 1;
            continue;
        };
        let heir = if why == "replaced" { heir(registry, &detail.row).await? } else { None };
        match heir {
            Some(heir) if replaced == Replaced::GoOver => {
                view.say(&format!("{} to {} is replaced by {heir}", detail.row, detail.row.where_to()));
                if rows.iter().any(|row| row.id == heir.id) {
                    rows.remove(index);
                } else {
                    rows[index] = heir;
                }
            }
            heir => {
                let what =
                    format!("deployment {} ({} to {})", detail.row.id, detail.row, detail.row.where_to());
                let (what, advice) = match heir {
                    Some(heir) => (
                        format!("{what} was replaced by {} ({heir})", heir.id),
                        format!("`selvedge watch {}` follows that one", heir.id),
                    ),
                    None => (
                        format!("{what} was ended: {why}"),
                        "`selvedge deployments --ended` shows what ended when".to_owned(),
                    ),
                };
                // Among several, the others are still of interest.
                if rows.len() == 1 {
                    return Err(Failure::Conflict { what, advice });
                }
                view.say(&what);
                rows.remove(index);
            }
        }
    }
    Ok((details, sent))
}

/// The deployment in force in the same place.
async fn heir(registry: &Registry, ended: &Deployment) -> Result<Option<Deployment>, Failure> {
    let (_, rows) = registry.deployments(false).await?;
    Ok(rows.into_iter().find(|row| row.same_place(ended)))
}

fn late(details: &[Detail], allowed: Duration) -> Failure {
    let mut waiting = Vec::new();
    for detail in details {
        for place in detail.targets.iter().filter(|place| !place.is_settled()) {
            waiting.push(format!("{} on {} ({})", detail.row, place.name, doing(place)));
        }
    }
    let more = waiting.len().saturating_sub(NAMED);
    waiting.truncate(NAMED);
    if more > 0 {
        waiting.push(format!("{more} more"));
    }
    Failure::TimedOut {
        what: waiting.join(", "),
        allowed,
        advice: match details {
            [only] => format!("it may still happen; `selvedge watch {}` waits on", only.row.id),
            _ => "it may still happen; `selvedge watch` waits on".to_owned(),
        },
    }
}
