//! `selvedge targets`: every target in a line, or one with all that the registry knows of it.

use selvedge_package::DeviceId;

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::{Output, moment, pairs};
use crate::rows::Target;

/// List targets, or show one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge targets
  selvedge targets edge-1                            (with facts, what it shall run and runs, events)
  selvedge targets --json | jq -r '.items[] | select(.online | not) | .name'")]
pub struct Args {
    /// The target to show with facts, desired and reported state, and events
    pub name: Option<DeviceId>,
}

/// Lists targets, or shows one.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    if let Some(name) = &args.name {
        let (value, target) = registry.target(name).await?;
        around.out.value(&value);
        show(around.out, &target);
        return Ok(());
    }
    let (value, targets) = registry.targets().await?;
    around.out.value(&value);
    if targets.is_empty() {
        around.out.line("there are no targets yet; `selvedge target enrol NAME --out FILE` makes one");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = targets
        .iter()
        .map(|target| {
            vec![
                target.name.to_string(),
                target.kind.clone(),
                condition(target),
                running(target),
                pairs(&target.labels),
            ]
        })
        .collect();
    around.out.table(&["NAME", "KIND", "STATE", "RUNS", "LABELS"], &cells);
    Ok(())
}

/// `online`, `offline since …`, `not enrolled`, with the health where it is not good.
pub fn condition(target: &Target) -> String {
    let mut text = if let Some(at) = &target.revoked_at {
        // Whatever it was before, it does not count.
        return format!("revoked {}", moment(at));
    } else if target.online {
        "online".to_owned()
    } else if let Some(heard) = &target.last_heard {
        format!("offline, heard {}", moment(heard))
    } else if target.enrolled {
        "offline".to_owned()
    } else {
        "not enrolled".to_owned()
    };
    // Of one that is not heard, its health says the same in another word, unless it was refused.
    let tells = |health: &&str| (target.online && *health != "ok") || *health == "enrolment-refused";
    if let Some(health) = target.health.as_deref().filter(tells) {
        text.push_str(", ");
        text.push_str(health);
    }
    text
}

fn running(target: &Target) -> String {
    let committed: Vec<String> = target
        .reported
        .iter()
        .flat_map(|state| &state.packages)
        .filter_map(|report| {
            report
                .committed
                .as_ref()
                .map(|release| format!("{} {} r{}", report.name, release.version, release.release))
        })
        .collect();
    if committed.is_empty() { "-".to_owned() } else { committed.join(", ") }
}

fn show(out: Output, target: &Target) {
    out.line(format!("{} ({}), {}", target.name, target.kind, condition(target)));
    if let Some(refused) = target.reported.as_ref().and_then(|state| state.refused.as_ref()) {
        out.line(format!("refuses its desired state: {refused}"));
    }
    if let Some(end) = target.certificate.as_ref().and_then(|certificate| certificate.expires_at.as_ref()) {
        out.line(format!("certificate: until {}", moment(end)));
    }
    match target.reported.as_ref().and_then(|state| state.fresh) {
        Some(true) => out.line("desired state: accepted, and proven fresh since the agent's last start"),
        Some(false) => {
            out.line("desired state: accepted without proof of freshness since the agent's last start")
        }
        None => {}
    }
    if !target.labels.is_empty() {
        out.line(format!("labels: {}", pairs(&target.labels)));
    }
    if !target.facts.is_empty() {
        out.line("\nFacts");
        let facts: Vec<Vec<String>> =
            target.facts.iter().map(|(key, value)| vec![format!("  {key}"), value.clone()]).collect();
        out.table(&["  FACT", "VALUE"], &facts);
    }
    out.line("\nPackages");
    packages(out, target);
    if !target.events.is_empty() {
        out.line("\nEvents");
        let events: Vec<Vec<String>> = target
            .events
            .iter()
            .map(|event| {
                let at =
                    event.at.as_ref().map(|at| at.as_str().map_or_else(|| at.to_string(), str::to_owned));
                vec![
                    format!("  {}", at.unwrap_or_default()),
                    event.kind.clone(),
                    event.package.clone().unwrap_or_else(|| "-".to_owned()),
                    event.what.clone(),
                ]
            })
            .collect();
        out.table(&["  AT", "EVENT", "PACKAGE", "WHAT"], &events);
    }
}

/// Desired beside reported, a line a package.
pub fn packages(out: Output, target: &Target) {
    let reported = target.reported.iter().flat_map(|state| &state.packages);
    let undesired =
        reported.filter(|report| target.desired.iter().all(|desired| desired.package != report.name));
    let mut cells: Vec<Vec<String>> = target
        .desired
        .iter()
        .map(|desired| {
            vec![
                format!("  {}", desired.package),
                format!("{} r{}", desired.version, desired.release),
                target.summary(&desired.package),
                pairs(&desired.settings),
            ]
        })
        .collect();
    cells.extend(undesired.map(|report| {
        vec![format!("  {}", report.name), "-".to_owned(), target.summary(&report.name), "-".to_owned()]
    }));
    if cells.is_empty() {
        out.line("  none; `selvedge deploy PACKAGE --target NAME` assigns one");
        return;
    }
    out.table(&["  PACKAGE", "DESIRED", "REPORTED", "SETTINGS"], &cells);
    for failure in target
        .reported
        .iter()
        .flat_map(|state| &state.packages)
        .filter_map(|report| Some((&report.name, report.failure.as_ref()?)))
    {
        out.line(format!(
            "  {} r{} failed ({}): {}",
            failure.0, failure.1.release, failure.1.reason, failure.1.what
        ));
    }
}
