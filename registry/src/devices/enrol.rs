//! Enrolment: a device shows the token of its enrolment file and registers its own key, once.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{Enrol, Enrolled};
use selvedge_protocol::topic::Kind;
use serde_json::json;

use super::Devices;
use crate::clock;
use crate::error::Error;
use crate::notices::ENROLMENT_REFUSED;

/// Longest token that is looked at.
const TOKEN: usize = 256;

impl Devices {
    /// One request. The same key again is answered the same; another key is refused.
    pub(super) async fn enrol(&mut self, device: &DeviceId, enrol: &Enrol) -> Result<(), Error> {
        let answer = match self.register(device, enrol).await? {
            Ok(()) => Enrolled::Accepted,
            Err(why) => {
                self.noise.warn(device, &format!("its enrolment is refused: {why}"));
                Enrolled::Refused(why.to_owned())
            }
        };
        let accepted = answer == Enrolled::Accepted;
        self.send(device, Kind::Enrolled, Body::Enrolled(answer));
        // The birth may have come first.
        if accepted { self.tell_if_online(device).await } else { Ok(()) }
    }

    async fn register(&self, device: &DeviceId, enrol: &Enrol) -> Result<Result<(), &'static str>, Error> {
        let Some(target) = self.app.store.target(device).await? else {
            // An unknown name and a wrong token are told alike: neither says which names exist.
            return Ok(Err("the token is not the one of this device's enrolment file"));
        };
        let Ok(key) = <[u8; 32]>::try_from(enrol.public_key.as_slice()) else {
            return Ok(Err("an ed25519 public key has 32 bytes"));
        };
        let given =
            if enrol.token.len() <= TOKEN { Digest::of(enrol.token.as_bytes()).hex() } else { String::new() };
        if verify_slices_are_equal(given.as_bytes(), target.token_hash.as_bytes()).is_err() {
            return Ok(Err("the token is not the one of this device's enrolment file"));
        }
        if target.public_key == Some(key) {
            return Ok(Ok(()));
        }
        let now_ms = clock::now().as_millisecond();
        let mut change = self.app.store.change().await?;
        if !change.register_key(device, &key, now_ms).await? {
            drop(change);
            // Whoever shows the right token is this machine set up anew, or has its file: people must see it.
            let what = format!(
                "a device with the enrolment file of this target but another key ({}…) was refused; if it is \
                 this machine set up anew, remove the target and enrol it again",
                hex::encode(&key[..4])
            );
            self.app.notices.keep(&self.app.store, device, ENROLMENT_REFUSED, &what).await?;
            return Ok(Err("this target has another key already; remove the target and enrol it again"));
        }
        let detail = json!({"public_key": hex::encode(key)});
        change.audit(now_ms, &format!("device:{device}"), "enrol", device.as_str(), detail).await?;
        change.commit().await?;
        tracing::info!(%device, "enrolled");
        Ok(Ok(()))
    }
}
