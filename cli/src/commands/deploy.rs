//! `selvedge deploy`: assigns a release to a target or to all that a selector matches; `--plan` says
//! before what would become of it, `--wait` stays until it runs.

use std::time::Duration;

use reqwest::Method;
use selvedge_package::DeviceId;
use selvedge_package::nearest::nearest;
use serde_json::{Value, json};

use crate::client::Registry;
use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::Output;
use crate::reference::{Pair, Reference, object};
use crate::rollout::Tally;
use crate::rollout::follow::{Replaced, follow};
use crate::rollout::view::View;
use crate::rows;
use crate::rows::deployment::{Deployment, Made, Planned, Verdict};
use crate::watch::{Wish, wait};

/// Assign a release to targets.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("where").required(true).args(["target", "selector"])),
    after_help = "Examples:
  selvedge deploy file-type --target edge-1 --wait
  selvedge deploy file-type@1.1.0 --target edge-1 --set threshold=0.9
  selvedge deploy file-type@r3 --selector 'arch = aarch64, site in (oslo, bergen)' --plan
  selvedge deploy file-type --selector 'ram >= 1GiB, !canary' --priority 10

A selector is a list of terms; a comma is \"and\": KEY, !KEY, KEY = V, KEY != V, KEY in (V, W),
KEY notin (V, W), KEY >= 1GiB. Keys are labels and facts (`selvedge facts TARGET`). Where several
deployments of a package are for one target, the larger priority wins, then the newest."
)]
pub struct Args {
    /// What: NAME (the newest release), NAME@1.0.0 or NAME@r3
    #[arg(value_name = "PACKAGE")]
    pub package: Reference,
    /// To this target
    #[arg(long, value_name = "NAME")]
    pub target: Option<DeviceId>,
    /// To every target that matches, now and later
    #[arg(long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Goes before deployments of the same package with a smaller number
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// A setting of the package; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<Pair>,
    /// Change nothing: show which targets would get it, and which would not and why
    #[arg(long, visible_alias = "dry-run", conflicts_with_all = ["wait", "timeout"])]
    pub plan: bool,
    /// Stay until every target serves it, or says why it does not
    #[arg(long)]
    pub wait: bool,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
}

/// Assigns, and waits where that was asked.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let before = match &args.target {
        Some(name) => Some(registry.target(name).await?.1),
        None => None,
    };
    let (_, packages) = registry.packages().await?;
    let chosen = args.package.resolve(&packages)?;
    check_settings(chosen, &args.settings)?;
    let body = body(args, chosen)?;
    let query = if args.plan { "?plan=true" } else { "" };
    let scope = args.target.as_ref().map(ToString::to_string).or_else(|| args.selector.clone());
    let sent = registry
        .call(
            &format!("deploy {} to {}", args.package, scope.unwrap_or_default()),
            Method::POST,
            &registry.in_workspace(&format!("/deployments{query}")),
            Some(&body),
        )
        .await?;
    if args.plan {
        return planned(around.out, &registry, &sent);
    }
    let made: Made = registry.read(&sent)?;
    assigned(around.out, &made);
    if !args.wait {
        around.out.value(&json!({"deployment": sent}));
        if let Some(before) = before.filter(|before| !before.online) {
            around.out.line(format!(
                "{} is {}; it begins when it is heard",
                before.name,
                super::targets::condition(&before)
            ));
        }
        around.out.line(format!("`selvedge watch {}` shows how it goes", made.row.id));
        return Ok(());
    }
    let deadline = Deadline::after(Duration::from_secs(args.timeout));
    let Some(name) = &args.target else {
        return watched(around.out, &registry, &sent, made.row, deadline).await;
    };
    let wish = Wish {
        target: name,
        package: &chosen.name,
        release: Some(chosen.release),
        before: before.as_ref(),
        deadline,
    };
    let target = wait(&registry, around.out, &wish).await?;
    around.out.value(&json!({"deployment": sent, "target": target}));
    around.out.line(format!("{name} serves {} {} (r{})", chosen.name, chosen.version, chosen.release));
    Ok(())
}

/// Follows a deployment that was just made, and says what came of it.
pub async fn watched(
    out: Output,
    registry: &Registry,
    made: &Value,
    row: Deployment,
    deadline: Deadline,
) -> Result<(), Failure> {
    let view = View::beside_result(out);
    let details = follow(registry, view, vec![row], Some(deadline), Replaced::End).await?;
    out.value(
        &json!({"deployment": made, "targets": details[0]["targets"], "summary": details[0]["summary"]}),
    );
    let detail: rows::deployment::Detail = registry.read(&details[0])?;
    let tally = Tally::of(&detail);
    if tally.wins() == 0 && tally.lost > 0 {
        return Err(Failure::Conflict {
            what: format!(
                "another deployment of {} goes before on each of {} targets",
                detail.row.package, tally.lost
            ),
            advice: format!(
                "`selvedge deployments {}` names it; a larger --priority goes before it",
                detail.row.id
            ),
        });
    }
    out.line(format!("{} to {}: {}", detail.row, detail.row.where_to(), tally));
    Ok(())
}

