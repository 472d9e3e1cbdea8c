//! Dependencies that must not be: what keeps the pure crates pure, and native code in the host. It
//! looks at the direct dependencies of each crate of the workspace; `deny.toml` has the same rules
//! for indirect ones.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::run;
use crate::setup::files_below;

/// A dependency and the only crates that may have it.
struct Rule {
    dependency: fn(&str) -> bool,
    allowed: &'static [&'static str],
    why: &'static str,
}

const RULES: [Rule; 6] = [
    Rule {
        dependency: |name| name.starts_with("wasmtime") || name == "ort",
        allowed: &["selvedge-host", "selvedge-tests", "selvedge-peer-bare", "selvedge-peer-http"],
        why: "only the host runs models and modules",
    },
    Rule {
        dependency: |name| name == "selvedge-host",
        allowed: &["selvedge-tests", "selvedge-strangers"],
        why: "the host is a program of its own, and crashes alone",
    },
    Rule {
        dependency: |name| name == "rumqttc",
        allowed: &["selvedge-mqtt", "selvedge-peer-pull"],
        why: "go through selvedge-mqtt, which knows its traps",
    },
    Rule {
        dependency: |name| name == "tough",
        allowed: &["selvedge-signing"],
        why: "devices verify with sigstore-tuf; only signing writes metadata",
    },
    Rule {
        dependency: |name| name == "selvedge-signing",
        allowed: &["selvedge-registry", "selvedge", "selvedge-cli", "selvedge-tests"],
        why: "a device holds no signing keys of a repository",
    },
    Rule {
        dependency: |name| name == "sqlx" || name == "mqtt5",
        allowed: &["selvedge-registry"],
        why: "only the registry keeps that",
    },
];

/// Crates without a runtime, a clock, files or sockets.
const PURE: [&str; 3] = ["selvedge-package", "selvedge-protocol", "selvedge-deployment"];
const IMPURE_DEPENDENCIES: [&str; 6] = ["tokio", "rustix", "libc", "reqwest", "hyper", "rumqttc"];
const IMPURE_PATHS: [&str; 5] = ["std::fs", "std::net", "std::process", "std::thread", "std::time::Instant"];

/// The faults of all crates.
pub fn check() -> Result<Vec<String>> {
    let mut cargo = run::cargo();
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&run::quietly(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may use what they need to check.
            if dependency["kind"] != "dev" {
                found.extend(fault(name, dependency["name"].as_str().unwrap_or_default()));
            }
        }
        if PURE.contains(&name) {
            let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
            let folder = Path::new(manifest).parent().context("a manifest without a folder")?;
            found.extend(impurities(&folder.join("src"))?);
        }
    }
    Ok(found)
}

fn fault(package: &str, dependency: &str) -> Option<String> {
    if PURE.contains(&package) && IMPURE_DEPENDENCIES.contains(&dependency) {
        return Some(format!("{package} depends on {dependency}: it is a pure crate"));
    }
    let broken = |rule: &&Rule| (rule.dependency)(dependency) && !rule.allowed.contains(&package);
    let rule = RULES.iter().find(broken)?;
    Some(format!("{package} depends on {dependency}: {}", rule.why))
}

fn impurities(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files_below(folder)? {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            if let Some(impure) = IMPURE_PATHS.iter().find(|impure| line.contains(*impure)) {
                let path = crate::paths::shown(&path);
                found.push(format!("{path}:{}: `{impure}` in a pure crate", number + 1));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_who_may_depend_on_what() {
        assert!(fault("selvedge-agent", "wasmtime-wasi").is_some());
        assert!(fault("selvedge-host", "ort").is_none());
        assert!(fault("selvedge-registry", "rumqttc").is_some());
        assert!(fault("selvedge-protocol", "tokio").is_some());
        assert!(fault("selvedge-agent", "tokio").is_none());
    }
}
