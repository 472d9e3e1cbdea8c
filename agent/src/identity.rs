//! Who the device is: its id, its broker, its key pair, and whether the registry knows that key.
//!
//! The key is made on the device and never leaves it. Identity and first trust state are written in
//! one transaction, so a device is enrolled whole or not at all.

use std::path::Path;

use selvedge_deployment::{State, StateRecord};
use selvedge_package::trust::{TrustError, TrustState};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::signed::{self, PrivateKey, PublicKey, Purpose, SignedError};
use serde::{Deserialize, Serialize};

use crate::credential::{CertificateError, Kept, KeptRecord};
use crate::enrolment::{Enrolment, Kind};
use crate::failure::chain;
use crate::store::{Database, Key, Store, StoreError};
use crate::{bounded, clock};

/// The key's file in the data directory.
const KEY: &str = "device.key";
/// Largest key file that is read, in bytes.
const LARGEST_KEY: u64 = 4096;

/// Why the device has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// First start without an enrolment.
    #[error(
        "this data directory belongs to no device yet: give its enrolment file with --enrolment \
         (made by `selvedge target enrol NAME --out FILE`)"
    )]
    NotEnrolled,
    /// The enrolment is for another device.
    #[error(
        "this data directory belongs to the device `{here}`, the enrolment is for `{offered}`: give \
         another --data directory"
    )]
    OtherDevice {
        /// Whose directory it is.
        here: DeviceId,
        /// Whom the enrolment is for.
        offered: DeviceId,
    },
    /// The roots of the enrolment are none.
    #[error("the enrolment's roots cannot be trusted")]
    Roots(#[source] TrustError),
    /// What the enrolment brings for the broker is not usable.
    #[error("the enrolment's certificate cannot be used")]
    Credential(#[source] CertificateError),
    /// The device's key cannot be used.
    #[error(
        "the device's key in {path} cannot be used; remove it to make another, then enrol the device again"
    )]
    DeviceKey {
        /// Its file.
        path: String,
        /// What is wrong.
        #[source]
        source: SignedError,
    },
    /// The trust state is gone while the identity is there.
    #[error("the trust state is missing from the database: enrol the device again in a new directory")]
    NoTrust,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is kept of the enrolment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Who the device is.
    pub device: DeviceId,
    /// What it is.
    pub kind: Kind,
    /// Its broker; where it is detached, the one that it had.
    pub broker: String,
    /// The authority of its registry, PEM.
    pub broker_ca: Option<String>,
    /// The name in the broker's certificate.
    pub broker_name: Option<String>,
    /// The token that registers its key.
    pub token: String,
    /// Whether the registry has accepted the key.
    pub enrolled: bool,
    /// Whether it is to make another key: it was enrolled anew, and the old one may be revoked.
    pub new_key: bool,
    /// Whether it belongs to no registry any more.
    pub detached: bool,
}

impl std::fmt::Debug for Identity {
    /// Without the token: whoever has it registers a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("device", &self.device)
            .field("kind", &self.kind)
            .field("broker", &self.broker)
            .field("enrolled", &self.enrolled)
            .field("new_key", &self.new_key)
            .field("detached", &self.detached)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
enum IdentityRecord {
    V1 { device: DeviceId, kind: Kind, broker: String, token: String, enrolled: bool },
    V2(Identity),
}

impl From<&Identity> for IdentityRecord {
    fn from(identity: &Identity) -> Self {
        Self::V2(identity.clone())
    }
}

impl From<IdentityRecord> for Identity {
    fn from(record: IdentityRecord) -> Self {
        match record {
            IdentityRecord::V1 { device, kind, broker, token, enrolled } => Self {
                device,
                kind,
                broker,
                broker_ca: None,
                broker_name: None,
                token,
                enrolled,
                new_key: false,
                detached: false,
            },
            IdentityRecord::V2(identity) => identity,
        }
    }
}

/// What a device begins with.
#[derive(Debug)]
pub struct Established {
    /// Who it is.
    pub identity: Identity,
    /// What it trusts; nothing where it is detached, or where that is damaged.
    pub trust: Option<TrustState>,
    /// What it shows to its broker.
    pub credentials: Kept,
    /// Why nothing is accepted, for people.
    pub distrust: Option<String>,
    /// Why there is nothing to show to the broker, for people.
    pub unshown: Option<String>,
}

impl Identity {
    /// What the database knows; `None` before the first start.
    pub fn read(database: &Database) -> Result<Option<Self>, StoreError> {
        Ok(database.read::<IdentityRecord>(Key::Device)?.map(Self::from))
    }

