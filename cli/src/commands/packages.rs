//! `selvedge packages`: what is released in the workspace.

use selvedge_package::PackageName;

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::{bytes, moment};
use crate::reference::{Reference, Which};

/// List what is released.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge packages
  selvedge packages file-type")]
pub struct Args {
    /// Only the releases of this package
    pub name: Option<PackageName>,
}

/// Lists releases, newest first within a name.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let (mut value, all) = registry.packages().await?;
    let mut rows = all.clone();
    if let Some(name) = &args.name {
        rows.retain(|row| row.name == *name);
        if let Some(items) = value.get_mut("items").and_then(serde_json::Value::as_array_mut) {
            items.retain(|item| item.get("name").and_then(serde_json::Value::as_str) == Some(name.as_str()));
        }
    }
    if rows.is_empty()
        && let Some(name) = &args.name
    {
        Reference { name: name.clone(), which: Which::Newest }.resolve(&all)?;
    }
    around.out.value(&value);
    if rows.is_empty() {
        around.out.line("nothing is released yet; `selvedge package` makes a package, `selvedge release` signs and sends it");
        return Ok(());
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name).then(b.release.cmp(&a.release)));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.name.to_string(),
                row.version.clone(),
                format!("r{}", row.release),
                bytes(row.size),
                row.released_at.as_deref().map(moment).unwrap_or_default(),
                row.digest.to_string(),
            ]
        })
        .collect();
    around.out.table(&["NAME", "VERSION", "RELEASE", "SIZE", "RELEASED", "DIGEST"], &cells);
    Ok(())
}
