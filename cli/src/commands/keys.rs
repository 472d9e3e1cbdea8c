//! `selvedge keys new|init|show`: the keys that sign releases, roots and assignments. Private keys
//! are never printed, and never overwritten.

use std::path::{Path, PathBuf};

use selvedge_signing::keyring::{self, RootFiles};
use selvedge_signing::{Keyring, OnlineKeys, PublicKey, SigningKey};
use serde_json::{Value, json};

use crate::ceremony::passphrase::PassphraseArgs;
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;

/// Make and show keys.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  selvedge keys init keys                            (everything for one person and one machine)
  selvedge keys new alice.pem --encrypt              (one key of one person, and alice.pub)
  selvedge keys show alice.pub
  selvedge keys show keys

docs/keys.md: the set-up with several people.")]
pub enum Command {
    /// Make one key, and beside it the file with its public half
    New {
        /// Where: FILE.pem, which must not be there; the public half goes into FILE.pub
        file: PathBuf,
        /// Encrypt it with a passphrase
        #[arg(long)]
        encrypt: bool,
        /// Where passphrases come from.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Make the keys and roots of a new registry, 1 of 1; existing ones are never touched
    Init {
        /// Directory for `offline/`, `online/` and `roots/`
        dir: PathBuf,
        /// Encrypt the offline keys with a passphrase
        #[arg(long)]
        encrypt: bool,
        /// Where passphrases come from.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Show the public parts of the keys, and the roots
    Show {
        /// A key file (private or public), or the directory of a registry's keys
        #[arg(value_name = "FILE|DIR")]
        path: PathBuf,
        /// Where passphrases come from.
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
}

/// Runs one of them.
pub async fn run(around: &Surroundings<'_>, command: &Command) -> Result<(), Failure> {
    match command {
        Command::New { file, encrypt, passphrase } => new(around, file, *encrypt, passphrase),
        Command::Init { dir, encrypt, passphrase } => {
            make(dir, encrypt.then_some(passphrase))?;
            around.out.line(format!("keys are in {}", dir.display()));
            around.out.line("  offline/  sign roots and releases: keep them, with a copy elsewhere, away from every registry");
            around.out.line("  online/   sign for the registry: give it these and roots/ only");
            around.out.line("  roots/    public: what devices trust from their enrolment on\n");
            show(around, dir, passphrase)
        }
        Command::Show { path, passphrase } if path.is_dir() => show(around, path, passphrase),
        Command::Show { path, passphrase } => show_one(around, path, passphrase),
    }
}

/// Makes keys in `dir`, in plain files.
pub fn init(dir: &Path) -> Result<(), Failure> {
    make(dir, None)
}

fn make(dir: &Path, encrypt: Option<&PassphraseArgs>) -> Result<(), Failure> {
    let passphrase = encrypt.map(|asked| asked.new_one(&dir.join("offline"))).transpose()?;
    keyring::init_with(dir, clock::now(), passphrase.as_ref())
        .map(drop)
        .map_err(|error| failed(format!("make keys in {}", dir.display()), error))
}

fn new(
    around: &Surroundings<'_>,
    file: &Path,
    encrypt: bool,
    passphrase: &PassphraseArgs,
) -> Result<(), Failure> {
    let making = |error| failed(format!("make {}", file.display()), error);
    let public = file.with_extension("pub");
    if public == file {
        return Err(Failure::usage(
            format!("{} would be the file of the public half", file.display()),
            "name the private key's file, like alice.pem",
        ));
    }
    for path in [file, &public] {
        if path.exists() {
            return Err(making(selvedge_signing::SigningError::Exists { path: path.to_owned() }));
        }
    }
    let key = SigningKey::generate().map_err(making)?;
    match encrypt.then(|| passphrase.new_one(file)).transpose()? {
        Some(passphrase) => key.save_encrypted(file, &passphrase).map_err(making)?,
        None => key.save(file).map_err(making)?,
    }
    key.public_key().save(&public).map_err(making)?;
    let how = if encrypt { "encrypted" } else { "not encrypted" };
    around
        .out
        .line(format!("the private key is in {} ({how}): keep it, and a copy elsewhere", file.display()));
    around.out.line(format!("its public half is in {}: give that away", public.display()));
    tell(around, &public, &key.public_key())
}

fn show_one(around: &Surroundings<'_>, path: &Path, passphrase: &PassphraseArgs) -> Result<(), Failure> {
    if !path.exists() {
        return Err(Failure::no_file(
            path,
            "`selvedge keys init DIR` and `selvedge keys new FILE` make keys",
        ));
    }
    let key = match PublicKey::load(path) {
        Ok(key) => key,
        Err(_) => crate::ceremony::signers::load_one(path, passphrase)?.public_key(),
    };
    tell(around, path, &key)
}

fn tell(around: &Surroundings<'_>, path: &Path, key: &PublicKey) -> Result<(), Failure> {
    let id = key.key_id().map_err(|error| failed(format!("read {}", path.display()), error))?;
    around.out.line(format!("  public key {key} (ed25519)"));
    around.out.line(format!("  key id     {id}"));
    around.out.value(&json!({"file": path, "public_key": key, "key_id": id}));
    Ok(())
}

fn show(around: &Surroundings<'_>, dir: &Path, passphrase: &PassphraseArgs) -> Result<(), Failure> {
    let reading = |error| failed(format!("read the keys in {}", dir.display()), error);
    let roots = RootFiles::load(&dir.join("roots")).map_err(reading)?;
    let mut named = Vec::new();
    // Where people hold the offline keys, they are not here.
    if dir.join("offline").exists() {
        named.extend(Keyring::load_with(dir, passphrase).map_err(reading)?.public_keys());
    }
    named.extend(OnlineKeys::for_roots(&dir.join("online"), &roots).map_err(reading)?.public_keys());
    let mut keys = Vec::new();
    let mut cells = Vec::new();
    for (name, key) in named {
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
