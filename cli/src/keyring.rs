//! What went wrong with keys and signing, in the words and rows of this program.

use std::io::ErrorKind;

use selvedge_signing::SigningError;

use crate::failure::Failure;

/// The failure of a step with keys; `doing` completes "cannot …".
pub fn failed(doing: impl Into<String>, error: SigningError) -> Failure {
    let what = || error.to_string();
    match &error {
        SigningError::Exists { .. } => Failure::Conflict {
            what: what(),
            advice: "use the keys that are there, or make new ones in another directory".to_owned(),
        },
        SigningError::Released { .. } | SigningError::ReleaseNotAbove { .. } => Failure::Conflict {
            what: what(),
            advice: "make the package again with a larger --release (and another --version)".to_owned(),
        },
        SigningError::File { path, source, .. } if source.kind() == ErrorKind::NotFound => Failure::no_file(
            path,
            "`selvedge keys init DIR` makes keys; name their directory with --keys (that of `selvedge up` is `keys` in its data directory)",
        ),
        SigningError::File { .. } => as_file(error),
        _ => Failure::Keys {
            doing: doing.into(),
            advice: match &error {
                SigningError::Permissions { .. } => "keys must be readable by you only".to_owned(),
                SigningError::KeyFormat { .. } => {
                    "restore the file from a copy; keys cannot be repaired".to_owned()
                }
                SigningError::PublicFormat { .. } => {
                    "give the .pub file that `selvedge keys new` wrote beside the key".to_owned()
                }
                SigningError::WrongPassphrase { .. }
                | SigningError::Encrypted { .. }
                | SigningError::NoPassphrase { .. } => "say --passphrase-file FILE, or set \
                    SELVEDGE_KEY_PASSPHRASE, or run it in a terminal, which asks"
                    .to_owned(),
                SigningError::Passphrase { .. } => "choose another passphrase".to_owned(),
                _ => String::new(),
            },
            source: error.into(),
        },
    }
}

/// A file operation stays one; anything else does not come here.
fn as_file(error: SigningError) -> Failure {
    match error {
        SigningError::File { action, path, source } => Failure::File { doing: action, path, source },
        other => Failure::Internal { what: "keys could not be used", source: other.into() },
    }
}