    /// The identity, the trust state and the credentials to go on with.
    ///
    /// An enrolment is needed at the first start, and after a detachment. Later ones may change the broker,
    /// its authority, the token and what is shown to the broker, and nothing else: the roots that were
    /// accepted meanwhile are newer than any in a file.
    pub fn establish(store: &Store, enrolment: Option<&Enrolment>) -> Result<Established, IdentityError> {
        match (Self::read(store.database())?, enrolment) {
            (None, None) => Err(IdentityError::NotEnrolled),
            (Some(identity), Some(enrolment)) if identity.detached => Self::begin(store, enrolment, true),
            (None, Some(enrolment)) => Self::begin(store, enrolment, false),
            (Some(identity), enrolment) => identity.go_on(store, enrolment),
        }
    }

    fn begin(store: &Store, enrolment: &Enrolment, new_key: bool) -> Result<Established, IdentityError> {
        let trust = TrustState::enrol(
            enrolment.image_root.as_bytes(),
            enrolment.director_root.as_bytes(),
            clock::built(),
        )
        .map_err(IdentityError::Roots)?;
        let credentials = Kept::enrolled(enrolment.credential().map_err(IdentityError::Credential)?);
        let identity = Self {
            device: enrolment.device.clone(),
            kind: enrolment.kind,
            broker: enrolment.broker.clone(),
            broker_ca: enrolment.broker_ca.clone(),
            broker_name: enrolment.broker_name.clone(),
            token: enrolment.token.clone(),
            enrolled: false,
            new_key,
            detached: false,
        };
        store.database().write(|transaction| {
            transaction.put(Key::Device, &IdentityRecord::from(&identity))?;
            transaction.put(Key::Credentials, &KeptRecord::from(credentials.clone()))?;
            transaction.put(Key::Trust, &trust)
        })?;
        let fingerprint = |root: &str| Digest::of(root.as_bytes()).hex();
        tracing::info!(
            device = %identity.device,
            image_root = %fingerprint(&enrolment.image_root),
            director_root = %fingerprint(&enrolment.director_root),
            "enrolled: compare the roots' fingerprints with those that `selvedge target enrol` printed"
        );
        Ok(Established { identity, trust: Some(trust), credentials, distrust: None, unshown: None })
    }

