//! `selvedge facts`: what a target is, as it says itself, and its labels: what selectors go by.

use selvedge_package::DeviceId;
use serde_json::json;

use crate::commands::Surroundings;
use crate::failure::Failure;

/// Other names of facts in selectors.
const SHORT: [(&str, &str); 3] = [("architecture", "arch"), ("memory-mib", "ram"), ("disk-free-mib", "disk")];

/// Show a target's facts and labels.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge facts edge-1
  selvedge facts edge-1 --json | jq -r .facts.architecture

Every key is one for `selvedge deploy --selector`; a label goes before a fact of the same key.")]
pub struct Args {
    /// The target
    #[arg(value_name = "TARGET")]
    pub name: DeviceId,
}

/// Shows them.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let (_, target) = around.registry()?.target(&args.name).await?;
    around.out.value(&json!({
        "target": target.name, "kind": target.kind, "labels": target.labels, "facts": target.facts,
    }));
    let row = |from: &str, key: &str, value: &str| {
        let short = SHORT.iter().find(|(long, _)| from == "fact" && *long == key);
        let key = short.map_or_else(|| key.to_owned(), |(_, short)| format!("{key} ({short})"));
        vec![key, value.to_owned(), from.to_owned()]
    };
    let mut cells =
        vec![row("registry", "name", target.name.as_str()), row("registry", "kind", &target.kind)];
    cells.extend(target.labels.iter().map(|(key, value)| row("label", key, value)));
    cells.extend(target.facts.iter().map(|(key, value)| row("fact", key, value)));
    around.out.table(&["KEY", "VALUE", "FROM"], &cells);
    if target.facts.is_empty() {
        around.out.note(format!(
            "{} has told no facts yet: it is {}",
            target.name,
            super::targets::condition(&target)
        ));
    }
    Ok(())
}
