//! Roots of trust: taken from files at the start, published later, and always following the ones before.
//!
//! A registry never changes its roots for others that do not follow from them: its devices would
//! refuse everything from then on. Its online keys must be those that the roots name.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use selvedge_package::limits::MetadataLimits;
use selvedge_package::trust::{MetadataBundle, RepositoryMetadata, TrustState, adopt_roots};
use selvedge_signing::keyring::RootFiles;
use selvedge_signing::{OnlineKeys, Signer, metadata};
use serde_json::{Value, json};

use super::{Options, Trust, chain, image, text, upload};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::store::Store;
use crate::store::metadata::{Repository, Role, Signed};

/// A root to be published.
#[derive(Debug, Clone, Copy)]
pub struct Offered<'a> {
    /// `image` or `director`.
    pub repository: &'static str,
    /// The root as signed.
    pub root: &'a str,
    /// Roles of the Image repository that are signed again, where it has other keys for them.
    pub roles: &'a BTreeMap<String, String>,
}

/// Take the roots in the folder over. Gives the online keys that the newest roots name, and whether one
/// is newer than the one before.
pub(super) async fn take_over(
    options: &Options,
    store: &Store,
    now: Timestamp,
) -> Result<(OnlineKeys, bool), Error> {
    let folder = &options.roots;
    let files = RootFiles::load(folder)
        .map_err(|error| Error::Keys { what: "the roots".to_owned(), why: chain(&error) })?;
    let image = stored(store, &Repository::Image).await?;
    let director = stored(store, &Repository::DirectorRoot).await?;
    // Each is judged beside the other repository's, as devices hold them.
    let others = [files.director.clone(), files.image.clone()];
    let parts = [
        ("image", Repository::Image, files.image, image),
        ("director", Repository::DirectorRoot, files.director, director),
    ];
    let path = |name: &str| folder.join(format!("{name}.root.json"));
    let mut newest = Vec::new();
    let mut moved = false;
    let mut change = store.change().await?;
    for ((name, repository, offered, held), other) in parts.into_iter().zip(&others) {
        let refuse = |why: String| Error::Root { repository: name, path: path(name), why };
        let head = metadata::head(&offered).map_err(|error| refuse(chain(&error)))?;
        newest.push(match held {
            // Published since: the file is the first root, or an earlier one.
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
                let held = held.map(|held| held.body.into_bytes());
                follows(name, held, &offered, other, now).map_err(refuse)?;
                change.keep_metadata(&repository, &signed(&head, &offered, now)?).await?;
                moved |= !first;
                offered
            }
        });
        if head.expires <= now {
            tracing::error!(repository = name, "the root has expired: devices accept nothing new");
        }
    }
    let roots = both(newest);
    let online = online(&options.online_keys, &roots)?.map_err(|unnamed| Error::Root {
        repository: unnamed.repository,
        path: path(unnamed.repository),
        why: unnamed.why,
    })?;
    if moved {
        change.expire_directed().await?;
        change.audit(now.as_millisecond(), "registry", "root-rotate", "roots", json!({})).await?;
    }
    change.commit().await?;
    Ok((online, moved))
}

