//! Who was heard and when, in memory: a heartbeat must not cost a durable write.
//!
//! Births are stored at once; what only moves the time of the last message is stored now and then.
//! A registry that dies forgets at most that much, and errs towards "silent".

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use selvedge_package::DeviceId;

use crate::error::Error;
use crate::store::Store;
use crate::store::presence::Presence;

/// Presence of every device that was heard since the start.
#[derive(Debug, Default)]
pub struct Presences {
    devices: Mutex<BTreeMap<DeviceId, Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    presence: Presence,
    stored: bool,
}

impl Presences {
    /// The newest presence of a device, from memory or the database.
    pub async fn get(&self, store: &Store, device: &DeviceId) -> Result<Option<Presence>, Error> {
        if let Some(known) = self.locked().get(device) {
            return Ok(Some(known.presence.clone()));
        }
        store.presence(device).await
    }

    /// Keep a presence that is stored already.
    pub fn set_stored(&self, device: &DeviceId, presence: Presence) {
        self.locked().insert(device.clone(), Known { presence, stored: true });
    }

    /// Keep a presence that is stored with the next others.
    pub fn set_unstored(&self, device: &DeviceId, presence: Presence) {
        self.locked().insert(device.clone(), Known { presence, stored: false });
    }

    /// The newest presence of every device of a workspace.
    pub async fn all(&self, store: &Store, workspace: &str) -> Result<BTreeMap<DeviceId, Presence>, Error> {
        let mut all = store.presences(workspace).await?;
        let known = self.locked();
        for (device, presence) in &mut all {
            if let Some(known) = known.get(device) {
                *presence = known.presence.clone();
            }
        }
        Ok(all)
    }

    /// Change a presence in memory; `false` if the device gave no birth that is known.
    pub async fn update(
        &self,
        store: &Store,
        device: &DeviceId,
        change: impl FnOnce(&mut Presence),
    ) -> Result<bool, Error> {
        let Some(mut presence) = self.get(store, device).await? else {
            return Ok(false);
        };
        change(&mut presence);
        self.locked().insert(device.clone(), Known { presence, stored: false });
        Ok(true)
    }

    /// How many devices were heard since the start.
    pub fn heard(&self) -> u32 {
        u32::try_from(self.locked().len()).unwrap_or(u32::MAX)
    }

    /// Forget a device that was removed.
    pub fn forget(&self, device: &DeviceId) {
        self.locked().remove(device);
    }

    /// Store what is only in memory.
    pub async fn flush(&self, store: &Store) -> Result<(), Error> {
        let waiting: Vec<(DeviceId, Presence)> = self
            .locked()
            .iter_mut()
            .filter(|(_, known)| !known.stored)
            .map(|(device, known)| {
                known.stored = true;
                (device.clone(), known.presence.clone())
            })
            .collect();
        for (device, presence) in waiting {
            store.keep_presence(&device, &presence).await?;
        }
        Ok(())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<DeviceId, Known>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
