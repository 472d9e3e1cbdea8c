//! The roots of a directory of keys, and the chain from them to the newest ones that a registry has.
//!
//! What the directory holds is trusted; what the registry shows is followed only as a device would
//! follow it, and what was followed is kept, so that a revoked key stays revoked here too.

use std::path::Path;

use selvedge_signing::keyring::RootFiles;
use selvedge_signing::signatures::standing;
use selvedge_signing::{metadata, roots};
use serde_json::Value;

use crate::client::Registry;
use crate::failure::{Cause, Failure};
use crate::keyring::failed;
use crate::supervisor::record::write_atomically;

/// Which of the two repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// What exists
    Image,
    /// What each device shall run
    Director,
}

impl Which {
    /// Its name in paths and bodies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Director => "director",
        }
    }

    /// By its name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Image, Self::Director].into_iter().find(|which| which.name() == name)
    }
}

/// The roots of a directory of keys.
pub fn held(keys: &Path) -> Result<RootFiles, Failure> {
    RootFiles::load(&keys.join("roots"))
        .map_err(|error| failed(format!("read the roots in {}", keys.display()), error))
}

/// Every root that the registry has published, oldest first.
pub async fn published(registry: &Registry, which: Which) -> Result<Vec<Vec<u8>>, Failure> {
    let answer = registry.get("show its roots", "/v1/trust/roots").await?;
    let list = answer.get(which.name()).and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(list.iter().filter_map(Value::as_str).map(|text| text.as_bytes().to_vec()).collect())
}

/// Follows the chain from `trusted` as far as it leads.
pub fn follow(which: Which, trusted: &[u8], roots: Vec<Vec<u8>>) -> Result<Vec<u8>, Cause> {
    let version = |bytes: &[u8]| Ok::<_, Cause>(metadata::head(bytes)?.version);
    let mut newest = trusted.to_vec();
    for root in roots {
        if version(&root)? <= version(&newest)? {
            continue;
        }
        follows(which, &newest, &root)?;
        newest = root;
    }
    Ok(newest)
}

/// Whether a device that trusts `before` would take `next`: the next version, of the same repository,
/// signed by enough keys of both. Expiry is not looked at: a chain leads over roots that have expired.
pub fn follows(which: Which, before: &[u8], next: &[u8]) -> Result<(), Cause> {
    let (held, offered) = (metadata::head(before)?, metadata::head(next)?);
    if offered.role != "root" || held.version.checked_add(1) != Some(offered.version) {
        return Err(format!(
            "after root version {} comes version {}, this is {} version {}",
            held.version,
            held.version.saturating_add(1),
            offered.role,
            offered.version
        )
        .into());
    }
    if let Some(name) = roots::repository(next)?
        && name != which.name()
    {
        return Err(format!("it is a root of the {name} repository").into());
    }
    let stands = standing(next, Some(before))?;
    match stands.groups.iter().find(|group| !group.is_content()) {
        None => Ok(()),
        Some(group) => Err(format!(
            "{} of {} signatures that are needed by {}",
            group.signed(),
            group.threshold,
            group.named_by
        )
        .into()),
    }
}

/// The newest root of a repository, from the directory's own: followed at the registry, and kept.
pub async fn newest(keys: &Path, registry: &Registry, which: Which) -> Result<Vec<u8>, Failure> {
    let held = held(keys)?;
    let trusted = match which {
        Which::Image => held.image,
        Which::Director => held.director,
    };
    let roots = published(registry, which).await?;
    let newest = follow(which, &trusted, roots).map_err(|source| Failure::Untrusted {
        what: format!(
            "the registry's {} roots do not follow from the one in {}",
            which.name(),
            keys.display()
        ),
        advice: "the directory holds the keys of another registry, or somebody tampers with this one"
            .to_owned(),
        source: Some(source),
    })?;
    if newest != trusted {
        keep(keys, which, &newest)?;
    }
    Ok(newest)
}

/// Keeps a root as the newest of the directory.
pub fn keep(keys: &Path, which: Which, root: &[u8]) -> Result<(), Failure> {
    write_atomically(&keys.join("roots").join(format!("{}.root.json", which.name())), root, false)
}

/// The same, where it is newer than the directory's. The caller knows that it follows from that.
pub fn keep_newer(keys: &Path, which: Which, root: &[u8]) -> Result<(), Failure> {
    let reading = |error| failed("read a root", error);
    let held = held(keys)?;
    let held = match which {
        Which::Image => held.image,
        Which::Director => held.director,
    };
    let version = |bytes: &[u8]| metadata::head(bytes).map(|head| head.version).map_err(reading);
    match version(root)? > version(&held)? {
        true => keep(keys, which, root),
        false => Ok(()),
    }
}
