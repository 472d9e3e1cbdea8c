//! Who may reach the broker: certificates for devices, and the list of those that were revoked.
//!
//! The authority signs; the database remembers what it has signed. A device's certificate says only who
//! it is to the broker: what it runs, and what it says, is signed by other keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use selvedge_mqtt::{ClientCredential, Tls, TlsTime};
use selvedge_package::{DeviceId, Digest};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::clock;
use crate::durable;
use crate::error::Error;
use crate::pki::{Authority, Issued};
use crate::store::certificates::{Certificate, Use};
use crate::store::{Change, Store};

/// Longest file of a certificate, a key, or the broker's authorities, in bytes.
const LONGEST: u64 = 256 << 10;

/// What devices are told of the broker, and how they are certified to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Its address.
    pub url: String,
    /// Whether it wants certificates.
    pub tls: bool,
    /// File with the authorities of its certificate; `None`: the registry's own.
    pub ca: Option<PathBuf>,
    /// The name in its certificate, where that is not the one in its address.
    pub name: Option<String>,
    /// How long a device's certificate is good for.
    pub lifetime: Duration,
}

/// Certificates of devices.
pub struct Credentials {
    authority: Authority,
    broker: Broker,
    broker_ca: String,
    /// The written list lacks something that the database has.
    stale: AtomicBool,
    /// Held by whoever writes it: an older list must not replace a newer one.
    writing: Mutex<()>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("broker", &self.broker).finish_non_exhaustive()
    }
}

impl Credentials {
    /// With an opened authority.
    pub fn open(authority: Authority, broker: Broker) -> Result<Self, Error> {
        let broker_ca = match &broker.ca {
            None => authority.ca_pem().to_owned(),
            // A device judges its own certificate by the same file, so ours is in it too.
            Some(path) => format!("{}\n{}", text(path)?.trim_end(), authority.ca_pem()),
        };
        Ok(Self { authority, broker, broker_ca, stale: AtomicBool::new(true), writing: Mutex::new(()) })
    }

    /// How the registry itself speaks to the broker; `None`: in plain text.
    pub fn tls(&self) -> Result<Option<Tls>, Error> {
        if !self.broker.tls {
            return Ok(None);
        }
        let folder = self.authority.folder();
        let (chain, key) = (text(&folder.join("registry.pem"))?, text(&folder.join("registry.key"))?);
        let client = ClientCredential { chain: chain.into_bytes(), key: key.into_bytes() };
        // The clock of the machine that signs is taken to be right.
        let now = || TlsTime { at: SystemTime::from(clock::now()), synchronised: true };
        Ok(Some(Tls {
            ca: self.broker_ca.clone().into_bytes(),
            name: self.broker.name.clone(),
            client: Some(client),
            now: Arc::new(now),
        }))
    }

    /// The registry's own authority.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Whether this request was not answered before.
    pub async fn is_new(
        &self,
        store: &Store,
        device: &DeviceId,
        request: &[u8],
        now: Timestamp,
    ) -> Result<bool, Error> {
        Ok(self.known(store, device, request, now).await?.is_none())
    }

    async fn known(
        &self,
        store: &Store,
        device: &DeviceId,
        request: &[u8],
        now: Timestamp,
    ) -> Result<Option<Certificate>, Error> {
        let half = i64::try_from(self.broker.lifetime.as_millis() / 2).unwrap_or(i64::MAX);
        let after = now.as_millisecond().saturating_add(half);
        store.issued_for(device, &Digest::of(request).hex(), after).await
    }

    /// A certificate for the key in `request`; the same again for the same request. The inner error is
    /// the device's fault.
    pub async fn certify(
        &self,
        store: &Store,
        device: &DeviceId,
        request: &[u8],
        now: Timestamp,
    ) -> Result<Result<Certified, String>, Error> {
        if let Some(known) = self.known(store, device, request, now).await? {
            return Ok(Ok(Certified::Known(known)));
        }
        let digest = Digest::of(request).hex();
        let issued = self.authority.issue_device(request, device, now, self.broker.lifetime)?;
        Ok(match issued {
            Ok(issued) => Ok(Certified::New { issued, request: digest }),
            Err(refused) => Err(refused.to_string()),
        })
    }

