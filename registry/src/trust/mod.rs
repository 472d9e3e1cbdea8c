//! What the registry signs: the Image repository's online roles and the Director's metadata.
//!
//! The database holds every file as it was signed; the files under `tuf/` are copies in the
//! standard layout. Releases are signed by people, elsewhere: here they are only checked. Everything
//! that signs holds one lock, so that no version is given twice.

mod claims;
mod director;
mod files;
mod image;
mod lifetimes;
mod roots;
mod upload;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use selvedge_package::limits::MetadataLimits;
use selvedge_package::trust::{AssignedPackage, DelegatedFile, MetadataBundle, RepositoryMetadata, bins};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::{Body, Envelope, to_cbor};
use selvedge_protocol::sealed::{SealError, seal};
use selvedge_protocol::signed::{Purpose, SignedError, sign_with};
use selvedge_signing::{OnlineKeys, Signer};
use tokio::sync::Mutex;

use crate::blobs::Blobs;
use crate::error::{Error, causes as chain};
use crate::refusal::Refusal;
use crate::store::metadata::{Repository, Role, Signed};
use crate::store::packages::Package;
use crate::store::{Store, from_json};
use claims::BELIEVED;
use files::Files;

pub use claims::Claims;
pub use lifetimes::Lifetimes;
pub use roots::Offered as RootOffer;
pub use watch::{RoleState, Watched};

/// Where keys, roots and files are.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with the online keys.
    pub online_keys: PathBuf,
    /// Folder with `image.root.json` and `director.root.json`.
    pub roots: PathBuf,
    /// Folder for the files in the standard layout.
    pub files: PathBuf,
    /// Of what is signed here.
    pub lifetimes: Lifetimes,
}

/// Keys, roots and what is signed.
#[derive(Debug)]
pub struct Trust {
    /// Those that the newest roots name. Written under the signing lock alone.
    online: RwLock<Arc<OnlineKeys>>,
    folder: PathBuf,
    lifetimes: Lifetimes,
    files: Files,
    signing: Mutex<()>,
}

/// The newest roots as text, exactly as signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The Image repository's.
    pub image: String,
    /// The Director's.
    pub director: String,
}

impl Trust {
    /// Load the keys, take the roots over, sign again what is due, and write the files.
    pub async fn open(options: &Options, store: &Store, now: Timestamp) -> Result<Self, Error> {
        let (online, moved) = roots::take_over(options, store, now).await?;
        let trust = Self {
            online: RwLock::new(Arc::new(online)),
            folder: options.online_keys.clone(),
            lifetimes: options.lifetimes,
            files: Files::new(options.files.clone()),
            signing: Mutex::new(()),
        };
        trust.refresh(store, now, moved).await?;
        trust.publish_image(store).await?;
        Ok(trust)
    }

    /// The newest roots.
    pub async fn roots(&self, store: &Store) -> Result<Roots, Error> {
        let newest = async |repository: Repository| {
            store
                .newest(&repository, Role::Root)
                .await?
                .map(|signed| signed.body)
                .ok_or(Error::Corrupt { what: "root", why: "there is none".to_owned() })
        };
        Ok(Roots {
            image: newest(Repository::Image).await?,
            director: newest(Repository::DirectorRoot).await?,
        })
    }

