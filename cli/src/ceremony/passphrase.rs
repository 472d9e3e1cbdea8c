//! Where the passphrase of a key comes from: a file, the environment, or the person at the
//! terminal. Never from the command line, which every process of the machine can read.

use std::path::{Path, PathBuf};

use selvedge_signing::SigningError;
use selvedge_signing::key::{Passphrase, Passphrases};

use crate::context::{process_env, read_small};
use crate::failure::Failure;
use crate::keyring::failed;

/// The variable that may hold it.
const VARIABLE: &str = "SELVEDGE_KEY_PASSPHRASE";

/// Largest file of a passphrase, in bytes.
const LARGEST: u64 = 2048;

/// The option that every command with keys takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PassphraseArgs {
    /// File with the passphrase of encrypted keys, one line [else: SELVEDGE_KEY_PASSPHRASE, else it is
    /// asked for at the terminal]
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

impl PassphraseArgs {
    /// The passphrase for new keys. At the terminal it is asked for twice.
    pub fn new_one(&self, key: &Path) -> Result<Passphrase, Failure> {
        let asking = || format!("make {}", key.display());
        let passphrase = match self.given() {
            Some(given) => given.map_err(|error| failed(asking(), error))?,
            None => {
                let first = ask(key, &format!("Passphrase for the new key {}: ", key.display()));
                let first = first.map_err(|error| failed(asking(), error))?;
                let again = ask(key, "The same again: ").map_err(|error| failed(asking(), error))?;
                if first != again {
                    return Err(Failure::usage("the two passphrases differ", "run the command again"));
                }
                first
            }
        };
        passphrase.check_new().map_err(|error| failed(asking(), error))?;
        Ok(passphrase)
    }

    /// What was given without asking anyone.
    fn given(&self) -> Option<Result<Passphrase, SigningError>> {
        if let Some(path) = &self.passphrase_file {
            let read = read_small(path, LARGEST);
            return Some(match read {
                Ok(text) => Passphrase::new(text),
                Err(failure) => Err(SigningError::NoPassphrase {
                    path: path.clone(),
                    source: std::io::Error::other(failure.chain()),
                }),
            });
        }
        process_env(VARIABLE).filter(|text| !text.is_empty()).map(Passphrase::new)
    }
}

impl Passphrases for PassphraseArgs {
    fn passphrase(&self, key: &Path) -> Result<Passphrase, SigningError> {
        self.given().unwrap_or_else(|| ask(key, &format!("Passphrase of {}: ", key.display())))
    }
}

/// At the terminal, without echo.
fn ask(key: &Path, prompt: &str) -> Result<Passphrase, SigningError> {
    let text = rpassword::prompt_password(prompt)
        .map_err(|source| SigningError::NoPassphrase { path: key.to_owned(), source })?;
    Passphrase::new(text)
}
