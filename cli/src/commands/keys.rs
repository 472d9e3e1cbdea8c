//! `selvedge keys init|show`: the keys that sign releases and assignments. Private keys are never
//! printed, and never overwritten.

use std::path::{Path, PathBuf};

use selvedge_signing::keyring::{self, RootFiles, public_keys};
use selvedge_signing::{Keyring, OnlineKeys};
use serde_json::{Value, json};

use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;

/// Make and show keys.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  selvedge keys init keys
  selvedge keys show keys")]
pub enum Command {
    /// Make the keys and roots of a new registry; existing ones are never touched
    Init {
        /// Directory for `offline/`, `online/` and `roots/`
        dir: PathBuf,
    },
    /// Show the public parts of the keys, and the roots
    Show {
        /// Directory of the keys
        dir: PathBuf,
    },
}

/// Runs one of them.
pub async fn run(around: &Surroundings<'_>, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Init { dir } => {
            init(dir)?;
            around.out.line(format!("keys are in {}", dir.display()));
            around.out.line("  offline/  sign roots and releases: keep them, with a copy elsewhere, away from every registry");
            around.out.line("  online/   sign for the registry: give it these and roots/ only");
            around.out.line("  roots/    public: what devices trust from their enrolment on\n");
            show(around, dir)
        }
        Command::Show { dir } => show(around, dir),
    }
}

/// Makes keys in `dir`.
pub fn init(dir: &Path) -> Result<(), Failure> {
    keyring::init(dir, clock::now())
        .map(drop)
        .map_err(|error| failed(format!("make keys in {}", dir.display()), error))
}

fn show(around: &Surroundings<'_>, dir: &Path) -> Result<(), Failure> {
    let reading = |error| failed(format!("read the keys in {}", dir.display()), error);
    let offline = Keyring::load(dir).map_err(reading)?;
    let online = OnlineKeys::load(&dir.join("online")).map_err(reading)?;
    let roots = RootFiles::load(&dir.join("roots")).map_err(reading)?;
    let mut keys = Vec::new();
    let mut cells = Vec::new();
    for (name, key) in public_keys(&offline, &online) {
        let id = key.key_id().map_err(reading)?;
        let public: String = hex::encode(key.as_bytes());
        keys.push(json!({"name": name, "key_id": id, "public_key": public}));
        cells.push(vec![name.to_owned(), id, public]);
    }
    let mut summaries = Vec::new();
    for (name, bytes) in [("image", &roots.image), ("director", &roots.director)] {
        let root: Value =
            serde_json::from_slice(bytes).map_err(Failure::content("a root", &dir.join("roots")))?;
        let (version, expires) = (root["signed"]["version"].clone(), root["signed"]["expires"].clone());
        let digest = selvedge_package::Digest::of(bytes);
        around.out.line(format!(
            "{name} root: version {version}, expires {}, {digest}",
            expires.as_str().unwrap_or("?")
        ));
        summaries.push(json!({"name": name, "version": version, "expires": expires, "digest": digest}));
    }
    around.out.line("");
    around.out.table(&["KEY", "KEY ID", "PUBLIC KEY (ed25519)"], &cells);
    around.out.value(&json!({"directory": dir, "keys": keys, "roots": summaries}));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn keys_are_made_once() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path()).unwrap();
        assert_eq!(init(dir.path()).unwrap_err().exit(), Exit::Conflict);
        let none = Keyring::load(&dir.path().join("none")).map_err(|error| failed("x", error)).unwrap_err();
        assert_eq!(none.exit(), Exit::NotFound);
    }
}
