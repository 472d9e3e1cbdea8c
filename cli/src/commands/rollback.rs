//! `selvedge rollback`: puts an earlier release in the place of a deployment's.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::client::Registry;
use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::commands::deploy::{assigned, watched};
use crate::failure::Failure;
use crate::names::{Scope, find, find_one};
use crate::reference::{Reference, Which};
use crate::rows::deployment::{Deployment, Made};

/// Go back to an earlier release.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge rollback file-type --wait                  (to the newest lower release)
  selvedge rollback file-type --target edge-1 --to 1.0.0
  selvedge rollback file-type --deployment 3f9a --to r2

Devices keep what they ran before until the earlier release has passed its acceptance cases there;
what they still have of it is not fetched again. No device goes below its release floor
(`min-release` of what it has committed).")]
pub struct Args {
    /// The package
    #[arg(value_name = "PACKAGE")]
    pub package: selvedge_package::PackageName,
    /// Which deployment of the package
    #[command(flatten)]
    pub scope: Scope,
    /// The deployment with this id, or beginning of one
    #[arg(long, value_name = "ID", conflicts_with_all = ["target", "selector"])]
    pub deployment: Option<String>,
    /// To this release: r2, or 1.0.0 [default: the newest lower one that is allowed]
    #[arg(long, value_name = "RELEASE")]
    pub to: Option<Which>,
    /// Stay until every target serves it, or says why it does not
    #[arg(long)]
    pub wait: bool,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
}

/// Rolls back, and waits where that was asked.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let old = old(&registry, args).await?;
    let release = match &args.to {
        None | Some(Which::Newest) => None,
        Some(which) => {
            let reference = Reference { name: args.package.clone(), which: which.clone() };
            Some(reference.resolve(&registry.packages().await?.1)?.release)
        }
    };
    if let Some(release) = release.filter(|release| *release > old.release) {
        return Err(Failure::usage(
            format!(
                "r{release} is later than r{}, which {} deploys: that is no way back",
                old.release,
                old.where_to()
            ),
            format!("`selvedge deploy {}@r{release}` goes forward", args.package),
        ));
    }
    let path = registry.in_workspace(&format!("/deployments/{}/rollback", old.id));
    let doing = match release {
        Some(release) => format!("roll {} back to r{release}", args.package),
        None => format!("roll {} back", args.package),
    };
    let answer = registry.call(&doing, Method::POST, &path, Some(&json!({"release": release}))).await;
    let sent = answer.map_err(|failure| clear(failure, &old, release))?;
    let made: Made = registry.read(&sent)?;
    around.out.note(format!("{old} makes way for {} (r{})", made.row.version, made.row.release));
    assigned(around.out, &made);
    if !made.dropped_settings.is_empty() {
        around.out.note(format!(
            "warning: {} (r{}) does not know these settings, they are left out: {}",
            made.row.version,
            made.row.release,
            made.dropped_settings.join(", ")
        ));
    }
    if args.wait {
        let deadline = Deadline::after(Duration::from_secs(args.timeout));
        return watched(around.out, &registry, &sent, made.row, deadline).await;
    }
    around.out.value(&json!({"deployment": sent}));
    around.out.line(format!("`selvedge watch {}` shows how it goes", made.row.id));
    Ok(())
}

/// The deployment whose release gives way.
async fn old(registry: &Registry, args: &Args) -> Result<Deployment, Failure> {
    let (_, rows) = registry.deployments(false).await?;
    if let Some(id) = &args.deployment {
        let row = find_one(&rows, id, &Scope::default())?;
        if row.package != args.package {
            return Err(Failure::usage(
                format!("deployment {} is of {}, not of {}", row.id, row.package, args.package),
                format!("`selvedge deployments {}` lists those of {}", args.package, args.package),
            ));
        }
        return Ok(row.clone());
    }
    if let Some(target) = &args.scope.target {
        // Known at all? And what a selector assigns it cannot be rolled back there alone.
        registry.target(target).await?;
        if find(&rows, args.package.as_str(), &args.scope).is_err()
            && rows.iter().any(|row| row.package == args.package)
        {
            return Err(Failure::missing(
                format!("no deployment of {} is for {target} alone", args.package),
                format!(
                    "`selvedge deployments {0}` lists those with selectors: roll one back with --deployment ID for all \
                     its targets, or give {target} a release of its own: \
                     `selvedge deploy {0}@r1 --target {target} --priority N`",
                    args.package
                ),
            ));
        }
    }
    match find_one(&rows, args.package.as_str(), &args.scope) {
        Ok(row) => Ok(row.clone()),
        Err(failure) if rows.iter().any(|row| row.package == args.package) => Err(failure),
        Err(failure) => {
            // Not deployed: is it released at all?
            let reference = Reference { name: args.package.clone(), which: Which::Newest };
            reference.resolve(&registry.packages().await?.1)?;
            let advice = failure.advice().unwrap_or_default();
            Err(Failure::missing(
                format!("{} is not deployed, so nothing can be rolled back", args.package),
                advice,
            ))
        }
    }
}

/// What stands in the way, in this command's words.
fn clear(failure: Failure, old: &Deployment, release: Option<u64>) -> Failure {
    let Failure::Answered { reason, error, .. } = &failure else {
        return failure;
    };
    match (reason.as_str(), release) {
        ("no-package", None) => Failure::missing(
            format!("there is nothing to roll {} back to: {error}", old.package),
            format!("`selvedge packages {}` lists its releases", old.package),
        ),
        ("same-release", _) => Failure::Conflict {
            what: format!("{} is deployed to {} already", old, old.where_to()),
            advice: format!("`selvedge packages {}` lists its releases; say another with --to", old.package),
        },
        ("unfit", _) => Failure::refused(error.clone(), "say a later release with --to; nothing was changed"),
        _ => failure,
    }
}
