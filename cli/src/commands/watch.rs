//! `selvedge watch`: how far deployments are on each of their targets, until nothing more is to be
//! expected.

use std::time::Duration;

use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::names::{Scope, find};
use crate::rollout::follow::{Replaced, follow};
use crate::rollout::view::View;
use crate::rows::deployment::Deployment;

/// Deployments that are watched at a time at most: each is a question to the registry, again and again.
const MOST: usize = 32;

/// Watch how deployments go.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge watch                       (everything that is deployed)
  selvedge watch file-type
  selvedge watch 3f9a --timeout 600    (a deployment, by its id or the beginning of it)
  selvedge watch file-type --json | jq -c 'select(.state == \"failed\")'

On a terminal every target has a bar; elsewhere every change is a line, with --json one of JSON.
It ends when every target serves what it shall, or has failed: with 0, or with 4 when one failed. A
target that is offline is waited for; without --timeout, until Ctrl-C. Watching changes nothing.")]
pub struct Args {
    /// A package, or the id of a deployment or its beginning
    #[arg(value_name = "PACKAGE|ID")]
    pub what: Option<String>,
    /// Which deployment of the package
    #[command(flatten)]
    pub scope: Scope,
    /// Longest wait in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
}

/// Watches.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let deadline = args.timeout.map(|seconds| Deadline::after(Duration::from_secs(seconds)));
    let registry = around.registry()?;
    let registry = deadline.map_or_else(|| registry.clone(), |deadline| registry.until(deadline));
    let (_, rows) = registry.deployments(false).await?;
    let meant: Vec<Deployment> = match &args.what {
        Some(what) => find(&rows, what, &args.scope)?.into_iter().cloned().collect(),
        None if args.scope.is_open() => rows.clone(),
        None => {
            return Err(Failure::usage(
                "--target and --selector say which deployment of a package",
                "say the package too",
            ));
        }
    };
    if meant.is_empty() {
        around.out.line("nothing is deployed; `selvedge deploy PACKAGE --target NAME` does it");
        return Ok(());
    }
    if meant.len() > MOST {
        return Err(Failure::usage(
            format!("{} deployments are too many to watch at a time; at most {MOST}", meant.len()),
            "say a package, or a package with --target or --selector, or an id",
        ));
    }
    let by_id = args.what.as_ref().is_some_and(|what| rows.iter().all(|row| row.package.as_str() != what));
    let replaced = if by_id { Replaced::End } else { Replaced::GoOver };
    follow(&registry, View::of_progress(around.out), meant, deadline, replaced).await.map(drop)
}
