//! Telling a device what it shall run: after its birth, after a change, and again while it lags.
//!
//! It is signed and no secret, so that a device may hear it whose enrolment this registry has lost;
//! it gets no block and is not believed a word before it is enrolled.

use std::sync::Arc;

use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::message::Want;

use super::{Bucket, Devices, STATES, Told};
use crate::clock;
use crate::error::Error;
use crate::notices::LOST_RELEASES;
use crate::trust::Directed;

/// Smallest desired state that is pulled: below that, blocks would cost more than they save.
const SMALLEST_PULL: usize = 2048;
/// Largest block that any device takes, in bytes.
const LARGEST_BLOCK: u32 = 64 << 10;

impl Devices {
    /// Whether the device's bucket allows to tell it something now, which is counted. If not, it is
    /// looked at again once the bucket has filled.
    pub(super) fn may_tell(&mut self, device: &DeviceId) -> bool {
        let now = clock::running();
        let told = self.told.entry(device.clone()).or_insert_with(|| Told {
            bucket: Bucket::new(STATES, now),
            at: now,
            later: false,
        });
        let Err(wait) = told.bucket.take(1, now) else {
            told.at = now;
            return true;
        };
        if !told.later {
            told.later = true;
            tracing::warn!(%device, "it asks, or what it shall run changes, too often; it is told later");
            let (app, device) = (Arc::clone(&self.app), device.clone());
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                app.changed.add(device);
            });
        }
        false
    }

    /// Sign and send what the device shall run, echoing the nonce of its birth; not faster than the
    /// device's bucket allows.
    pub(super) async fn tell(&mut self, device: &DeviceId) -> Result<(), Error> {
        if self.may_tell(device) { self.tell_now(device).await } else { Ok(()) }
    }

    /// As [`Devices::tell`], for one whose bucket was asked. Nothing is sent before anything was
    /// released.
    pub(super) async fn tell_now(&mut self, device: &DeviceId) -> Result<(), Error> {
        let app = Arc::clone(&self.app);
        let presence = app.presences.get(&app.store, device).await?;
        // A birth is not signed: what it claims to take is not believed beyond a block.
        let largest = presence.map_or(0, |presence| presence.birth.largest_block.min(LARGEST_BLOCK) as usize);
        let claims = app.claims(device).await?;
        match app.trust.direct(&app.store, device, &claims, clock::now()).await? {
            Directed::Signed => {}
            Directed::Nothing => {
                tracing::debug!(%device, "nothing was released yet: it is not told anything");
                return Ok(());
            }
            Directed::Lost { version } => {
                let what = format!(
                    "it has accepted a list of releases of version {version}, which this registry does not have: \
                     was it restored from an old backup? It accepts nothing until the list has a greater version"
                );
                app.notices.keep(&app.store, device, LOST_RELEASES, &what).await?;
            }
        }
        let Some(bundle) = app.trust.bundle(&app.store, device, &claims).await? else {
            return Ok(());
        };
        let want = if bundle.len() <= largest.min(self.outgoing.room()).max(SMALLEST_PULL) {
            Want::Inline(bundle)
        } else {
            let (digest, size) = (Digest::of(&bundle), bundle.len() as u64);
            self.blocks.offer(device, digest, Arc::new(bundle));
            Want::Pull { digest, size }
        };
        self.send_want(device, want);
        Ok(())
    }

    /// As [`Devices::tell`], for a device that is connected; others are told after their birth.
    pub(super) async fn tell_if_online(&mut self, device: &DeviceId) -> Result<(), Error> {
        let now_ms = clock::now().as_millisecond();
        let presence = self.app.presences.get(&self.app.store, device).await?;
        match presence {
            Some(presence) if presence.online(now_ms) => self.tell(device).await,
            _ => Ok(()),
        }
    }

    /// As [`Devices::tell_if_online`], for a device that has not accepted the newest state.
    pub(super) async fn tell_if_behind(&mut self, device: &DeviceId) -> Result<(), Error> {
        let Some(presence) = self.app.presences.get(&self.app.store, device).await? else {
            return Ok(());
        };
        if self.app.trust.behind(&self.app.store, device, presence.birth.desired).await? {
            self.tell_if_online(device).await
        } else {
            Ok(())
        }
    }
}
