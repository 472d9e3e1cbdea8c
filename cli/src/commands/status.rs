//! `selvedge status`: what runs where, in a line a package; with `--wait-for`, after it does.

use std::time::Duration;

use selvedge_package::DeviceId;

use crate::client::Registry;
use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::commands::targets::{condition, packages};
use crate::failure::Failure;
use crate::patience::Patience;
use crate::reference::{Reference, Which};
use crate::rows::Target;
use crate::watch::{Wish, wait};

/// Show what runs where.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge status
  selvedge status edge-1 --wait-for file-type@r2 --timeout 60")]
pub struct Args {
    /// Only this target
    pub name: Option<DeviceId>,
    /// Wait until this package runs: NAME (the release that the target shall run), NAME@1.0.0 or NAME@r3
    #[arg(long, value_name = "PACKAGE")]
    pub wait_for: Option<Reference>,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "wait_for")]
    pub timeout: u64,
}

/// Shows, after waiting where that was asked.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    if let Some(reference) = &args.wait_for {
        let deadline = Deadline::after(Duration::from_secs(args.timeout));
        let registry = registry.until(deadline);
        let name = match &args.name {
            Some(name) => name.clone(),
            None => only_target(registry.targets().await?.1)?,
        };
        let release = release(&registry, reference).await?;
        let wish = Wish { target: &name, package: &reference.name, release, before: None, deadline };
        let value = wait(&registry, around.out, &wish).await?;
        around.out.value(&value);
        show(around, &registry.read(&value)?);
        return Ok(());
    }
    if let Some(name) = &args.name {
        let (value, target) = registry.target(name).await?;
        around.out.value(&value);
        show(around, &target);
        return Ok(());
    }
    let (value, targets) = registry.targets().await?;
    around.out.value(&value);
    around.out.line(format!("registry {}", registry.address()));
    if targets.is_empty() {
        around.out.line("there are no targets yet; `selvedge target enrol NAME --out FILE` makes one");
    }
    for target in &targets {
        show(around, target);
    }
    Ok(())
}

fn show(around: &Surroundings<'_>, target: &Target) {
    around.out.line(format!("\n{} ({}), {}", target.name, target.kind, condition(target)));
    packages(around.out, target);
}

/// The release that is meant, `None`: the one that the target shall run. What was never released is
/// told now, not after the wait; a registry that is away is waited for, where its list is not needed.
async fn release(registry: &Registry, reference: &Reference) -> Result<Option<u64>, Failure> {
    match (registry.packages().await, &reference.which) {
        (Ok((_, packages)), Which::Newest) => reference.resolve(&packages).map(|_| None),
        (Ok((_, packages)), _) => reference.resolve(&packages).map(|package| Some(package.release)),
        (Err(failure), Which::Newest) if Patience::is_for(&failure) => Ok(None),
        (Err(failure), Which::Release(release)) if Patience::is_for(&failure) => Ok(Some(*release)),
        (Err(failure), _) => Err(failure),
    }
}

fn only_target(targets: Vec<Target>) -> Result<DeviceId, Failure> {
    match <[Target; 1]>::try_from(targets) {
        Ok([target]) => Ok(target.name),
        Err(targets) => Err(Failure::usage(
            format!("there are {} targets: which one is meant?", targets.len()),
            "say its name: `selvedge status NAME --wait-for PACKAGE`",
        )),
    }
}
