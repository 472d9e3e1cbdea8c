//! What the parts of a running registry share.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use selvedge_package::DeviceId;
use tokio::sync::Notify;

use crate::blobs::Blobs;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::notices::Notices;
use crate::presence::Presences;
use crate::remote::Remote;
use crate::rest::token::Token;
use crate::store::Store;
use crate::trust::{Claims, Trust};

/// Everything that handlers need.
#[derive(Debug)]
pub struct App {
    /// The database.
    pub store: Store,
    /// Blobs.
    pub blobs: Blobs,
    /// Keys, roots and what is signed.
    pub trust: Trust,
    /// The bearer token.
    pub token: Token,
    /// Who was heard, and when.
    pub presences: Presences,
    /// What was noticed about targets.
    pub notices: Notices,
    /// Questions to devices.
    pub remote: Remote,
    /// Whose desired state changed.
    pub changed: Changed,
    /// Certificates, and what devices are told of the broker.
    pub credentials: Credentials,
}

impl App {
    /// What a device's newest birth says that it has.
    pub async fn claims(&self, device: &DeviceId) -> Result<Claims, Error> {
        let Some(presence) = self.presences.get(&self.store, device).await? else {
            return Ok(Claims::default());
        };
        let enrolled = self.store.target(device).await?.is_some_and(|target| target.public_key.is_some());
        Ok(Claims::of(&presence.birth, enrolled))
    }
}

/// Devices whose desired state changed and that were not told yet, and whether they are to be told in
/// any case. Bounded by the number of targets, since each is in it once.
#[derive(Debug, Default)]
pub struct Changed {
    devices: Mutex<BTreeMap<DeviceId, bool>>,
    notify: Notify,
}

impl Changed {
    /// Add a device.
    pub fn add(&self, device: DeviceId) {
        self.add_all([device]);
    }

    /// Add devices.
    pub fn add_all(&self, devices: impl IntoIterator<Item = DeviceId>) {
        let mut held = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        for device in devices {
            held.entry(device).or_insert(false);
        }
        drop(held);
        self.notify.notify_one();
    }

    /// Add devices that are to be told even what they have accepted already: it is signed anew.
    pub fn add_anew(&self, devices: impl IntoIterator<Item = DeviceId>) {
        let mut held = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend(devices.into_iter().map(|device| (device, true)));
        drop(held);
        self.notify.notify_one();
    }

    /// Wait for a device and take it: one at a time, so that a change for many does not keep whoever
    /// tells them from everything else. Says whether it is to be told in any case. May be cancelled
    /// without losing one.
    pub async fn take(&self) -> (DeviceId, bool) {
        loop {
            let taken = self.devices.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            if let Some(taken) = taken {
                return taken;
            }
            self.notify.notified().await;
        }
    }
}