    /// An enrolment file for a target, with a certificate for its first connection where the broker
    /// wants one, which is kept in `change`.
    pub async fn enrolment(
        &self,
        change: &mut Change,
        device: &DeviceId,
        kind: &str,
        (token, image_root, director_root): (&str, &str, &str),
        now: Timestamp,
    ) -> Result<Value, Error> {
        let mut file = json!({
            "format": 1,
            "device": device,
            "kind": kind,
            "broker": self.broker.url,
            "token": token,
            "image_root": image_root,
            "director_root": director_root,
        });
        if self.broker.tls {
            let now_ms = now.as_millisecond();
            let made = self.authority.bootstrap(device, now)?;
            // Whatever file there was before, this one is in its place.
            change.revoke_certificates(device, Some(Use::Bootstrap), now_ms).await?;
            change.keep_certificate(device, Use::Bootstrap, &made.issued, ("", ""), now_ms).await?;
            file["format"] = json!(2);
            file["broker_ca"] = json!(self.broker_ca);
            file["broker_name"] = json!(self.broker.name);
            file["credential"] = json!({"certificate": made.certificate_pem, "key": made.key_pem});
        }
        Ok(file)
    }

    /// Something was revoked: write the list anew, now or, if that fails, later.
    pub async fn revoked(&self, store: &Store, now: Timestamp) {
        self.stale.store(true, Ordering::Relaxed);
        if let Err(error) = self.write(store, now).await {
            tracing::error!(
                "the list of revoked certificates is not written, and is tried again: {}",
                error.chain()
            );
        }
    }

    /// Write the list where it lacks something.
    pub async fn write(&self, store: &Store, now: Timestamp) -> Result<(), Error> {
        let _writing = self.writing.lock().await;
        if self.stale.swap(false, Ordering::Relaxed)
            && let Err(error) = self.write_now(store, now).await
        {
            self.stale.store(true, Ordering::Relaxed);
            return Err(error);
        }
        Ok(())
    }

    async fn write_now(&self, store: &Store, now: Timestamp) -> Result<(), Error> {
        let revoked = store.revoked_certificates(now.as_millisecond()).await?;
        self.authority.write_crl(&revoked, now)
    }
}

fn text(path: &Path) -> Result<String, Error> {
    let unusable = |why: String| Error::Keys { what: path.display().to_string(), why };
    let bytes =
        durable::read_limited(path, LONGEST)?.ok_or_else(|| unusable("it is not there".to_owned()))?;
    String::from_utf8(bytes).map_err(|error| unusable(error.to_string()))
}

/// A certificate for a request.
#[derive(Debug)]
pub enum Certified {
    /// Issued before, for the same request.
    Known(Certificate),
    /// Issued now: to be kept before anybody gets it.
    New {
        /// It.
        issued: Issued,
        /// Digest of the request.
        request: String,
    },
}

impl Certified {
    /// The chain, the device's own first.
    pub fn chain(&self) -> &[Vec<u8>] {
        match self {
            Self::Known(known) => &known.chain,
            Self::New { issued, .. } => &issued.chain,
        }
    }

    /// For the audit log.
    pub fn detail(&self) -> Value {
        match self {
            Self::Known(known) => json!({"serial": known.serial}),
            Self::New { issued, .. } => json!({"serial": issued.serial, "not_after": issued.not_after}),
        }
    }

    /// Keep it, where it is new. Says whether it is.
    pub async fn keep(
        &self,
        change: &mut Change,
        device: &DeviceId,
        key: &[u8; 32],
        now_ms: i64,
    ) -> Result<bool, Error> {
        let Self::New { issued, request } = self else { return Ok(false) };
        let by = (request.as_str(), &*hex::encode(key));
        change.keep_certificate(device, Use::Device, issued, by, now_ms).await?;
        Ok(true)
    }
}
