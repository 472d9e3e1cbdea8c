//! `selvedge trust sign`: shows what a file says and adds a signature. Works without any network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use selvedge_signing::roots::{self, RootSpec};
use selvedge_signing::signatures::{Standing, add, standing};
use selvedge_signing::{PublicKey, metadata};
use serde_json::{Value, json};

use super::list;
use crate::ceremony::passphrase::PassphraseArgs;
use crate::ceremony::{files, signers, words};
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;
use crate::supervisor::record::write_atomically;

/// Show what a file says and add your signature.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge trust sign keys/roots --key alice.pem                           (both roots of a new registry)
  selvedge trust sign next.json --root image.root.json --key alice.pem     (the root after that one)
  selvedge trust sign proposal --root image.root.json --key alice.pem      (releases that others propose)")]
pub struct Args {
    /// A root, a list of releases, or a folder of them; it is replaced by the one with your signature
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    /// Your private key; may be repeated
    #[arg(long, value_name = "KEY.pem", required = true)]
    pub key: Vec<PathBuf>,
    /// Your own copy of the root that is in force: needed for all but roots of version 1
    #[arg(long, value_name = "FILE")]
    pub root: Option<PathBuf>,
    /// The root that the lists before were signed under, where other keys speak for them from now on
    #[arg(long, value_name = "FILE", requires = "root")]
    pub before: Option<PathBuf>,
    /// Only show it
    #[arg(long)]
    pub dry_run: bool,
    /// Where passphrases come from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// One file that may be signed.
struct Sheet {
    path: PathBuf,
    bytes: Vec<u8>,
    stands: Standing,
}

/// Shows, checks, signs.
pub fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let root = args.root.as_deref().map(files::read).transpose()?;
    let mut sheets = Vec::new();
    for path in files::named(&args.path)? {
        sheets.push(sheet(path, root.as_deref())?);
    }
    let mut shown = Vec::new();
    for sheet in &sheets {
        shown.push(show(around, sheet, root.as_deref())?);
    }
    let before = args.before.as_deref().map(files::read).transpose()?;
    let releases = releases(around, &args.path, &sheets, root.as_deref(), before.as_deref())?;
    let keys = signers::load(&args.key, &args.passphrase)?;
    let public: Vec<PublicKey> = keys.iter().map(|key| key.public_key()).collect();
    for key in &public {
        if !sheets.iter().any(|sheet| sheet.stands.wants(key)) {
            return Err(Failure::Untrusted {
                what: format!(
                    "the key {} has no say in {}",
                    key.key_id().map_err(|error| failed("read the key", error))?,
                    args.path.display()
                ),
                advice: "sign with one of the keys that are listed above".to_owned(),
                source: None,
            });
        }
    }
    let mut results = Vec::new();
    for (sheet, mut shown) in sheets.iter().zip(shown) {
        let own: Vec<_> = keys.iter().filter(|key| sheet.stands.wants(&key.public_key())).collect();
        let own: Vec<&dyn selvedge_signing::Signer> = own.into_iter().map(|key| key as _).collect();
        let signed = add(&sheet.bytes, &own)
            .map_err(|error| failed(format!("sign {}", sheet.path.display()), error))?;
        let before = root.as_deref().filter(|_| !is_first(sheet));
        let stands = standing(&signed, before)
            .map_err(|error| failed(format!("sign {}", sheet.path.display()), error))?;
        if !args.dry_run && signed != sheet.bytes {
            write_atomically(&sheet.path, &signed, false)?;
        }
        let complete = stands.is_complete();
        let again = public.iter().all(|key| !sheet.stands.wants(key) || sheet.stands.has(key));
        let word = match (args.dry_run, again) {
            (true, _) => "not signed, as you asked",
            (_, true) => "was signed by you already",
            _ => "signed",
        };
        let (lines, needs) = words::standing(&stands);
        around.out.line(format!("{}: {word}", sheet.path.display()));
        for line in lines {
            around.out.line(format!("  {line}"));
        }
        around.out.line(if complete { "  it is complete" } else { "  others must sign it too" });
        shown["signatures"] = needs;
        shown["complete"] = complete.into();
        results.push(shown);
    }
    around.out.value(&json!({"files": results, "releases": releases, "signed": !args.dry_run}));
    Ok(())
}

