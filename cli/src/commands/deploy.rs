//! `selvedge deploy`: assigns a release to a target, and with `--wait` stays until it runs there.

use std::time::Duration;

use reqwest::Method;
use selvedge_package::DeviceId;
use serde_json::json;

use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::reference::{Pair, Reference, object};
use crate::watch::{Wish, wait};

/// Assign a release to a target.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What: NAME (the newest release), NAME@1.0.0 or NAME@r3
    #[arg(value_name = "PACKAGE")]
    pub package: Reference,
    /// Where
    #[arg(long, value_name = "NAME")]
    pub target: DeviceId,
    /// A setting of the package; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<Pair>,
    /// Stay until the device serves it, or says why it does not
    #[arg(long)]
    pub wait: bool,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
}

/// Assigns, and waits where that was asked.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let (_, before) = registry.target(&args.target).await?;
    let (_, packages) = registry.packages().await?;
    let chosen = args.package.resolve(&packages)?;
    let body = json!({
        "package": chosen.name,
        "release": chosen.release,
        "target": args.target,
        "settings": object(&args.settings)?,
    });
    let deployment = registry
        .call(
            &format!("deploy {} to {}", args.package, args.target),
            Method::POST,
            &registry.in_workspace("/deployments"),
            Some(&body),
        )
        .await?;
    around.out.note(format!(
        "{} {} r{} is assigned to {}",
        chosen.name, chosen.version, chosen.release, args.target
    ));
    if !args.wait {
        around.out.value(&json!({"deployment": deployment}));
        if !before.online {
            around.out.line(format!(
                "{} is {}; it begins when it is heard",
                args.target,
                super::targets::condition(&before)
            ));
        }
        around.out.line(format!(
            "`selvedge status {} --wait-for {}@r{}` waits until it runs",
            args.target, chosen.name, chosen.release
        ));
        return Ok(());
    }
    let wish = Wish {
        target: &args.target,
        package: &chosen.name,
        release: Some(chosen.release),
        before: Some(&before),
        deadline: Deadline::after(Duration::from_secs(args.timeout)),
    };
    let target = wait(&registry, around.out, &wish).await?;
    around.out.value(&json!({"deployment": deployment, "target": target}));
    around
        .out
        .line(format!("{} serves {} {} (r{})", args.target, chosen.name, chosen.version, chosen.release));
    Ok(())
}
