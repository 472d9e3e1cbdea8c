//! `selvedge trust init`: roots of version 1 that nobody has signed yet, and the online keys.

use std::path::PathBuf;

use jiff::Timestamp;
use selvedge_signing::keyring::{self, RootFiles};
use selvedge_signing::lifetimes::expiry;
use selvedge_signing::roots::{RoleKeys, RootSpec, unsigned_root};
use selvedge_signing::{OnlineKeys, PublicKey};
use serde_json::json;

use super::rotate::Lifetime;
use crate::ceremony::words;
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;

/// Make the roots of a new registry from people's public keys, and the registry's own keys.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for `roots/` and `online/`, neither of which may be there
    pub dir: PathBuf,
    /// Public key of somebody who signs roots; may be repeated
    #[arg(long, value_name = "FILE.pub", required = true)]
    pub root_key: Vec<PathBuf>,
    /// How many of them must sign [default: 2 where there are several]
    #[arg(long, value_name = "N")]
    pub root_threshold: Option<u64>,
    /// Public key of somebody who releases; may be repeated
    #[arg(long, value_name = "FILE.pub", required = true)]
    pub targets_key: Vec<PathBuf>,
    /// How many of them must sign
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub targets_threshold: u64,
    /// How long the roots live
    #[arg(long, value_name = "DAYS", default_value = "730d")]
    pub expires: Lifetime,
}

/// Makes both roots.
pub fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let root = people(&args.root_key, args.root_threshold)?;
    let targets = people(&args.targets_key, Some(args.targets_threshold))?;
    let making = |error| failed(format!("make roots in {}", args.dir.display()), error);
    let online = OnlineKeys::generate().map_err(making)?;
    let expires = expiry(clock::now(), args.expires.0);
    let roots = first(&root, &targets, &online, expires).map_err(making)?;
    keyring::place_online(&args.dir, &roots, &online).map_err(making)?;
    let (lines, image) = words::root(&roots.image)?;
    let (more, director) = words::root(&roots.director)?;
    for line in lines.iter().chain(&more) {
        around.out.line(line);
    }
    let folder = args.dir.join("roots");
    around.out.line(format!(
        "\nnobody has signed them yet. {} people must, each with an own key:\n  selvedge trust sign {} --key KEY.pem",
        root.threshold,
        folder.display()
    ));
    around.out.line(format!("`selvedge trust check {}` says when it is enough", folder.display()));
    around.out.line(format!(
        "{} is for the registry alone; give it that and roots/",
        args.dir.join("online").display()
    ));
    around.out.value(&json!({"directory": args.dir, "roots": [image, director]}));
    Ok(())
}

fn first(
    root: &RoleKeys,
    targets: &RoleKeys,
    online: &OnlineKeys,
    expires: Timestamp,
) -> Result<RootFiles, selvedge_signing::SigningError> {
    let image = RootSpec {
        version: 1,
        expires,
        root: root.clone(),
        targets: targets.clone(),
        snapshot: RoleKeys::single(online.image_snapshot.public_key()),
        timestamp: RoleKeys::single(online.image_timestamp.public_key()),
    };
    let director = RootSpec {
        version: 1,
        expires,
        root: root.clone(),
        targets: RoleKeys::single(online.director_targets.public_key()),
        snapshot: RoleKeys::single(online.director_snapshot.public_key()),
        timestamp: RoleKeys::single(online.director_timestamp.public_key()),
    };
    Ok(RootFiles { image: unsigned_root("image", &image)?, director: unsigned_root("director", &director)? })
}

fn people(files: &[PathBuf], threshold: Option<u64>) -> Result<RoleKeys, Failure> {
    let mut keys: Vec<PublicKey> = Vec::new();
    for path in files {
        let key = public(path)?;
        if keys.contains(&key) {
            return Err(Failure::usage(
                format!("{} is given twice", path.display()),
                "one person counts once: give each key once",
            ));
        }
        keys.push(key);
    }
    let threshold = threshold.unwrap_or(if keys.len() > 1 { 2 } else { 1 });
    if threshold == 0 || threshold > keys.len() as u64 {
        return Err(Failure::usage(
            format!("{threshold} of {} keys can never sign", keys.len()),
            "give a threshold from 1 to the number of keys",
        ));
    }
    Ok(RoleKeys { keys, threshold })
}

/// Reads a public key file.
pub fn public(path: &std::path::Path) -> Result<PublicKey, Failure> {
    if !path.exists() {
        return Err(Failure::no_file(path, "`selvedge keys new FILE.pem` makes a key and its FILE.pub"));
    }
    PublicKey::load(path).map_err(|error| failed(format!("read {}", path.display()), error))
}
