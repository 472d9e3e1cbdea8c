//! `selvedge explain`: what runs on a target, why that, and what lost against what.

use selvedge_package::{DeviceId, PackageName};

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::{Output, bytes};
use crate::reference::{Reference, Which};
use crate::rows::explanation::{Explained, Explanation};

/// Say why a target runs what it runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge explain edge-1
  selvedge explain edge-1 file-type    (also deployments that do not match it)")]
pub struct Args {
    /// The target
    #[arg(value_name = "TARGET")]
    pub name: DeviceId,
    /// Only this package
    #[arg(value_name = "PACKAGE")]
    pub package: Option<PackageName>,
}

/// Explains.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let query = args.package.as_ref().map(|package| format!("?package={package}")).unwrap_or_default();
    let path = registry.in_workspace(&format!("/targets/{}/explain{query}", args.name));
    let value = match registry.get(&format!("explain {}", args.name), &path).await {
        Err(Failure::Answered { status: 404, reason, .. }) if reason == "no-target" => {
            return Err(registry.no_target(&args.name).await);
        }
        other => other?,
    };
    let explanation: Explanation = registry.read(&value)?;
    if let Some(name) = &args.package
        && explanation.packages.iter().all(says_nothing)
    {
        Reference { name: name.clone(), which: Which::Newest }.resolve(&registry.packages().await?.1)?;
    }
    around.out.value(&value);
    let online = if explanation.online { "online" } else { "offline" };
    around.out.line(format!("{} is {online}", explanation.target));
    if explanation.packages.is_empty() {
        around.out.line("nothing is assigned to it, and it runs nothing");
    }
    for package in &explanation.packages {
        show(around.out, package);
    }
    Ok(())
}

fn says_nothing(package: &Explained) -> bool {
    package.runs.is_none() && package.assigned.is_none() && package.deployments.is_empty()
}

fn show(out: Output, package: &Explained) {
    let runs = match &package.runs {
        Some(runs) if runs.serving => format!("serves {} (r{})", runs.version, runs.release),
        Some(runs) => format!("has {} (r{}), which does not answer", runs.version, runs.release),
        None => "does not run there".to_owned(),
    };
    out.line(format!("\n{}: {runs}", package.package));
    match &package.assigned {
        Some(assigned) => {
            let by = match &assigned.deployment {
                Some(id) => format!("by deployment {id}"),
                None if package.kept => "kept: what it was told last".to_owned(),
                None => "by no deployment".to_owned(),
            };
            out.line(format!("  shall run {} (r{}), {by}", assigned.version, assigned.release));
        }
        None => out.line("  shall not run it"),
    }
    if !package.why.is_empty() {
        out.line(format!("  why: {}", package.why));
    }
    if let Some(coming) = &package.pending {
        let share = if coming.total > 0 {
            format!(", {} of {}", bytes(coming.bytes), bytes(coming.total))
        } else {
            String::new()
        };
        out.line(format!("  on its way: r{}, {}{share}", coming.release, coming.stage));
    }
    if let Some(failure) = &package.failure {
        out.line(format!("  failed: r{}, {failure}", failure.release));
    }
    let cells: Vec<Vec<String>> = package
        .deployments
        .iter()
        .map(|one| {
            vec![
                format!("  {}", one.id),
                one.scope.clone(),
                one.priority.to_string(),
                format!("{} r{}", one.version, one.release),
                one.verdict.word().to_owned(),
                one.why.clone().unwrap_or_default(),
            ]
        })
        .collect();
    if !cells.is_empty() {
        out.table(&["  DEPLOYMENT", "FOR", "PRIORITY", "RELEASE", "VERDICT", "WHY"], &cells);
    }
}
