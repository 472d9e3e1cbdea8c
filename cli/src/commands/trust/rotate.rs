//! `selvedge trust rotate`: the next root as a proposal, and in words what it changes.

use std::path::PathBuf;
use std::str::FromStr;

use jiff::SignedDuration;
use selvedge_signing::lifetimes::expiry;
use selvedge_signing::roots::{self, RootSpec, unsigned_root};
use selvedge_signing::signatures::{add, standing};
use serde_json::json;

use super::init::public;
use crate::ceremony::chain::Which;
use crate::ceremony::passphrase::PassphraseArgs;
use crate::ceremony::{files, signers, words};
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;
use crate::supervisor::record::write_atomically;

/// Make the next root: other keys, another threshold, another end.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which of the two repositories
    #[arg(long)]
    pub repository: Which,
    /// The newest root of it
    #[arg(long, value_name = "FILE")]
    pub root: PathBuf,
    /// A key that a role shall have; may be repeated. Roles: root, targets, snapshot, timestamp
    #[arg(long, value_name = "ROLE=FILE.pub")]
    pub add_key: Vec<Of<PathBuf>>,
    /// A key that a role shall not have any more, by its id or the beginning of it; may be repeated
    #[arg(long, value_name = "ROLE=KEYID")]
    pub remove_key: Vec<Of<String>>,
    /// How many of a role's keys must sign; may be repeated
    #[arg(long, value_name = "ROLE=N")]
    pub threshold: Vec<Of<u64>>,
    /// How long it lives from now on
    #[arg(long, value_name = "DAYS", default_value = "730d")]
    pub expires: Lifetime,
    /// Where to write it; a file that is there is not replaced
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// A private key to sign it with at once; may be repeated
    #[arg(long, value_name = "KEY.pem")]
    pub key: Vec<PathBuf>,
    /// Where passphrases come from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// Something of a role: `ROLE=…`.
#[derive(Debug, Clone)]
pub struct Of<T> {
    role: String,
    what: T,
}

impl<T: FromStr> FromStr for Of<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (role, what) = text.split_once('=').ok_or("write it like root=…")?;
        if !["root", "targets", "snapshot", "timestamp"].contains(&role) {
            return Err(format!("there is no role `{role}`: root, targets, snapshot, timestamp"));
        }
        let what = what.parse().map_err(|_| format!("`{what}` cannot be read"))?;
        Ok(Self { role: role.to_owned(), what })
    }
}

/// A number of days, as `730d`.
#[derive(Debug, Clone, Copy)]
pub struct Lifetime(pub SignedDuration);

impl FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok()).filter(|days| *days > 0);
        let days = days.ok_or("write a number of days from 1 to 65535, like 730d")?;
        Ok(Self(SignedDuration::from_hours(24 * i64::from(days))))
    }
}

/// Writes the proposal.
pub fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let current = files::read(&args.root)?;
    let reading = |error| failed(format!("read {}", args.root.display()), error);
    let before = RootSpec::read(&current).map_err(reading)?;
    if let Some(named) = roots::repository(&current).map_err(reading)?
        && named != args.repository.name()
    {
        return Err(Failure::usage(
            format!("{} is a root of the {named} repository", args.root.display()),
            format!("say --repository {named}, or name the root of the other one"),
        ));
    }
    if !standing(&current, None).map_err(reading)?.is_complete() {
        return Err(Failure::Untrusted {
            what: format!("{} is not signed by enough of its own keys", args.root.display()),
            advice: "a proposal is made from the root that is in force, which `selvedge trust check` calls complete"
                .to_owned(),
            source: None,
        });
    }
    let mut next = RootSpec {
        version: before.version.saturating_add(1),
        expires: expiry(clock::now(), args.expires.0),
        ..before.clone()
    };
    change(&mut next, args)?;
    let making = |error| failed("make the next root", error);
    let changes = next.changes(&before).map_err(making)?;
    let proposal = unsigned_root(args.repository.name(), &next).map_err(making)?;
    let keys = signers::load(&args.key, &args.passphrase)?;
    let proposal = add(&proposal, &signers::dynamic(&keys)).map_err(making)?;
    if args.out.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", args.out.display()),
            advice: "say another file with --out".to_owned(),
        });
    }
    write_atomically(&args.out, &proposal, true)?;

    let name = args.repository.name();
    around.out.line(format!("{}: {name} root version {} changes", args.out.display(), next.version));
    for line in &changes {
        around.out.line(format!("  {line}"));
    }
    for warning in warnings(args.repository, &next) {
        around.out.note(format!("warning: {warning}"));
    }
    let stands = standing(&proposal, Some(&current)).map_err(making)?;
    let (lines, needs) = words::standing(&stands);
    for line in &lines {
        around.out.line(line);
    }
    around.out.line(format!(
        "each who must sign: selvedge trust sign {} --root {} --key KEY.pem",
        args.out.display(),
        args.root.display()
    ));
    around.out.value(&json!({
        "file": args.out, "repository": name, "version": next.version, "expires": next.expires,
        "changes": changes, "signatures": needs, "complete": stands.is_complete(),
    }));
    Ok(())
}

fn change(next: &mut RootSpec, args: &Args) -> Result<(), Failure> {
    let missing =
        |role: &str| Failure::usage(format!("there is no role {role}"), "root, targets, snapshot, timestamp");
    for Of { role, what } in &args.remove_key {
        let keys = next.role_mut(role).ok_or_else(|| missing(role))?;
        let mut found = Vec::new();
        for key in &keys.keys {
            let id = key.key_id().map_err(|error| failed("read a key", error))?;
            if what.len() >= 8 && id.starts_with(what.as_str()) {
                found.push(*key);
            }
        }
        let [key] = found.as_slice() else {
            return Err(Failure::missing(
                format!("{} keys of the role {role} have an id that begins with `{what}`", found.len()),
                "give at least 8 digits of the id; `selvedge trust show FILE` lists them",
            ));
        };
        keys.keys.retain(|held| held != key);
    }
    for Of { role, what } in &args.add_key {
        let key = public(what)?;
        let keys = next.role_mut(role).ok_or_else(|| missing(role))?;
        if keys.keys.contains(&key) {
            return Err(Failure::Conflict {
                what: format!("the role {role} has the key of {} already", what.display()),
                advice: "leave it out".to_owned(),
            });
        }
        keys.keys.push(key);
    }
    for Of { role, what } in &args.threshold {
        next.role_mut(role).ok_or_else(|| missing(role))?.threshold = *what;
    }
    for (role, keys) in next.roles() {
        if keys.threshold == 0 || keys.threshold > keys.keys.len() as u64 {
            return Err(Failure::usage(
                format!("{} of {} keys could never sign for {role}", keys.threshold, keys.keys.len()),
                format!(
                    "add keys with --add-key {role}=FILE.pub, or change the number with --threshold {role}=N"
                ),
            ));
        }
    }
    Ok(())
}

/// What is allowed, and hardly meant.
fn warnings(repository: Which, next: &RootSpec) -> Vec<String> {
    let mut said = Vec::new();
    for (role, keys) in next.roles() {
        let online =
            role == "snapshot" || role == "timestamp" || (repository == Which::Director && role == "targets");
        if online && keys.threshold > 1 {
            said.push(format!("{role} is signed by the registry alone, which has one key for it: it will refuse {} signatures", keys.threshold));
        }
        let shared = online && keys.keys.iter().any(|key| next.root.keys.contains(key));
        if shared {
            said.push(format!("a key of {role}, which is online, also signs roots"));
        }
    }
    said
}
