//! Debian packages that are installed, from the suites that the machine has.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Installs packages that are missing; asks for nothing when all are there.
pub fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let advice = format!("install them yourself: apt-get install --no-install-recommends {list}");
    if !run::is_there("apt-get") {
        bail!("needed and missing: {list}; this is no Debian, install what corresponds to them");
    }
    run::step(&format!("installing {list}"), || {
        let mut update = as_root("apt-get").with_context(|| advice.clone())?;
        run::quietly(update.args(["update", "-qq"]))?;
        let mut install = as_root("apt-get")?;
        // RUNLEVEL: packages of services must not start one.
        install.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
        install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(&missing);
        run::quietly(&mut install).map(drop).with_context(|| advice.clone())
    })
}

/// Lets packages of another architecture be installed too.
pub fn add_architecture(name: &str) -> Result<()> {
    let known = run::quietly(Command::new("dpkg").arg("--print-foreign-architectures"))?;
    if known.lines().all(|line| line.trim() != name) {
        run::quietly(as_root("dpkg")?.args(["--add-architecture", name]))?;
    }
    Ok(())
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status}", package]);
    run::quietly(&mut query).is_ok_and(|status| status.trim() == "installed")
}

/// The program as root: directly, or through a `sudo` that asks for no password.
fn as_root(program: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    run::quietly(Command::new("sudo").args(["-n", "true"])).context("this needs root")?;
    let mut command = Command::new("sudo");
    command.args(["-n", "--preserve-env=DEBIAN_FRONTEND,RUNLEVEL", program]);
    Ok(command)
}
