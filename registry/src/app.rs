//! What the parts of a running registry share.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use selvedge_package::DeviceId;
use tokio::sync::Notify;

use crate::blobs::Blobs;
use crate::notices::Notices;
use crate::presence::Presences;
use crate::remote::Remote;
use crate::rest::token::Token;
use crate::store::Store;
use crate::trust::Trust;

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
    /// The broker's address as devices are told.
    pub broker: String,
}

/// Devices whose desired state changed and that were not told yet. Bounded by the number of
/// targets, since each is in it once.
#[derive(Debug, Default)]
pub struct Changed {
    devices: Mutex<BTreeSet<DeviceId>>,
    notify: Notify,
}

impl Changed {
    /// Add a device.
    pub fn add(&self, device: DeviceId) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).insert(device);
        self.notify.notify_one();
    }

    /// Add devices.
    pub fn add_all(&self, devices: impl IntoIterator<Item = DeviceId>) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).extend(devices);
        self.notify.notify_one();
    }

    /// Wait for a device and take it: one at a time, so that a change for many does not keep whoever
    /// tells them from everything else. May be cancelled without losing one.
    pub async fn take(&self) -> DeviceId {
        loop {
            let taken = self.devices.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            if let Some(device) = taken {
                return device;
            }
            self.notify.notified().await;
        }
    }
}