/// Says what was assigned, and what may surprise.
pub fn assigned(out: Output, made: &Made) {
    let row = &made.row;
    let (what, scope) = (format!("{} {} r{}", row.package, row.version, row.release), row.where_to());
    match (&row.selector, &made.summary) {
        (Some(_), Some(summary)) if summary.wins > 0 => {
            let count = match summary.wins {
                1 => "1 target".to_owned(),
                wins => format!("{wins} targets"),
            };
            out.note(format!("{what} is assigned to {count} ({scope})"));
        }
        _ => out.note(format!("{what} is assigned to {scope}")),
    }
    if let Some(summary) = &made.summary {
        if summary.targets == 0 {
            out.note("warning: no target matches now; it stays in force for those that will");
        }
        if summary.lost > 0 {
            out.note(format!(
                "warning: on {} of {} targets another deployment of {} goes before; `selvedge explain TARGET` says which",
                summary.lost, summary.targets, row.package
            ));
        }
        if summary.blocked > 0 {
            out.note(format!(
                "warning: {} of {} targets cannot run it; `selvedge deployments {}` says why",
                summary.blocked, summary.targets, row.id
            ));
        }
    }
    for hint in &made.hints {
        out.note(format!("hint: {hint}"));
    }
}

fn body(args: &Args, chosen: &rows::Package) -> Result<Value, Failure> {
    let mut body =
        json!({"package": chosen.name, "release": chosen.release, "settings": object(&args.settings)?});
    if let Some(target) = &args.target {
        body["target"] = target.as_str().into();
    }
    if let Some(selector) = &args.selector {
        body["selector"] = selector.as_str().into();
    }
    if args.priority != 0 {
        body["priority"] = args.priority.into();
    }
    Ok(body)
}

/// A setting that the package does not have is refused here, where the nearest can be named.
fn check_settings(package: &rows::Package, given: &[Pair]) -> Result<(), Failure> {
    let Some(known) = package.settings.as_object() else {
        return Ok(());
    };
    let Some(pair) = given.iter().find(|pair| !known.contains_key(&pair.key)) else {
        return Ok(());
    };
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let advice = match nearest(&pair.key, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? its settings are: {}", names.join(", ")),
        None if names.is_empty() => "it has no settings".to_owned(),
        None => format!("its settings are: {}", names.join(", ")),
    };
    Err(Failure::refused(
        format!("{} {} has no setting `{}`", package.name, package.version, pair.key),
        advice,
    ))
}

fn planned(out: Output, registry: &Registry, sent: &Value) -> Result<(), Failure> {
    let plan: Planned = registry.read(sent)?;
    out.value(sent);
    let row = &plan.deployment;
    out.line(format!("plan: {row} to {}, priority {}; nothing is changed", row.where_to(), row.priority));
    if let Some(old) = &plan.replaces {
        out.line(format!("it would replace deployment {old}"));
    }
    for hint in &plan.hints {
        out.note(format!("hint: {hint}"));
    }
    if plan.targets.is_empty() {
        out.line("no target matches; it would stay in force for those that will");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = plan
        .targets
        .iter()
        .map(|place| {
            let now = place.running.as_ref();
            let becomes = match place.verdict {
                Verdict::Wins if now.is_some_and(|runs| runs.release == row.release) => "stays",
                Verdict::Wins if now.is_some() => "changes",
                Verdict::Wins => "new",
                verdict => verdict.word(),
            };
            vec![
                place.name.to_string(),
                becomes.to_owned(),
                now.map_or_else(|| "-".to_owned(), |runs| format!("{} r{}", runs.version, runs.release)),
                if place.online { "yes" } else { "no" }.to_owned(),
                place.why.clone().unwrap_or_default(),
            ]
        })
        .collect();
    out.table(&["TARGET", "PLAN", "RUNS", "ONLINE", "WHY"], &cells);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_setting_names_the_nearest() {
        let package = |settings: Value| -> rows::Package {
            serde_json::from_value(
                json!({"name": "a", "version": "1.0.0", "release": 1, "settings": settings,
                "digest": selvedge_package::Digest::of(b"a")}),
            )
            .unwrap()
        };
        let pairs: Vec<Pair> = vec!["treshold=1".parse().unwrap()];
        let failure = check_settings(&package(json!({"threshold": "0.5", "mode": "x"})), &pairs).unwrap_err();
        assert_eq!(failure.exit(), crate::exit::Exit::Refused);
        assert!(failure.advice().unwrap().contains("did you mean `threshold`"), "{:?}", failure.advice());
        let failure = check_settings(&package(json!({})), &pairs).unwrap_err();
        assert_eq!(failure.advice().unwrap(), "it has no settings");
        assert!(check_settings(&package(json!({"treshold": "1"})), &pairs).is_ok());
        // A registry that does not say decides itself.
        assert!(check_settings(&package(Value::Null), &pairs).is_ok());
    }
}
