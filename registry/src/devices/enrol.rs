//! Enrolment: a device shows the token of its enrolment file and registers its own key, once.
//!
//! A request is sealed by the key that it brings. Whoever has the registered key needs no token. Names
//! that nobody made a target for cost neither a signature nor much else.

use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::{Bucket, Rate};
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{Enrol, Enrolled};
use selvedge_protocol::sealed::open_by_its_own;
use selvedge_protocol::signed::Purpose;
use selvedge_protocol::topic::Kind;
use serde_json::json;

use super::Devices;
use crate::clock;
use crate::error::{Error, causes};
use crate::notices::ENROLMENT_REFUSED;
use crate::store::targets::Target;

/// Longest token that is looked at.
const TOKEN: usize = 256;
/// Requests of one device that are looked at: each may cost signatures and a durable write.
const REQUESTS: Rate = Rate { per_second: 1, burst: 20 };
/// Requests in names that are no targets, all together, that are answered.
const STRANGERS: Rate = Rate { per_second: 1, burst: 20 };
/// An unknown name and a wrong token are told alike: neither says which names exist.
const WRONG_TOKEN: &str = "the token is not the one of this device's enrolment file";

/// Counts strangers.
pub(super) fn strangers(now: Duration) -> Bucket {
    Bucket::new(STRANGERS, now)
}

impl Devices {
    /// One request. The same key again is answered the same; another key is refused.
    pub(super) async fn enrol(&mut self, device: &DeviceId, body: &Body) -> Result<(), Error> {
        let now = clock::running();
        let Some(target) = self.app.store.target(device).await? else {
            if self.strangers.take(1, now).is_ok() {
                let answer = Enrolled::Refused(WRONG_TOKEN.to_owned());
                self.send(device, Kind::Enrolled, Body::Enrolled(answer));
            }
            return Ok(());
        };
        // One for each target at most.
        let asks = self.asks.entry(device.clone()).or_insert_with(|| Bucket::new(REQUESTS, now));
        if asks.take(1, now).is_err() {
            self.noise.warn(device, "it asks to be enrolled too often; this one is not answered");
            return Ok(());
        }
        let answer = match self.register(&target, body).await? {
            Ok(answer) => answer,
            Err(why) => {
                self.noise.warn(device, &format!("its enrolment is refused: {why}"));
                Enrolled::Refused(why)
            }
        };
        let accepted = !matches!(answer, Enrolled::Refused(_));
        self.send(device, Kind::Enrolled, Body::Enrolled(answer));
        // The birth may have come first.
        if accepted { self.tell_if_online(device).await } else { Ok(()) }
    }

    async fn register(&self, target: &Target, body: &Body) -> Result<Result<Enrolled, String>, Error> {
        let device = &target.name;
        let its_key = |body: &Body| match body {
            Body::Enrol(enrol) => enrol.public_key.as_slice().try_into().ok(),
            _ => None,
        };
        let enrol = match open_by_its_own(Purpose::Enrol, device, body, its_key) {
            Ok(inner) => match inner.body {
                Body::Enrol(enrol) => enrol,
                _ => return Ok(Err("what is sealed is no enrolment".to_owned())),
            },
            Err(error) => return Ok(Err(causes(&error))),
        };
        let Ok(key) = <[u8; 32]>::try_from(enrol.public_key.as_slice()) else {
            return Ok(Err("an ed25519 public key has 32 bytes".to_owned()));
        };
        // Who has sealed with the registered key needs no token.
        if target.public_key == Some(key) {
            return Ok(Ok(Enrolled::Accepted));
        }
        if !shows_token(&enrol, target) {
            return Ok(Err(WRONG_TOKEN.to_owned()));
        }
        let now_ms = clock::now().as_millisecond();
        let mut change = self.app.store.change().await?;
        if !change.register_key(device, &key, now_ms).await? {
            drop(change);
            // Whoever shows the right token is this machine set up anew, or has its file: people must see it.
            let what = format!(
                "a device with the enrolment file of this target but another key ({}…) was refused; if it is \
                 this machine set up anew, make a new file with `selvedge target enrol {device} --again`",
                hex::encode(&key[..4])
            );
            self.app.notices.keep(&self.app.store, device, ENROLMENT_REFUSED, &what).await?;
            let why =
                "this target has another key already; `selvedge target enrol NAME --again` makes a new file";
            return Ok(Err(why.to_owned()));
        }
        let detail = json!({"public_key": hex::encode(key)});
        change.audit(now_ms, &format!("device:{device}"), "enrol", device.as_str(), detail).await?;
        change.commit().await?;
        tracing::info!(%device, "enrolled");
        Ok(Ok(Enrolled::Accepted))
    }
}

fn shows_token(enrol: &Enrol, target: &Target) -> bool {
    // A token that is used up is kept as nothing, which nothing hashes to.
    let given =
        if enrol.token.len() <= TOKEN { Digest::of(enrol.token.as_bytes()).hex() } else { String::new() };
    !target.token_hash.is_empty()
        && verify_slices_are_equal(given.as_bytes(), target.token_hash.as_bytes()).is_ok()
}
