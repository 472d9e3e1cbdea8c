//! `selvedge trust show`: the roots and lists of a registry, or what one file says.

use std::path::PathBuf;

use selvedge_signing::metadata;
use serde_json::{Value, json};

use crate::ceremony::chain::{self, Which};
use crate::ceremony::{files, words};
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;

/// Show the roots and lists of a registry, or one file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file; without one, what the registry has
    #[arg(value_name = "FILE|DIR")]
    pub path: Option<PathBuf>,
}

/// Shows; checks nothing but that it can be read.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let Some(path) = &args.path else { return registry(around).await };
    let mut rows = Vec::new();
    for path in files::named(path)? {
        let bytes = files::read(&path)?;
        let (lines, row) = one(&path.display().to_string(), &bytes)?;
        for line in lines {
            around.out.line(line);
        }
        rows.push(row);
    }
    around.out.value(&json!({"files": rows}));
    Ok(())
}

fn one(name: &str, bytes: &[u8]) -> Result<(Vec<String>, Value), Failure> {
    let head = metadata::head(bytes).map_err(|error| failed(format!("read {name}"), error))?;
    if head.role == "root" {
        return words::root(bytes);
    }
    let read: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let count = read["signed"]["targets"].as_object().map_or(0, serde_json::Map::len);
    let bins = read["signed"]["delegations"]["roles"].as_array().map_or(0, Vec::len);
    let what = match (head.role.as_str(), bins) {
        ("targets", 0) => format!(", lists {count} releases"),
        ("targets", _) => ", its releases are in bins".to_owned(),
        _ => String::new(),
    };
    let lines =
        vec![format!("{name}: {} version {}, expires {}{what}", head.role, head.version, head.expires)];
    Ok((
        lines,
        json!({"name": name, "role": head.role, "version": head.version, "expires": head.expires, "releases": count}),
    ))
}

async fn registry(around: &Surroundings<'_>) -> Result<(), Failure> {
    let registry = around.registry()?;
    let mut rows = serde_json::Map::new();
    for which in [Which::Image, Which::Director] {
        let chain = chain::published(&registry, which).await?;
        let Some(newest) = chain.last() else { continue };
        let (lines, row) = words::root(newest)?;
        for line in lines {
            around.out.line(line);
        }
        rows.insert(which.name().to_owned(), row);
    }
    let answer = registry.get("show what was released", "/v1/trust/image").await?;
    let mut lists = Vec::new();
    for (role, file) in answer.get("roles").and_then(Value::as_object).into_iter().flatten() {
        let (lines, row) = one(role, file.as_str().unwrap_or_default().as_bytes())?;
        for line in lines {
            around.out.line(line);
        }
        let expires = row["expires"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        if expires
            .is_some_and(|at| at.duration_since(clock::now()) < jiff::SignedDuration::from_hours(24 * 30))
        {
            around.out.note(format!("{role} expires soon: `selvedge trust renew` signs it again"));
        }
        lists.push(row);
    }
    around.out.value(&json!({"roots": rows, "lists": lists}));
    Ok(())
}
