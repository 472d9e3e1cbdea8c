//! `selvedge-agent trust show`: what the device trusts, in plain words, and what it would say to an offer.

mod describe;
mod offer;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use selvedge_control::Client;
use selvedge_deployment::{State, StateRecord};
use selvedge_package::trust::{Repository, TrustState};
use selvedge_package::{DeviceId, Digest, PackageName};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::credential::{Kept, KeptRecord, Machine};
use crate::failure::chain;
use crate::identity::Identity;
use crate::lock::Lock;
use crate::status::{ShownCertificate, StatusError, database_of};
use crate::store::{Key, StoreError};

pub use describe::describe;
pub use offer::{OfferError, OfferView, Planned, judge};

/// Where a running agent says it.
pub const PATH: &str = "/v1/trust";

/// What a device holds, as its agent gives it away, or as it lies on the disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Held {
    /// Who it is.
    pub device: DeviceId,
    /// Whether it belongs to no registry.
    pub detached: bool,
    /// Whether an agent runs.
    pub running: bool,
    /// What it trusts; nothing where it is detached, or where that is damaged.
    pub trust: Option<TrustState>,
    /// Why nothing is accepted.
    pub distrust: Option<String>,
    /// Lowest release that may be run, by package.
    pub floors: BTreeMap<PackageName, u64>,
    /// Whether the accepted state echoes the running agent's nonce.
    pub fresh: Option<bool>,
    /// What it shows to its broker.
    pub certificate: Option<ShownCertificate>,
    /// Packages that are kept for a later assignment.
    pub prefetched: usize,
}

/// The same for people and programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrustView {
    /// Who it is.
    pub device: DeviceId,
    /// Whether it belongs to no registry.
    pub detached: bool,
    /// Whether an agent runs.
    pub running: bool,
    /// Why nothing is accepted.
    pub distrust: Option<String>,
    /// The time that expiry is judged by.
    pub now: Timestamp,
    /// A time that has surely passed.
    pub floor: Option<Timestamp>,
    /// Whether the kernel vouches for the clock, and it is not before the floor.
    pub clock_trusted: bool,
    /// The Image repository.
    pub image: Option<RepositoryView>,
    /// The Director.
    pub director: Option<RepositoryView>,
    /// Sequence of the accepted desired state; 0: none.
    pub sequence: u64,
    /// Whether that echoes the running agent's nonce.
    pub fresh: Option<bool>,
    /// Lowest release that may be run, by package.
    pub floors: BTreeMap<PackageName, u64>,
    /// What it shows to its broker.
    pub certificate: Option<ShownCertificate>,
    /// Packages that are kept for a later assignment.
    pub prefetched: usize,
    /// What became of the offer, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<OfferView>,
}

/// One repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RepositoryView {
    /// SHA-256 of the newest root that was accepted: its fingerprint.
    pub root_sha256: String,
    /// Who may sign what.
    pub roles: BTreeMap<String, RoleView>,
    /// What is held.
    pub files: Vec<FileView>,
}

/// Who may sign a role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RoleView {
    /// So many of them have to.
    pub threshold: u64,
    /// The keys' ids.
    pub keys: Vec<String>,
}

/// A file that is held.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileView {
    /// Its role.
    pub role: String,
    /// Its version: none below it is accepted while its keys hold.
    pub version: u64,
    /// Until when new things are accepted by it.
    pub expires: Option<Timestamp>,
    /// Whether that is over.
    pub expired: bool,
}

/// Asks the agent of a data directory, or reads what lies there.
pub async fn look(directory: &Path) -> Result<Held, StatusError> {
    let client = Client::new(directory.join("run/agent.sock"));
    match client.get::<Held>(PATH, Duration::from_secs(10)).await {
        Ok(held) => Ok(held),
        Err(source) => match Lock::held_by(directory) {
            Some(holder) => Err(StatusError::Silent { holder, source }),
            None => left_behind(directory),
        },
    }
}

fn left_behind(directory: &Path) -> Result<Held, StatusError> {
    let database = database_of(directory)?;
    let Some(identity) = Identity::read(&database)? else {
        return Err(StatusError::NoDevice { directory: directory.to_owned() });
    };
    let (trust, distrust) = match database.read::<TrustState>(Key::Trust) {
        Ok(trust) => (trust, None),
        Err(error @ StoreError::Record { .. }) => (None, Some(chain(&error))),
        Err(error) => return Err(error.into()),
    };
    let record: Option<StateRecord> = database.read(Key::Deployment)?;
    let machine = Machine::start(match database.read::<KeptRecord>(Key::Credentials) {
        Ok(kept) => kept.map(Kept::from).unwrap_or_default(),
        Err(StoreError::Record { .. }) => Kept::default(),
        Err(error) => return Err(error.into()),
    });
    let now = trust.as_ref().map_or_else(clock::built, |trust| trust.now(clock::synchronised(trust.floor())));
    let certificate =
        identity.broker_ca.is_some().then(|| ShownCertificate::of(machine.shown(), machine.kept(), now));
    Ok(Held {
        device: identity.device,
        detached: identity.detached,
        running: false,
        trust,
        distrust,
        floors: record.map(State::from).unwrap_or_default().floors,
        fresh: None,
        certificate,
        prefetched: database.prefetched()?.len(),
    })
}

/// The view of what is held.
pub fn view(held: &Held, offer: Option<OfferView>) -> TrustView {
    let floor = held.trust.as_ref().map(TrustState::floor);
    let clock = clock::synchronised(floor.unwrap_or_else(clock::built));
    let now = clock.into_iter().chain(floor).max().unwrap_or_else(clock::built);
    let of = |which| held.trust.as_ref().map(|trust| repository(trust, which, now));
    TrustView {
        device: held.device.clone(),
        detached: held.detached,
        running: held.running,
        distrust: held.distrust.clone(),
        now,
        floor,
        clock_trusted: clock.is_some(),
        image: of(Repository::Image),
        director: of(Repository::Director),
        sequence: held.trust.as_ref().map_or(0, TrustState::sequence),
        fresh: held.fresh,
        floors: held.floors.clone(),
        certificate: held.certificate.clone(),
        prefetched: held.prefetched,
        offer,
    }
}

#[derive(Deserialize)]
struct File {
    signed: Signed,
}

#[derive(Deserialize)]
struct Signed {
    version: u64,
    #[serde(default)]
    expires: Option<Timestamp>,
    #[serde(default)]
    roles: BTreeMap<String, Role>,
}

#[derive(Deserialize)]
struct Role {
    threshold: u64,
    keyids: Vec<String>,
}

fn repository(trust: &TrustState, which: Repository, now: Timestamp) -> RepositoryView {
    let mut view = RepositoryView { root_sha256: String::new(), roles: BTreeMap::new(), files: Vec::new() };
    for (role, bytes) in trust.files(which) {
        // They were verified before they were stored; this only shows them.
        let Ok(File { signed }) = serde_json::from_slice::<File>(bytes) else { continue };
        if role == "root" {
            view.root_sha256 = Digest::of(bytes).hex();
            let shown = |(name, role): (String, Role)| {
                (name, RoleView { threshold: role.threshold, keys: role.keyids })
            };
            view.roles = signed.roles.into_iter().map(shown).collect();
        }
        let expired = signed.expires.is_some_and(|expires| expires <= now);
        let (role, version) = (role.to_owned(), signed.version);
        view.files.push(FileView { role, version, expires: signed.expires, expired });
    }
    view
}
