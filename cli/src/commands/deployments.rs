//! `selvedge deployments`: what is assigned to which targets, or one deployment with all of them.

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::names::{Scope, find};
use crate::output::{Output, moment, pairs};
use crate::rollout::{Tally, doing};
use crate::rows::deployment::{Deployment, Detail};

/// List deployments, or show one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge deployments
  selvedge deployments file-type
  selvedge deployments 3f9a            (with its targets)
  selvedge deployments --ended --json")]
pub struct Args {
    /// Only those of this package; or the one with this id, or beginning of one, with its targets
    #[arg(value_name = "PACKAGE|ID")]
    pub what: Option<String>,
    /// Those that ended too
    #[arg(long)]
    pub ended: bool,
}

/// Lists them, or shows one.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let (mut value, mut rows) = registry.deployments(args.ended).await?;
    if let Some(what) = &args.what {
        let meant: Vec<String> =
            find(&rows, what, &Scope::default())?.iter().map(|row| row.id.clone()).collect();
        if let [only] = meant.as_slice()
            && rows.iter().all(|row| row.package.as_str() != what)
        {
            let value = registry.deployment(only).await?;
            around.out.value(&value);
            show(around.out, &registry.read(&value)?);
            return Ok(());
        }
        rows.retain(|row| meant.contains(&row.id));
        if let Some(items) = value.get_mut("items").and_then(serde_json::Value::as_array_mut) {
            items.retain(|item| meant.iter().any(|id| item.get("id").is_some_and(|value| value == id)));
        }
    }
    around.out.value(&value);
    if rows.is_empty() {
        around.out.line("nothing is deployed yet; `selvedge deploy PACKAGE --target NAME` does it");
        return Ok(());
    }
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, args.ended)).collect();
    let head = ["ID", "PACKAGE", "RELEASE", "FOR", "PRIORITY", "SETTINGS", "CREATED", "ENDED"];
    around.out.table(if args.ended { &head } else { &head[..7] }, &cells);
    Ok(())
}

fn cells(row: &Deployment, ended_too: bool) -> Vec<String> {
    let mut cells = vec![
        row.id.clone(),
        row.package.to_string(),
        format!("{} r{}", row.version, row.release),
        row.scope(),
        row.priority.to_string(),
        pairs(&row.settings),
        row.created_at.as_deref().map(moment).unwrap_or_default(),
    ];
    if ended_too {
        cells.push(match (&row.ended, &row.ended_at) {
            (Some(why), Some(at)) => format!("{why} {}", moment(at)),
            (Some(why), None) => why.clone(),
            _ => "-".to_owned(),
        });
    }
    cells
}

fn show(out: Output, detail: &Detail) {
    let row = &detail.row;
    out.line(format!("{row} to {}", row.where_to()));
    out.line(format!("deployment {}, priority {}", row.id, row.priority));
    if !row.settings.is_empty() {
        out.line(format!("settings: {}", pairs(&row.settings)));
    }
    if let Some(ended) = &row.ended {
        out.line(format!("ended: {ended} {}", row.ended_at.as_deref().map(moment).unwrap_or_default()));
        return;
    }
    out.line(format!("{}\n", Tally::of(detail)));
    if detail.targets.is_empty() {
        return;
    }
    let cells: Vec<Vec<String>> = detail
        .targets
        .iter()
        .map(|place| {
            let runs = place.running.as_ref();
            vec![
                place.name.to_string(),
                runs.map_or_else(|| "-".to_owned(), |runs| format!("{} r{}", runs.version, runs.release)),
                doing(place),
            ]
        })
        .collect();
    out.table(&["TARGET", "RUNS", "STATE"], &cells);
}
