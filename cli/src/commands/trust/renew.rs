//! `selvedge trust renew`: the lists of releases signed again, before they expire or because other
//! keys speak for them from now on. Nothing is listed anew and nothing is dropped.

use std::path::PathBuf;

use reqwest::Method;
use selvedge_package::trust::verify_image;
use selvedge_signing::lifetimes::{self, expiry};
use selvedge_signing::roots::RootSpec;
use selvedge_signing::tree::{Renewal, renew_files};
use serde_json::json;

use super::publish::texts;
use super::rotate::Lifetime;
use crate::ceremony::passphrase::PassphraseArgs;
use crate::ceremony::seen::Seen;
use crate::ceremony::{chain, files, signers};
use crate::clock;
use crate::commands::Surroundings;
use crate::commands::release::previous;
use crate::failure::Failure;
use crate::keyring::failed;

/// Sign the lists of releases again, before they expire or for other keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge trust renew --keys keys                                (alone)
  selvedge trust renew --keys keys --key alice.pem --propose renewed
  selvedge trust renew --keys keys --for next.json --key alice.pem --propose resigned
                                                                  (for a root that changes the targets keys)")]
pub struct Args {
    /// Directory of the keys, whose root is trusted
    #[arg(long, value_name = "DIR")]
    pub keys: PathBuf,
    /// A private key to sign with, in place of those in the directory; may be repeated
    #[arg(long, value_name = "KEY.pem")]
    pub key: Vec<PathBuf>,
    /// Only what expires within so many days; without it, everything
    #[arg(long, value_name = "DAYS", conflicts_with = "for_root")]
    pub within: Option<Lifetime>,
    /// The next root, whose keys shall speak for the lists; it is published with them
    #[arg(long = "for", value_name = "ROOT.json", requires = "propose")]
    pub for_root: Option<PathBuf>,
    /// Do not hand it in: write what is signed so far into this folder, for others to sign
    #[arg(long, value_name = "DIR")]
    pub propose: Option<PathBuf>,
    /// Where passphrases come from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// Signs again.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let root = chain::newest(&args.keys, &registry, chain::Which::Image).await?;
    let mut seen = Seen::load(&args.keys)?;
    let Some(held) = previous(&registry, &root, &args.keys, &seen).await? else {
        return Err(Failure::missing("nothing was released yet", "there is nothing to sign again"));
    };
    let now = clock::now();
    let new_root = args.for_root.as_deref().map(files::read).transpose()?;
    if let (Some(path), Some(next)) = (&args.for_root, &new_root) {
        super::sign::succeeds(path, next, &root)?;
    }
    let authority = new_root.as_deref().unwrap_or(&root);
    let role = RootSpec::read(authority).map_err(|error| failed("read the root", error))?.targets;
    let keys = signers::releasers(&args.keys, &args.key, &role, &args.passphrase)?;
    let renewal = Renewal { root: authority, expires: expiry(now, lifetimes::IMAGE_TARGETS), least: 0 };
    let due = |_: &str, head: &selvedge_signing::metadata::Head| {
        args.within.is_none_or(|within| head.expires.duration_since(now) < within.0)
    };
    let changed = renew_files(&held, renewal, &signers::dynamic(&keys), due)
        .map_err(|error| failed("sign the lists of releases again", error))?;
    let names: Vec<&str> = changed.0.keys().map(String::as_str).collect();
    if changed.0.is_empty() {
        around.out.line("nothing expires in that time");
        around.out.value(&json!({"lists": names, "handed_in": false}));
        return Ok(());
    }
    if let Some(dir) = &args.propose {
        files::propose(dir, &changed, Some(&held))?;
        around.out.line(format!("{} lists are in {}: {}", names.len(), dir.display(), names.join(", ")));
        let signed = changed.on(Some(&held));
        let complete = verify_image(authority, &signed, now).is_ok();
        around.out.line(if complete {
            "they are complete"
        } else {
            "others must sign them: `selvedge trust sign`"
        });
        around.out.value(&json!({"folder": dir, "lists": names, "complete": complete, "handed_in": false}));
        return Ok(());
    }
    let signed = changed.on(Some(&held));
    verify_image(&root, &signed, now).map_err(|source| Failure::Untrusted {
        what: "these keys alone cannot sign the lists".to_owned(),
        advice: "--propose DIR writes them for the others to sign".to_owned(),
        source: Some(source.into()),
    })?;
    let body = json!({"roles": texts(&changed.0)?});
    registry
        .call("take the lists that were signed again", Method::POST, "/v1/trust/image", Some(&body))
        .await?;
    seen.keep(registry.address(), &signed)?;
    around.out.line(format!("signed again until {}: {}", renewal.expires, names.join(", ")));
    around.out.value(&json!({"lists": names, "expires": renewal.expires, "handed_in": true}));
    Ok(())
}
