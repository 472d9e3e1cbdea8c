//! `selvedge trust check`: who has signed a file, who is missing, and whether it would be accepted.

use std::path::PathBuf;

use selvedge_signing::metadata;
use selvedge_signing::roots::RootSpec;
use selvedge_signing::signatures::standing;
use serde_json::json;

use super::sign::succeeds;
use crate::ceremony::{files, words};
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;

/// Say who has signed a file, who is missing, and whether it would be accepted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge trust check keys/roots
  selvedge trust check next.json --against image.root.json
  selvedge trust check proposal --against image.root.json

Ends with 0 where everything is signed by enough keys, and with 9 where it is not.")]
pub struct Args {
    /// A root, a list of releases, or a folder of them
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    /// The root that is in force
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
}

/// Looks; changes nothing.
pub fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let root = args.against.as_deref().map(files::read).transpose()?;
    let mut rows = Vec::new();
    let mut refused: Option<String> = None;
    for path in files::named(&args.path)? {
        let bytes = files::read(&path)?;
        let reading = |error| failed(format!("read {}", path.display()), error);
        let head = metadata::head(&bytes).map_err(reading)?;
        let first = head.role == "root" && head.version == 1;
        let root = root.as_deref().filter(|_| !first);
        let stands = standing(&bytes, root).map_err(reading)?;
        around.out.line(words::head(&path, &head));
        let mut changes = Vec::new();
        if let (Some(root), "root") = (root, head.role.as_str()) {
            let before = RootSpec::read(root).map_err(reading)?;
            changes = RootSpec::read(&bytes).and_then(|next| next.changes(&before)).map_err(reading)?;
            for line in &changes {
                around.out.line(format!("  {line}"));
            }
        }
        let (lines, needs) = words::standing(&stands);
        for line in &lines {
            around.out.line(format!("  {line}"));
        }
        let why = if head.expires <= clock::now() {
            Some(format!("it expired at {}", head.expires))
        } else if stands.groups.is_empty() || (root.is_none() && !first) {
            Some("which root it follows from was not said: say --against FILE".to_owned())
        } else if let Some(Err(failure)) = root.map(|root| succeeds(&path, &bytes, root)) {
            Some(failure.chain())
        } else if !stands.is_complete() {
            Some("too few have signed it".to_owned())
        } else {
            None
        };
        around.out.line(match &why {
            None => "  it would be accepted".to_owned(),
            Some(why) => format!("  it would not be accepted: {why}"),
        });
        rows.push(json!({
            "file": path, "role": head.role, "version": head.version, "expires": head.expires,
            "changes": changes, "signatures": needs, "complete": stands.is_complete(), "accepted": why.is_none(), "why": why,
        }));
        if let Some(why) = why {
            refused.get_or_insert(format!("{} would not be accepted: {why}", path.display()));
        }
    }
    around.out.value(&json!({"files": rows}));
    match refused {
        None => Ok(()),
        Some(what) => Err(Failure::Untrusted {
            what,
            advice: "those who have not signed add theirs: `selvedge trust sign FILE --key KEY.pem`"
                .to_owned(),
            source: None,
        }),
    }
}