    fn go_on(mut self, store: &Store, enrolment: Option<&Enrolment>) -> Result<Established, IdentityError> {
        let (mut distrust, mut unshown) = (None, None);
        let database = store.database();
        // A record that is damaged is no reason to end: what runs goes on, and a person is told.
        let trust = match database.read(Key::Trust) {
            Ok(None) if !self.detached => return Err(IdentityError::NoTrust),
            Ok(trust) => trust,
            Err(error @ StoreError::Record { .. }) => {
                distrust = Some(self::distrust(&error));
                None
            }
            Err(error) => return Err(error.into()),
        };
        let mut credentials = match database.read::<KeptRecord>(Key::Credentials) {
            Ok(kept) => kept.map(Kept::from).unwrap_or_default(),
            Err(error @ StoreError::Record { .. }) => {
                unshown = Some(format!(
                    "{}: the device's certificate is lost; start the agent with a new enrolment file \
                     (`selvedge target enrol NAME --again`)",
                    chain(&error)
                ));
                Kept::default()
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(enrolment) = enrolment {
            if enrolment.device != self.device {
                return Err(IdentityError::OtherDevice {
                    here: self.device,
                    offered: enrolment.device.clone(),
                });
            }
            let before = (self.clone(), credentials.clone());
            let again = self.token != enrolment.token;
            if again {
                self.new_key = true;
                self.enrolled = false;
            }
            if again || credentials == Kept::default() && unshown.is_none() {
                let credential = enrolment.credential().map_err(IdentityError::Credential)?;
                credentials = Kept::enrolled(credential);
                unshown = None;
            }
            self.broker.clone_from(&enrolment.broker);
            self.broker_ca.clone_from(&enrolment.broker_ca);
            self.broker_name.clone_from(&enrolment.broker_name);
            self.token.clone_from(&enrolment.token);
            if before != (self.clone(), credentials.clone()) {
                database.write(|transaction| {
                    transaction.put(Key::Device, &IdentityRecord::from(&self))?;
                    transaction.put(Key::Credentials, &KeptRecord::from(credentials.clone()))
                })?;
            }
        }
        Ok(Established { identity: self, trust, credentials, distrust, unshown })
    }

    /// Notes whether the registry knows the key.
    pub fn set_enrolled(&mut self, store: &Store, enrolled: bool) -> Result<(), StoreError> {
        if self.enrolled == enrolled {
            return Ok(());
        }
        let known = Self { enrolled, ..self.clone() };
        store.database().write(|transaction| transaction.put(Key::Device, &IdentityRecord::from(&known)))?;
        *self = known;
        Ok(())
    }

    /// The device's key pair, made at the first start and at every new enrolment (PKCS#8, mode 0600).
    pub fn key(&mut self, store: &Store) -> Result<PrivateKey, IdentityError> {
        let path = store.root().join(KEY);
        let unusable = |source| IdentityError::DeviceKey { path: path.display().to_string(), source };
        if !self.new_key
            && let Some(pkcs8) = store.read_file(KEY, LARGEST_KEY)?
        {
            return PrivateKey::from_pkcs8(&pkcs8).map_err(unusable);
        }
        let (key, pkcs8) = PrivateKey::generate().map_err(unusable)?;
        store.write_file(KEY, &pkcs8)?;
        // A new key is nobody's yet, and what was signed with the old one is believed by nobody any more.
        // A kill before this is written makes one key more.
        let known = Self { enrolled: false, new_key: false, ..self.clone() };
        store.database().write(|transaction| {
            transaction.put(Key::Device, &IdentityRecord::from(&known))?;
            transaction.sign_rows_anew(|signed| {
                let payload = signed::payload(signed).ok()?;
                signed::sign(&key, Purpose::Report, &known.device, payload).ok()
            })
        })?;
        *self = known;
        Ok(key)
    }

    /// The public half of the key, where there is one.
    pub fn public_key(directory: &Path) -> Option<PublicKey> {
        let pkcs8 = read_key(&directory.join(KEY)).ok().flatten()?;
        PrivateKey::from_pkcs8(&pkcs8).ok().map(|key| key.public())
    }

    /// Forgets the registry: its address, its roots, the device's keys, what was to be reported. What runs
    /// stays, and so do all floors.
    pub fn detach(store: &Store) -> Result<Self, IdentityError> {
        let mut identity = Self::read(store.database())?.ok_or(IdentityError::NotEnrolled)?;
        (identity.detached, identity.enrolled, identity.new_key) = (true, false, true);
        (identity.broker_ca, identity.broker_name) = (None, None);
        identity.token.clear();
        let deployment: Option<StateRecord> = store.database().read(Key::Deployment)?;
        let deployment = deployment.map(|record| StateRecord::from(State::from(record).detached()));
        store.database().write(|transaction| {
            transaction.put(Key::Device, &IdentityRecord::from(&identity))?;
            transaction.remove(Key::Credentials)?;
            transaction.remove(Key::Trust)?;
            transaction.clear_rows()?;
            match &deployment {
                Some(deployment) => transaction.put(Key::Deployment, deployment),
                None => Ok(()),
            }
        })?;
        store.remove_file(KEY)?;
        Ok(identity)
    }
}

fn read_key(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match bounded::read(path, bounded::NOTE) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io { action: "read", path: path.to_owned(), source }),
    }
}

/// What a person is told of a trust record that is damaged.
pub fn distrust(error: &StoreError) -> String {
    format!(
        "{}; what runs goes on. To have the device back: `selvedge-agent detach`, then a new enrolment file \
         (`selvedge target enrol NAME --again`)",
        chain(error)
    )
}

/// Takes the next epoch: it grows at every start, whatever became of the last one.
///
/// It is at least `clock`, the seconds since 1970 by the system's clock, right or wrong. A device that
/// lost its database and kept its key would otherwise begin again at 1, and the registry would take
/// all it says for late copies. Where the clock is wrong too, such a device has to get another key.
pub fn next_epoch(database: &Database, clock: i64) -> Result<u64, StoreError> {
    #[derive(Serialize, Deserialize)]
    enum EpochRecord {
        V1(u64),
    }
    // Message ids have 32 bits for it.
    let clock = u64::try_from(clock).unwrap_or(0).min(u64::from(u32::MAX / 2));
    database.write(|transaction| {
        let EpochRecord::V1(last) = transaction.get(Key::Epoch)?.unwrap_or(EpochRecord::V1(0));
        let next = last.saturating_add(1).max(clock);
        transaction.put(Key::Epoch, &EpochRecord::V1(next))?;
        Ok(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_grow_though_the_database_is_lost_or_the_clock_goes_back() {
        let database = Database::from_bytes(&[]).unwrap();
        let next = |clock| next_epoch(&database, clock).unwrap();
        assert_eq!(next(0), 1, "a device that boots in 1970");
        assert_eq!(next(-5), 2);
        assert_eq!(next(1_000_000), 1_000_000);
        assert_eq!(next(1_000_000), 1_000_001, "two starts in a second");
        assert_eq!(next(17), 1_000_002);
        let lost = Database::from_bytes(&[]).unwrap();
        assert_eq!(next_epoch(&lost, 1_000_100).unwrap(), 1_000_100);
        let far = next_epoch(&lost, i64::MAX).unwrap();
        assert!(far << 32 >> 32 == far && next_epoch(&lost, 0).unwrap() == far + 1);
    }
}
