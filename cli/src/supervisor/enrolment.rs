//! The target that this machine is: made at the registry where it is missing, its enrolment kept in
//! one file (0600) for the agent. It never replaces an enrolment that an agent already lives by.

use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use selvedge_package::DeviceId;
use serde_json::{Value, json};

use crate::client::Registry;
use crate::clock::Deadline;
use crate::context::read_small;
use crate::failure::Failure;
use crate::progress::Step;
use crate::supervisor::child::Child;
use crate::supervisor::place::Place;
use crate::supervisor::ready;
use crate::supervisor::record::write_atomically;

/// Makes this machine's target where it is missing, and its enrolment point to the broker's present
/// address.
pub async fn enrol(registry: &Registry, place: &Place, name: &DeviceId, broker: &str) -> Result<(), Failure> {
    let path = place.enrolment();
    let known = registry.target(name).await;
    if let Err(failure) = &known
        && !matches!(failure, Failure::Missing { .. })
    {
        return known.map(drop);
    }
    let kept = if path.exists() { Some(read_enrolment(&path)?) } else { None };
    let mut enrolment = match (known, kept) {
        // One of an older version leads to a broker that asked for no certificate.
        (Ok(_), Some(enrolment)) if enrolment["device"] == name.as_str() && enrolment["format"] == 1 => {
            again(registry, name).await?
        }
        (Ok(_), Some(enrolment)) if enrolment["device"] == name.as_str() => enrolment,
        (Ok(_), _) if place.agent().join("device.key").exists() => {
            return Err(Failure::Conflict {
                what: format!("the enrolment of {name} in {} is lost", path.display()),
                advice: format!(
                    "remove the target (`selvedge target rm {name}`) and the directory {}, and start again",
                    place.agent().display()
                ),
            });
        }
        (Ok(_), _) => {
            // An earlier start ended between making the target and keeping its enrolment.
            registry
                .call(
                    &format!("remove {name}"),
                    Method::DELETE,
                    &registry.in_workspace(&format!("/targets/{name}")),
                    None,
                )
                .await?;
            make_target(registry, name).await?
        }
        (Err(_), Some(enrolment)) if place.agent().join("device.key").exists() => {
            let device = enrolment["device"].as_str().unwrap_or("another target").to_owned();
            let agent = place.agent();
            let anew = format!("remove {} to begin anew: it is enrolled again then", agent.display());
            return Err(Failure::Conflict {
                what: format!(
                    "the agent in {} is enrolled as {device}, and the registry does not know {name}",
                    agent.display()
                ),
                // Under its own name it was removed from the registry: that name does not help.
                advice: match device == name.as_str() {
                    true => anew,
                    false => format!("start with --name {device}, or {anew}"),
                },
            });
        }
        (Err(_), _) => make_target(registry, name).await?,
    };
    enrolment["broker"] = broker.into();
    let text = serde_json::to_vec_pretty(&enrolment)
        .map_err(|source| Failure::Internal { what: "cannot write the enrolment", source: source.into() })?;
    write_atomically(&path, &text, false)
}

async fn make_target(registry: &Registry, name: &DeviceId) -> Result<Value, Failure> {
    let body = json!({"name": name, "kind": "local", "labels": {}});
    let answer = registry
        .call(&format!("make target {name}"), Method::POST, &registry.in_workspace("/targets"), Some(&body))
        .await?;
    Ok(answer["enrolment"].clone())
}

/// Another enrolment for a target that stays what it is.
async fn again(registry: &Registry, name: &DeviceId) -> Result<Value, Failure> {
    let path = registry.in_workspace(&format!("/targets/{name}/enrolment"));
    let answer = registry.call(&format!("enrol {name} again"), Method::POST, &path, None).await?;
    Ok(answer["enrolment"].clone())
}

fn read_enrolment(path: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&read_small(path, 1 << 20)?).map_err(Failure::content("an enrolment", path))
}

/// Waits until the registry hears the agent.
pub async fn online(
    registry: &Registry,
    agent: &mut Child,
    name: &DeviceId,
    deadline: Deadline,
) -> Result<(), Failure> {
    loop {
        agent.check()?;
        let (_, target) = registry.target(name).await?;
        if target.online && target.enrolled {
            return Ok(());
        }
        if deadline.passed() {
            return Err(ready::late(format!("word from the agent {name}"), deadline));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until what the agent had committed answers again, so that a question right after a start
/// finds it. Not for long: a package that does not load any more must not keep the rest from starting.
pub async fn serving(
    registry: &Registry,
    http: &reqwest::Client,
    inference: &str,
    name: &DeviceId,
    step: &Step,
) -> Result<(), Failure> {
    let patience = Deadline::after(Duration::from_secs(20));
    let (_, target) = registry.target(name).await?;
    let reports = target.reported.iter().flat_map(|state| &state.packages);
    for package in reports.filter(|report| report.committed.is_some()).map(|report| &report.name) {
        step.say(&format!("waiting for {package} to answer"));
        loop {
            let url = format!("{inference}/v2/models/{package}/ready");
            let answer = http.get(url).timeout(Duration::from_secs(5)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            if patience.passed() {
                step.note(&format!("{package} does not answer yet; `selvedge targets {name}` shows why"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
