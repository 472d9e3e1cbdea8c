//! Roots of trust: taken from files, compared with what this registry has served before.
//!
//! A registry never changes its roots for others that do not follow from them: its devices would
//! refuse everything from then on. Its online keys must be those that the roots name.

use std::path::Path;

use jiff::Timestamp;
use selvedge_package::trust::{MetadataBundle, RepositoryMetadata, TrustState, adopt_roots};
use selvedge_signing::keyring::RootFiles;
use selvedge_signing::{OnlineKeys, Signer, metadata};
use serde_json::Value;

use super::{chain, text};
use crate::error::Error;
use crate::store::Store;
use crate::store::metadata::{Repository, Role, Signed};

/// Take the roots in `folder` over. Says whether one is newer than the one before.
pub(super) async fn take_over(
    folder: &Path,
    online: &OnlineKeys,
    store: &Store,
    now: Timestamp,
) -> Result<bool, Error> {
    let files = RootFiles::load(folder)
        .map_err(|error| Error::Keys { what: "the roots".to_owned(), why: chain(&error) })?;
    let image = stored(store, &Repository::Image).await?;
    let director = stored(store, &Repository::DirectorRoot).await?;
    let parts = [
        ("image", Repository::Image, files.image, image),
        ("director", Repository::DirectorRoot, files.director, director),
    ];
    let mut moved = false;
    let mut change = store.change().await?;
    for (name, repository, offered, held) in parts {
        let path = folder.join(format!("{name}.root.json"));
        let refuse = |why: String| Error::Root { repository: name, path: path.clone(), why };
        let head = metadata::head(&offered).map_err(|error| refuse(chain(&error)))?;
        let newest = match held {
            Some(held) if head.version < held.version => held.body.into_bytes(),
            Some(held) if head.version == held.version => {
                if held.body.as_bytes() != offered {
                    let why = format!(
                        "version {} differs from the one that this registry's devices trust; use other data for another fleet",
                        head.version
                    );
                    return Err(refuse(why));
                }
                offered
            }
            held => {
                let first = held.is_none();
                follows(name, held.map(|held| held.body.into_bytes()), &offered, now).map_err(refuse)?;
                let signed = Signed {
                    role: Role::Root,
                    version: head.version,
                    signed_ms: now.as_millisecond(),
                    expires_ms: head.expires.as_millisecond(),
                    body: text("a root", offered.clone())?,
                };
                change.keep_metadata(&repository, &signed).await?;
                moved |= !first;
                offered
            }
        };
        check_keys(name, &newest, online).map_err(|why| Error::Root {
            repository: name,
            path: path.clone(),
            why,
        })?;
        if head.expires <= now {
            tracing::error!(repository = name, "the root has expired: devices accept nothing new");
        }
    }
    if moved {
        change.expire_directed().await?;
        change.audit(now.as_millisecond(), "registry", "root-rotate", "roots", serde_json::json!({})).await?;
    }
    change.commit().await?;
    Ok(moved)
}

async fn stored(store: &Store, repository: &Repository) -> Result<Option<Signed>, Error> {
    store.newest(repository, Role::Root).await
}

/// Whether `offered` is a root, and follows from the one before it.
fn follows(name: &str, held: Option<Vec<u8>>, offered: &[u8], now: Timestamp) -> Result<(), String> {
    let base = held.as_deref().unwrap_or(offered);
    // Either repository's rules are the same; the other part of the state plays no role.
    let state = TrustState::enrol(base, base, now).map_err(|error| chain(&error))?;
    if held.is_none() {
        return Ok(());
    }
    let offer = RepositoryMetadata { roots: vec![offered.to_vec()], ..RepositoryMetadata::default() };
    let bundle = match name {
        "image" => MetadataBundle { image: offer, ..MetadataBundle::default() },
        _ => MetadataBundle { director: offer, ..MetadataBundle::default() },
    };
    match adopt_roots(&state, &bundle) {
        Ok(_) => Ok(()),
        Err(error) => Err(chain(&error)),
    }
}

/// Whether the root names the online keys, each alone for its role.
fn check_keys(name: &str, root: &[u8], online: &OnlineKeys) -> Result<(), String> {
    let root: Value = serde_json::from_slice(root).map_err(|error| error.to_string())?;
    let roles: &[(&str, &dyn Signer)] = match name {
        "image" => &[("snapshot", &online.image_snapshot), ("timestamp", &online.image_timestamp)],
        _ => &[
            ("targets", &online.director_targets),
            ("snapshot", &online.director_snapshot),
            ("timestamp", &online.director_timestamp),
        ],
    };
    for (role, key) in roles {
        let id = key.public_key().key_id().map_err(|error| chain(&error))?;
        let named = &root["signed"]["roles"][role];
        let known =
            named["keyids"].as_array().is_some_and(|ids| ids.iter().any(|known| known.as_str() == Some(&id)));
        if !known {
            return Err(format!(
                "it does not name the online key `{name}-{role}`: keys and roots are of different rings"
            ));
        }
        if named["threshold"].as_u64() != Some(1) {
            return Err(format!("its role {role} wants more than the one key that is online"));
        }
    }
    Ok(())
}
