//! Who the device is: its id, its broker, its key pair, and whether the registry knows that key.
//!
//! The key is made on the device and never leaves it. Identity and first trust state are written in
//! one transaction, so a device is enrolled whole or not at all.

use std::path::Path;

use selvedge_package::DeviceId;
use selvedge_package::trust::{TrustError, TrustState};
use selvedge_protocol::signed::{PrivateKey, SignedError};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::enrolment::{Enrolment, Kind};
use crate::store::{Database, Key, Store, StoreError};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who the device is.
    pub device: DeviceId,
    /// What it is.
    pub kind: Kind,
    /// Its broker.
    pub broker: String,
    /// The token that registers its key.
    pub token: String,
    /// Whether the registry has accepted the key.
    pub enrolled: bool,
}

#[derive(Serialize, Deserialize)]
enum IdentityRecord {
    V1 { device: DeviceId, kind: Kind, broker: String, token: String, enrolled: bool },
}

impl From<&Identity> for IdentityRecord {
    fn from(identity: &Identity) -> Self {
        let Identity { device, kind, broker, token, enrolled } = identity.clone();
        Self::V1 { device, kind, broker, token, enrolled }
    }
}

impl From<IdentityRecord> for Identity {
    fn from(record: IdentityRecord) -> Self {
        let IdentityRecord::V1 { device, kind, broker, token, enrolled } = record;
        Self { device, kind, broker, token, enrolled }
    }
}

impl Identity {
    /// What the database knows; `None` before the first start.
    pub fn read(database: &Database) -> Result<Option<Self>, StoreError> {
        Ok(database.read::<IdentityRecord>(Key::Device)?.map(Self::from))
    }

    /// The identity and the trust state to go on with.
    ///
    /// An enrolment is needed at the first start; later ones may change broker and token, and
    /// nothing else: the roots that were accepted meanwhile are newer than any in a file.
    pub fn establish(
        store: &Store,
        enrolment: Option<&Enrolment>,
    ) -> Result<(Self, TrustState), IdentityError> {
        let known = Self::read(store.database())?;
        let Some(mut identity) = known else {
            let enrolment = enrolment.ok_or(IdentityError::NotEnrolled)?;
            let trust = TrustState::enrol(
                enrolment.image_root.as_bytes(),
                enrolment.director_root.as_bytes(),
                clock::built(),
            )
            .map_err(IdentityError::Roots)?;
            let identity = Self {
                device: enrolment.device.clone(),
                kind: enrolment.kind,
                broker: enrolment.broker.clone(),
                token: enrolment.token.clone(),
                enrolled: false,
            };
            store.database().write(|transaction| {
                transaction.put(Key::Device, &IdentityRecord::from(&identity))?;
                transaction.put(Key::Trust, &trust)
            })?;
            return Ok((identity, trust));
        };
        let trust = store.database().read(Key::Trust)?.ok_or(IdentityError::NoTrust)?;
        if let Some(enrolment) = enrolment {
            if enrolment.device != identity.device {
                return Err(IdentityError::OtherDevice {
                    here: identity.device,
                    offered: enrolment.device.clone(),
                });
            }
            if identity.broker != enrolment.broker || identity.token != enrolment.token {
                identity.enrolled &= identity.token == enrolment.token;
                identity.broker.clone_from(&enrolment.broker);
                identity.token.clone_from(&enrolment.token);
                identity.write(store)?;
            }
        }
        Ok((identity, trust))
    }

    /// Notes whether the registry knows the key.
    pub fn set_enrolled(&mut self, store: &Store, enrolled: bool) -> Result<(), StoreError> {
        if self.enrolled == enrolled {
            return Ok(());
        }
        let known = Self { enrolled, ..self.clone() };
        known.write(store)?;
        *self = known;
        Ok(())
    }

    fn write(&self, store: &Store) -> Result<(), StoreError> {
        store.database().write(|transaction| transaction.put(Key::Device, &IdentityRecord::from(self)))
    }

    /// The device's key pair, made at the first start (PKCS#8, mode 0600).
    pub fn key(&mut self, store: &Store) -> Result<PrivateKey, IdentityError> {
        let path = store.root().join("device.key");
        let unusable = |source| IdentityError::DeviceKey { path: path.display().to_string(), source };
        if let Some(pkcs8) = read_key(&path)? {
            return PrivateKey::from_pkcs8(&pkcs8).map_err(unusable);
        }
        let (key, pkcs8) = PrivateKey::generate().map_err(unusable)?;
        store.write_file("device.key", &pkcs8)?;
        // A new key is nobody's yet.
        self.set_enrolled(store, false)?;
        Ok(key)
    }
}

fn read_key(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io { action: "read", path: path.to_owned(), source }),
    }
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
