//! What the registry signs: the Image repository's online roles and the Director's metadata.
//!
//! The database holds every file as it was signed; the files under `tuf/` are copies in the
//! standard layout. Releases are signed by people, elsewhere: here they are only checked. Everything
//! that signs holds one lock, so that no version is given twice.

mod director;
mod files;
mod image;
mod roots;
mod upload;

use std::path::PathBuf;

use jiff::Timestamp;
use selvedge_package::trust::{MetadataBundle, RepositoryMetadata};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::{Body, Envelope, to_cbor};
use selvedge_protocol::sealed::{SealError, seal};
use selvedge_protocol::signed::{Purpose, SignedError, sign_with};
use selvedge_signing::{OnlineKeys, Signer};
use tokio::sync::Mutex;

use crate::blobs::Blobs;
use crate::error::{Error, causes as chain};
use crate::refusal::Refusal;
use crate::store::Store;
use crate::store::metadata::{Repository, Role};
use crate::store::packages::Package;
use files::Files;

/// Where keys, roots and files are.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder with the online keys.
    pub online_keys: PathBuf,
    /// Folder with `image.root.json` and `director.root.json`.
    pub roots: PathBuf,
    /// Folder for the files in the standard layout.
    pub files: PathBuf,
}

/// Keys, roots and what is signed.
#[derive(Debug)]
pub struct Trust {
    online: OnlineKeys,
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
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: selvedge_signing::SigningError| Error::Keys { what, why: chain(&error) }
        };
        let online = OnlineKeys::load(&options.online_keys).map_err(failed("the online keys"))?;
        let moved = roots::take_over(&options.roots, &online, store, now).await?;
        let trust = Self { online, files: Files::new(options.files.clone()), signing: Mutex::new(()) };
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
        targets: &str,
        now: Timestamp,
    ) -> Result<Package, Refusal> {
        // The blobs are hashed before the lock is taken: it may take long.
        let bundle = upload::uploaded(blobs, digest).await?;
        let _signing = self.signing.lock().await;
        image::release(self, store, workspace, &bundle, targets, now).await
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
    /// signature's life is over. `false`: nothing was ever released, so nothing can be signed.
    pub async fn direct(
        &self,
        store: &Store,
        device: &DeviceId,
        nonce: &[u8],
        now: Timestamp,
    ) -> Result<bool, Error> {
        let _signing = self.signing.lock().await;
        director::direct(self, store, device, nonce, now).await
    }

    /// Whether a device that accepted the sequence `desired` has something newer to accept.
    pub async fn behind(&self, store: &Store, device: &DeviceId, desired: u64) -> Result<bool, Error> {
        director::behind(store, device, desired).await
    }

    /// Everything that `device` needs to accept what it shall run, in CBOR. `None` before it was
    /// first signed.
    pub async fn bundle(&self, store: &Store, device: &DeviceId) -> Result<Option<Vec<u8>>, Error> {
        // Nothing may be signed between the first and the last read.
        let _signing = self.signing.lock().await;
        let Some(directed) = store.directed(device).await? else {
            return Ok(None);
        };
        let mine = Repository::Director(device.clone());
        let Some(image) = repository(store, &Repository::Image, &Repository::Image).await? else {
            return Ok(None);
        };
        let Some(director) = repository(store, &Repository::DirectorRoot, &mine).await? else {
            return Ok(None);
        };
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
        self.online.director_targets.sign(bytes).map_err(|error| Unsigned(chain(&error)))
    }

    async fn publish_image(&self, store: &Store) -> Result<(), Error> {
        self.files.image(store).await
    }
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

/// One repository as a bundle carries it; `None` if it is not complete yet.
async fn repository(
    store: &Store,
    roots: &Repository,
    lower: &Repository,
) -> Result<Option<RepositoryMetadata>, Error> {
    let mut chain: Vec<Vec<u8>> =
        store.versions(roots, Role::Root).await?.into_iter().map(|signed| signed.body.into_bytes()).collect();
    chain.reverse();
    let newest =
        async |role| Ok::<_, Error>(store.newest(lower, role).await?.map(|signed| signed.body.into_bytes()));
    let (timestamp, snapshot, targets) =
        (newest(Role::Timestamp).await?, newest(Role::Snapshot).await?, newest(Role::Targets).await?);
    Ok(match (timestamp, snapshot, targets) {
        (Some(timestamp), Some(snapshot), Some(targets)) => {
            Some(RepositoryMetadata { roots: chain, timestamp, snapshot, targets, delegated: Vec::new() })
        }
        _ => None,
    })
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