fn sheet(path: PathBuf, root: Option<&[u8]>) -> Result<Sheet, Failure> {
    let bytes = files::read(&path)?;
    let reading = |error| failed(format!("read {}", path.display()), error);
    let head = metadata::head(&bytes).map_err(reading)?;
    words::check_expiry(&path.display().to_string(), head.expires, clock::now())?;
    let first = head.role == "root" && head.version == 1;
    let root = match (root, first) {
        (_, true) => None,
        (Some(root), false) => Some(root),
        (None, false) => {
            return Err(Failure::usage(
                format!("{} follows from a root, and which one was not said", path.display()),
                "say --root FILE with your own copy of the root that is in force",
            ));
        }
    };
    if let Some(root) = root {
        succeeds(&path, &bytes, root)?;
    }
    let stands = standing(&bytes, root).map_err(reading)?;
    Ok(Sheet { path, bytes, stands })
}

fn is_first(sheet: &Sheet) -> bool {
    sheet.stands.head.role == "root" && sheet.stands.head.version == 1
}

/// Whether a root is of the same repository as the one before, and the next one.
pub fn succeeds(path: &Path, bytes: &[u8], root: &[u8]) -> Result<(), Failure> {
    let reading = |error| failed(format!("read {}", path.display()), error);
    let head = metadata::head(bytes).map_err(reading)?;
    if head.role != "root" {
        return Ok(());
    }
    let held = metadata::head(root).map_err(|error| failed("read the root that is in force", error))?;
    let (ours, theirs) =
        (roots::repository(bytes).map_err(reading)?, roots::repository(root).map_err(reading)?);
    if let (Some(ours), Some(theirs)) = (ours, theirs)
        && ours != theirs
    {
        return Err(Failure::Untrusted {
            what: format!(
                "{} is a root of the {ours} repository, the one in force of the {theirs} repository",
                path.display()
            ),
            advice: "do not sign or publish it for the other repository".to_owned(),
            source: None,
        });
    }
    if head.version != held.version + 1 {
        return Err(Failure::Untrusted {
            what: format!(
                "{} is root version {}; after version {} comes version {}",
                path.display(),
                head.version,
                held.version,
                held.version + 1
            ),
            advice: "check --root: it must be the newest one; `selvedge trust show` shows that of a registry"
                .to_owned(),
            source: None,
        });
    }
    Ok(())
}

fn show(around: &Surroundings<'_>, sheet: &Sheet, root: Option<&[u8]>) -> Result<Value, Failure> {
    let head = &sheet.stands.head;
    let path = &sheet.path;
    let reading = |error| failed(format!("read {}", path.display()), error);
    around.out.line(words::head(path, head));
    let mut changes = Vec::new();
    if head.role == "root" {
        let (lines, _) = words::root(&sheet.bytes)?;
        for line in lines {
            around.out.line(format!("  {line}"));
        }
        if let Some(root) = root.filter(|_| !is_first(sheet)) {
            let before = RootSpec::read(root).map_err(reading)?;
            changes = RootSpec::read(&sheet.bytes).and_then(|next| next.changes(&before)).map_err(reading)?;
            around.out.line(format!("  changes against version {}:", before.version));
            for line in &changes {
                around.out.line(format!("    {line}"));
            }
        }
    }
    Ok(
        json!({"file": path, "role": head.role, "version": head.version, "expires": head.expires, "changes": changes}),
    )
}

/// What the lists among the sheets add to what was released.
fn releases(
    around: &Surroundings<'_>,
    path: &Path,
    sheets: &[Sheet],
    root: Option<&[u8]>,
    signed_under: Option<&[u8]>,
) -> Result<Value, Failure> {
    let lists: BTreeMap<String, Vec<u8>> = sheets
        .iter()
        .filter(|sheet| sheet.stands.head.role == "targets")
        .map(|sheet| {
            let role = sheet.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (role, sheet.bytes.clone())
        })
        .collect();
    let Some(root) = root.filter(|_| !lists.is_empty()) else { return Ok(Value::Null) };
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let before = files::before(folder)?;
    let (lines, value) = list::changes(root, signed_under.unwrap_or(root), before.as_ref(), &lists)?;
    for line in lines {
        around.out.line(format!("  {line}"));
    }
    Ok(value)
}