/// Publish the next root, with all that must be signed under it, in one transaction. Gives the online
/// keys from now on. The caller holds the signing lock.
pub(super) async fn publish(
    trust: &Trust,
    store: &Store,
    offered: Offered<'_>,
    now: Timestamp,
) -> Result<OnlineKeys, Refusal> {
    let Offered { repository: name, root, roles } = offered;
    let untrusted = |why: String| Refusal::Untrusted { why };
    let most = MetadataLimits::DEVICE.root_bytes;
    if root.len() > most {
        return Err(untrusted(format!("a root has at most {most} bytes, not {}", root.len())));
    }
    let head = metadata::head(root.as_bytes()).map_err(|error| untrusted(chain(&error)))?;
    let newest = trust.roots(store).await?;
    let held = if name == "image" { &newest.image } else { &newest.director };
    let before = metadata::head(held.as_bytes()).map_err(|error| untrusted(chain(&error)))?.version;
    let want = before.saturating_add(1);
    if head.version != want {
        return Err(Refusal::RootVersion { repository: name, got: head.version, want });
    }
    if let Ok(Some(other)) = selvedge_signing::roots::repository(root.as_bytes())
        && other != name
    {
        return Err(untrusted(format!("it is a root of the {other} repository")));
    }
    let other = if name == "image" { &newest.director } else { &newest.image };
    follows(name, Some(held.clone().into_bytes()), root.as_bytes(), other.as_bytes(), now)
        .map_err(untrusted)?;
    if head.expires <= now {
        return Err(untrusted(format!("the root expired at {}", head.expires)));
    }
    let (image, director) = match name {
        "image" => (root.to_owned(), newest.director),
        _ => (newest.image, root.to_owned()),
    };
    let roots = RootFiles { image: image.into_bytes(), director: director.into_bytes() };
    let keys = online(&trust.folder, &roots)?.map_err(|unnamed| {
        let why = format!(
            "{}; a key for a new root goes beside the old one, as NAME.2.pem, into {}",
            unnamed.why,
            trust.folder.display()
        );
        Refusal::OnlineKeys { why }
    })?;
    let now_ms = now.as_millisecond();
    let mut change = store.change().await?;
    let repository = if name == "image" { Repository::Image } else { Repository::DirectorRoot };
    change.keep_metadata(&repository, &signed(&head, root.as_bytes(), now)?).await?;
    let listed = store.image_roles().await?;
    if name == "image" && !(listed.is_empty() && roles.is_empty()) {
        if roles.is_empty() {
            let top = listed
                .get("targets")
                .ok_or_else(|| untrusted("the registry holds no targets.json".to_owned()))?;
            let none = BTreeMap::from([("targets".to_owned(), top.body.clone())]);
            upload::verify(&roots.image, &listed, &none, now).map_err(|_| {
                let why = "what is released does not verify under the new root: send it signed again with the root (`roles`), \
                           by the keys that the root names";
                untrusted(why.to_owned())
            })?;
            image::pin(trust, &keys, store, &mut change, &listed, now).await?;
        } else {
            let offered = upload::verify(&roots.image, &listed, roles, now)?;
            offered.check_versions(&listed)?;
            offered.same(&store.released().await?)?;
            image::take(trust, &keys, store, &mut change, &offered, now).await?;
        }
    } else if !roles.is_empty() {
        return Err(Refusal::because("roles", "only a root of the Image repository brings roles"));
    }
    change.expire_directed().await?;
    let detail = json!({"version": head.version, "expires": head.expires});
    change.audit(now_ms, "token", "root-publish", name, detail).await?;
    change.commit().await?;
    tracing::info!(repository = name, version = head.version, "a new root is published");
    Ok(keys)
}

fn signed(head: &metadata::Head, root: &[u8], now: Timestamp) -> Result<Signed, Error> {
    Ok(Signed {
        role: Role::Root,
        version: head.version,
        signed_ms: now.as_millisecond(),
        expires_ms: head.expires.as_millisecond(),
        body: text("a root", root.to_vec())?,
    })
}

async fn stored(store: &Store, repository: &Repository) -> Result<Option<Signed>, Error> {
    store.newest(repository, Role::Root).await
}

/// Whether `offered` is a root, and follows from the one before it; `other` is the other repository's.
fn follows(
    name: &str,
    held: Option<Vec<u8>>,
    offered: &[u8],
    other: &[u8],
    now: Timestamp,
) -> Result<(), String> {
    let base = held.as_deref().unwrap_or(offered);
    let (image, director) = if name == "image" { (base, other) } else { (other, base) };
    let state = TrustState::enrol(image, director, now).map_err(|error| chain(&error))?;
    if held.is_none() {
        return Ok(());
    }
    let offer = RepositoryMetadata { roots: vec![offered.to_vec()], ..RepositoryMetadata::default() };
    let bundle = match name {
        "image" => MetadataBundle { image: offer, ..MetadataBundle::default() },
        _ => MetadataBundle { director: offer, ..MetadataBundle::default() },
    };
    // What was verified before a bad one is kept by devices: here it counts only when it is this one.
    let adopted = adopt_roots(&state, &bundle).map_err(|error| chain(&error))?;
    let version = |state: &TrustState| match name {
        "image" => state.image_root_version(),
        _ => state.director_root_version(),
    };
    let reached = version(adopted.as_ref().unwrap_or(&state)).map_err(|error| chain(&error))?;
    let wanted = metadata::head(offered).map_err(|error| chain(&error))?.version;
    match reached == wanted {
        true => Ok(()),
        false => {
            Err("it does not follow from the newest root: too few of its keys, or of the new ones, have \
                      signed it, or it skips a version"
                .to_owned())
        }
    }
}

/// The two roots that were collected, in their order.
fn both(mut newest: Vec<Vec<u8>>) -> RootFiles {
    let director = newest.pop().unwrap_or_default();
    RootFiles { image: newest.pop().unwrap_or_default(), director }
}

/// A root does not name a key that is online.
struct Unnamed {
    repository: &'static str,
    why: String,
}

/// The keys of the folder that the roots name, each alone for its role.
fn online(folder: &Path, roots: &RootFiles) -> Result<Result<OnlineKeys, Unnamed>, Error> {
    let online = OnlineKeys::for_roots(folder, roots)
        .map_err(|error| Error::Keys { what: "the online keys".to_owned(), why: chain(&error) })?;
    for (repository, root) in [("image", &roots.image), ("director", &roots.director)] {
        if let Err(why) = check_keys(repository, root, &online) {
            return Ok(Err(Unnamed { repository, why }));
        }
    }
    Ok(Ok(online))
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
