//! Enrolment: a device proves that it has the token of its enrolment file and registers its own key, once.
//!
//! A request is sealed by the key that it brings. Whoever has the registered key needs no token. Names
//! that nobody made a target for cost neither a signature nor much else.

use std::time::Duration;

use jiff::Timestamp;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::{Bucket, Rate};
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{ByteString, Enrol, Enrolled};
use selvedge_protocol::sealed::open_by_its_own;
use selvedge_protocol::signed::Purpose;
use selvedge_protocol::topic::Kind;
use serde_json::json;

use super::Devices;
use crate::clock;
use crate::credentials::Certified;
use crate::error::{Error, causes};
use crate::notices::ENROLMENT_REFUSED;
use crate::store::certificates::Use;
use crate::store::targets::Target;

/// Requests of one device that are looked at: each may cost signatures and a durable write.
const REQUESTS: Rate = Rate { per_second: 1, burst: 20 };
/// New certificates of one device, in tokens that come one a second: five at once, then one in ten
/// minutes. The same request again gets the same certificate and costs none.
const CERTIFICATE: u64 = 600;
const CERTIFICATES: Rate = Rate { per_second: 1, burst: 5 * CERTIFICATE };
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

    async fn register(&mut self, target: &Target, body: &Body) -> Result<Result<Enrolled, String>, Error> {
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
        let shown = shows_token(&enrol, target);
        // Who has sealed with the registered key needs no token.
        let known = target.public_key == Some(key);
        if !known && self.app.store.key_revoked(&key).await? {
            let why = "revoked-key: this key was revoked and never counts again; a device that is enrolled again \
                       makes another";
            return Ok(Err(why.to_owned()));
        }
        if !known && !shown {
            return Ok(Err(WRONG_TOKEN.to_owned()));
        }
        if !known && target.public_key.is_some() && !target.token_replaces {
            return self.refuse_another(device, &key).await.map(Err);
        }
        let now = clock::now();
        // Before anything is changed: a request that is refused leaves all as it was.
        let certified = match self.certify(device, &enrol, now).await? {
            Ok(certified) => certified,
            Err(why) => return Ok(Err(why)),
        };
        let now_ms = now.as_millisecond();
        let actor = format!("device:{device}");
        let mut change = self.app.store.change().await?;
        let mut changed = false;
        if known {
            // It may have been revoked since the first look.
            if !change.has_key(device, &key).await? {
                return Ok(Err("the target has changed; ask again".to_owned()));
            }
            if shown && target.token_replaces {
                change.keep_key(device).await?;
                changed = true;
            }
        } else {
            if target.public_key.is_some() {
                change.revoke_certificates(device, Some(Use::Device), now_ms).await?;
                change.revoke_key(device, now_ms).await?;
            }
            if !change.register_key(device, &key, &target.token_hash, now_ms).await? {
                // Somebody was quicker, between the first look and now: the device asks again.
                return Ok(Err("the target has changed; ask again".to_owned()));
            }
            let action = if target.public_key.is_some() { "enrol-again" } else { "enrol" };
            let detail =
                json!({"public_key": hex::encode(key), "replaces": target.public_key.map(hex::encode)});
            change.audit(now_ms, &actor, action, device.as_str(), detail).await?;
            changed = true;
        }
        if let Some(certified) = &certified
            && certified.keep(&mut change, device, &key, now_ms).await?
        {
            let detail = certified.detail();
            change.audit(now_ms, &actor, "certify", device.as_str(), detail).await?;
            changed = true;
        }
        if changed {
            change.commit().await?;
        } else {
            drop(change);
        }
        if !known {
            if target.public_key.is_some() {
                self.app.credentials.revoked(&self.app.store, now).await;
            }
            tracing::info!(%device, "enrolled");
        }
        Ok(Ok(match certified {
            None => Enrolled::Accepted,
            Some(certified) => {
                Enrolled::Certificate(certified.chain().iter().cloned().map(ByteString).collect())
            }
        }))
    }

    /// The certificate that the request asks for, if it asks for one.
    async fn certify(
        &mut self,
        device: &DeviceId,
        enrol: &Enrol,
        now: Timestamp,
    ) -> Result<Result<Option<Certified>, String>, Error> {
        if enrol.csr.is_empty() {
            return Ok(Ok(None));
        }
        if self.app.credentials.is_new(&self.app.store, device, &enrol.csr, now).await? {
            let running = clock::running();
            let bucket =
                self.certified.entry(device.clone()).or_insert_with(|| Bucket::new(CERTIFICATES, running));
            if bucket.take(CERTIFICATE, running).is_err() {
                return Ok(Err("it asks for too many certificates; ask again in ten minutes".to_owned()));
            }
        }
        let certified = self.app.credentials.certify(&self.app.store, device, &enrol.csr, now).await?;
        Ok(certified.map(Some))
    }

    /// Another key for a target that has one. Whoever shows the right token is this machine set up anew,
    /// or has its file: people must see it.
    async fn refuse_another(&self, device: &DeviceId, key: &[u8; 32]) -> Result<String, Error> {
        let what = format!(
            "a device with the enrolment file of this target but another key ({}…) was refused; if it is this \
             machine set up anew, make a new file with `selvedge target enrol {device} --again`",
            hex::encode(&key[..4])
        );
        self.app.notices.keep(&self.app.store, device, ENROLMENT_REFUSED, &what).await?;
        let why =
            format!("this target has another key; `selvedge target enrol {device} --again` makes a new file");
        Ok(why)
    }
}

fn shows_token(enrol: &Enrol, target: &Target) -> bool {
    // A token that is used up is kept as nothing, which is no digest.
    Digest::from_hex(&target.token_hash).is_ok_and(|token| enrol.proves(&target.name, &token))
}