    /// Release an uploaded package under metadata that a person signed.
    pub async fn release(
        &self,
        store: &Store,
        blobs: &Blobs,
        workspace: &str,
        digest: Digest,
        roles: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<Package, Refusal> {
        // The blobs are hashed before the lock is taken: it may take long.
        let bundle = upload::uploaded(blobs, digest).await?;
        let _signing = self.signing.lock().await;
        image::release(self, store, workspace, &bundle, roles, now).await
    }

    /// Take the same releases, signed again by people: later expiry, or other keys.
    pub async fn renew(
        &self,
        store: &Store,
        roles: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let _signing = self.signing.lock().await;
        image::renew(self, store, roles, now).await
    }

    /// Take the next root of a repository, and everything signed again under it in the same
    /// transaction. What devices shall run counts as due from then on.
    pub async fn publish_root(
        &self,
        store: &Store,
        offered: RootOffer<'_>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let _signing = self.signing.lock().await;
        let online = roots::publish(self, store, offered, now).await?;
        *self.online.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(online);
        self.publish_or_log(store).await;
        Ok(())
    }

    /// The online keys that the newest roots name.
    fn online(&self) -> Arc<OnlineKeys> {
        Arc::clone(&self.online.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often to look for what is to be signed again.
    pub fn look(&self) -> std::time::Duration {
        self.lifetimes.look()
    }

    /// Sign the Image repository's online roles again where half of their life is over.
    pub async fn refresh_image(&self, store: &Store, now: Timestamp) -> Result<(), Error> {
        self.refresh(store, now, false).await
    }

    async fn refresh(&self, store: &Store, now: Timestamp, always: bool) -> Result<(), Error> {
        let _signing = self.signing.lock().await;
        if image::refresh(self, store, now, always).await? {
            self.publish_image(store).await?;
        }
        Ok(())
    }

    /// Sign what `device` shall run, if that changed, or the nonce did, or half of the last
    /// signature's life is over, or it has accepted more than was signed here.
    pub async fn direct(
        &self,
        store: &Store,
        device: &DeviceId,
        claims: &Claims,
        now: Timestamp,
    ) -> Result<Directed, Error> {
        let _signing = self.signing.lock().await;
        let lost = match claims.enrolled {
            true => image::catch_up(self, store, claims.accepted.image, now).await?,
            false => None,
        };
        Ok(match (director::direct(self, store, device, claims, now).await?, lost) {
            (false, _) => Directed::Nothing,
            (true, None) => Directed::Signed,
            (true, Some(version)) => Directed::Lost { version },
        })
    }

    /// Whether a device that accepted the sequence `desired` has something newer to accept.
    pub async fn behind(&self, store: &Store, device: &DeviceId, desired: u64) -> Result<bool, Error> {
        director::behind(store, device, desired).await
    }

    /// Everything that `device` needs to accept what it shall run, in CBOR; what it claims to have is
    /// left out. `None` before it was first signed.
    pub async fn bundle(
        &self,
        store: &Store,
        device: &DeviceId,
        claims: &Claims,
    ) -> Result<Option<Vec<u8>>, Error> {
        // Nothing may be signed between the first and the last read.
        let _signing = self.signing.lock().await;
        let Some(directed) = store.directed(device).await? else {
            return Ok(None);
        };
        let mine = Repository::Director(device.clone());
        let accepted = claims.accepted;
        let image = Wanted {
            roots: Repository::Image,
            lower: Repository::Image,
            root: claims.image_root,
            held: accepted.image,
        };
        let director = Wanted {
            roots: Repository::DirectorRoot,
            lower: mine,
            root: claims.director_root,
            held: accepted.director,
        };
        let (Some(mut image), Some(director)) =
            (repository(store, &image).await?, repository(store, &director).await?)
        else {
            return Ok(None);
        };
        image.delegated = branches(store, &directed.assignments).await?;
        let bundle = MetadataBundle { image, director, assignment: directed.body.into_bytes() };
        let what = || format!("the desired state of {device}");
        to_cbor(&bundle).map(Some).map_err(|why| Error::Sign { what: what(), why })
    }

    /// Sign an acknowledgement for a device, with the Director's targets key.
    pub fn sign_ack(&self, device: &DeviceId, payload: Vec<u8>) -> Result<Vec<u8>, Error> {
        let failed = |why: String| Error::Sign { what: format!("an acknowledgement for {device}"), why };
        sign_with(Purpose::Ack, device, payload, |bytes| self.by_director(bytes))
            .map_err(|Unsigned(why)| failed(why))
    }

    /// Seal a question for a device, with the Director's targets key.
    pub fn seal(&self, device: &DeviceId, question: &Envelope) -> Result<Body, Error> {
        let failed = |why: String| Error::Sign { what: format!("a question for {device}"), why };
        seal(Purpose::Question, device, question, |bytes| self.by_director(bytes))
            .map_err(|Unsigned(why)| failed(why))
    }

    fn by_director(&self, bytes: &[u8]) -> Result<[u8; 64], Unsigned> {
        self.online().director_targets.sign(bytes).map_err(|error| Unsigned(chain(&error)))
    }

    async fn publish_image(&self, store: &Store) -> Result<(), Error> {
        self.files.image(store).await
    }

    /// The files are copies: if they cannot be written now, the next start writes them.
    async fn publish_or_log(&self, store: &Store) {
        if let Err(error) = self.publish_image(store).await {
            tracing::error!("what was signed is stored, but its files are not: {}", error.chain());
        }
    }
}

/// What became of signing for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directed {
    /// Nothing was ever released, so nothing can be signed.
    Nothing,
    /// It is signed, now or before.
    Signed,
    /// It is, but the device has accepted a list of releases that this registry does not have.
    Lost {
        /// The version of its `targets.json`.
        version: u64,
    },
}

/// Why a message was not signed.
struct Unsigned(String);

impl From<SignedError> for Unsigned {
    fn from(error: SignedError) -> Self {
        Self(chain(&error))
    }
}

impl From<SealError> for Unsigned {
    fn from(error: SealError) -> Self {
        Self(chain(&error))
    }
}

/// A repository for a bundle, and what the device has of it.
struct Wanted {
    roots: Repository,
    lower: Repository,
    /// Version of its root.
    root: u64,
    /// Versions of its timestamp, snapshot and targets.
    held: [u64; 3],
}

/// One repository as a bundle carries it; `None` if it is not complete yet.
async fn repository(store: &Store, wanted: &Wanted) -> Result<Option<RepositoryMetadata>, Error> {
    let newest = async |role| store.newest(&wanted.lower, role).await;
    let (timestamp, snapshot, targets) =
        (newest(Role::Timestamp).await?, newest(Role::Snapshot).await?, newest(Role::Targets).await?);
    let (Some(timestamp), Some(snapshot), Some(targets)) = (timestamp, snapshot, targets) else {
        return Ok(None);
    };
    let most = MetadataLimits::DEVICE.roots;
    let roots = store.roots_after(&wanted.roots, wanted.root, most).await?;
    // Empty: as the device has it.
    let unless_held = |signed: Signed, held: u64| match signed.version == held {
        true => Vec::new(),
        false => signed.body.into_bytes(),
    };
    let [_, held_snapshot, held_targets] = wanted.held;
    Ok(Some(RepositoryMetadata {
        roots: roots.into_iter().map(|root| root.body.into_bytes()).collect(),
        timestamp: timestamp.body.into_bytes(),
        snapshot: unless_held(snapshot, held_snapshot),
        targets: unless_held(targets, held_targets),
        delegated: Vec::new(),
    }))
}

/// The bins on the way to what is assigned, outermost first.
async fn branches(store: &Store, assignments: &str) -> Result<Vec<DelegatedFile>, Error> {
    // Of an earlier target of this name nothing is left.
    let assigned: Vec<AssignedPackage> = match assignments {
        "" => Vec::new(),
        text => from_json("assignment list", text)?,
    };
    let wanted: BTreeSet<String> =
        assigned.iter().flat_map(|assigned| bins::branch(&assigned.target)).collect();
    // Not all of them: there may be hundreds.
    let mut files = Vec::new();
    for role in wanted {
        if let Some(signed) = store.newest(&Repository::Image, Role::Bin(role.clone())).await? {
            files.push(DelegatedFile { role, file: signed.body.into_bytes() });
        }
    }
    Ok(files)
}

/// Signed bytes are JSON, so they are text.
fn text(what: &str, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| Error::Sign { what: what.to_owned(), why: error.to_string() })
}

/// The error for something that could not be signed.
fn unsigned(what: impl Into<String>) -> impl FnOnce(selvedge_signing::SigningError) -> Error {
    let what = what.into();
    move |error| Error::Sign { what, why: chain(&error) }
}

#[cfg(test)]
mod tests;
