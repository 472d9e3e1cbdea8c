//! `selvedge undeploy`: ends deployments; targets uninstall what nothing else assigns them.

use reqwest::Method;
use serde_json::json;

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::names::{Scope, find, several_of};

/// End deployments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge undeploy file-type --target edge-1
  selvedge undeploy file-type --selector 'site = oslo'
  selvedge undeploy 3f9a               (the id, or its beginning: `selvedge deployments`)
  selvedge undeploy file-type --all")]
pub struct Args {
    /// A package, or the id of a deployment or its beginning
    #[arg(value_name = "PACKAGE|ID")]
    pub what: String,
    /// Which deployment of the package
    #[command(flatten)]
    pub scope: Scope,
    /// All deployments of the package
    #[arg(long, conflicts_with_all = ["target", "selector"])]
    pub all: bool,
}

/// Ends them.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let (_, rows) = registry.deployments(false).await?;
    let meant = find(&rows, &args.what, &args.scope)?;
    if meant.len() > 1 && !args.all {
        return Err(several_of(
            &args.what,
            &meant,
            "say which with --target or --selector, by its id, or --all",
        ));
    }
    let mut ended = Vec::new();
    for row in meant {
        let path = registry.in_workspace(&format!("/deployments/{}", row.id));
        match registry.call(&format!("end deployment {}", row.id), Method::DELETE, &path, None).await {
            // Somebody else was faster.
            Err(Failure::Answered { status: 404, reason, .. }) if reason == "no-deployment" => {}
            answer => drop(answer?),
        }
        around.out.line(format!("{row} is no longer assigned to {}", row.where_to()));
        ended.push(json!({
            "id": row.id, "package": row.package, "version": row.version, "release": row.release,
            "target": row.target, "selector": row.selector, "priority": row.priority,
        }));
    }
    around.out.value(&json!({"ended": ended}));
    around
        .out
        .note("targets uninstall it where no other deployment takes its place; `selvedge status` shows it");
    Ok(())
}
