//! `selvedge names`: what a shell completes names from, a name a line. Not for people: it is hidden,
//! and gives up soon, since somebody waits at a prompt.

use std::time::Duration;

use crate::commands::Surroundings;
use crate::failure::Failure;

/// Longest wait at a prompt.
const PATIENCE: Duration = Duration::from_secs(2);

/// Print names.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Of what
    pub kind: Kind,
}

/// What has names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Targets.
    Targets,
    /// Packages that are released.
    Packages,
    /// Packages that are deployed, and ids of deployments.
    Deployed,
}

/// Prints them, each once.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let ask = async {
        Ok::<Vec<String>, Failure>(match args.kind {
            Kind::Targets => {
                registry.targets().await?.1.into_iter().map(|target| target.name.to_string()).collect()
            }
            Kind::Packages => {
                registry.packages().await?.1.into_iter().map(|package| package.name.to_string()).collect()
            }
            Kind::Deployed => {
                let rows = registry.deployments(false).await?.1;
                rows.into_iter().flat_map(|row| [row.package.to_string(), row.id]).collect()
            }
        })
    };
    let mut names = tokio::time::timeout(PATIENCE, ask).await.map_err(|_| Failure::TimedOut {
        what: "names from the registry".to_owned(),
        allowed: PATIENCE,
        advice: String::new(),
    })??;
    names.sort_unstable();
    names.dedup();
    for name in &names {
        around.out.line(name);
    }
    around.out.value(&names);
    Ok(())
}
