//! What the device shows to its broker, carried between the machine that decides it, the database that
//! keeps it, the registry that issues it, and the client that shows it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use selvedge_mqtt::{ClientCredential, Inbox, Tls, TlsTime};
use selvedge_protocol::line::one_line;
use selvedge_protocol::message::{ByteString, Enrol};

use super::Daemon;
use crate::clock::{self, Floor};
use crate::credential::certificate::Now;
use crate::credential::{Credential, Effect, Event, KeptRecord, request};
use crate::failure::chain;
use crate::status::ShownCertificate;
use crate::store::{Key, StoreError};

/// First and longest wait before a certificate is asked for again.
const WAITS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3600));

/// What time TLS judges certificates at: the device's.
pub(super) fn tls_time(floor: &Floor) -> Arc<dyn Fn() -> TlsTime + Send + Sync> {
    let floor = floor.clone();
    Arc::new(move || {
        let (at, synchronised) = floor.now();
        let since = Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
        TlsTime { at: SystemTime::UNIX_EPOCH + since, synchronised }
    })
}

/// When a certificate is asked for, and how the credentials of this run do.
#[derive(Debug, Default)]
pub(super) struct Asking {
    at: Duration,
    wait: Duration,
    /// Whether the client is being ended, to connect anew.
    pub reopening: bool,
    /// Why no key could be made: not tried again in this run.
    failed: Option<String>,
    /// Whether it was said that none is issued.
    said_none: bool,
}

impl Daemon {
    /// The device's time, and whether it is the time.
    pub(super) fn now(&self) -> Now {
        let (at, synchronised) = self.floor.now();
        Now { at, synchronised }
    }

    /// Opens the link with what is to be shown now. A link that cannot be opened ends nothing.
    pub(super) fn open_link(&mut self) -> Option<Inbox> {
        self.asking.reopening = false;
        if self.identity.detached {
            self.offline = Some(
                "this device belongs to no registry: start the agent with an enrolment file to give it to one"
                    .to_owned(),
            );
            return None;
        }
        match self.link.open(self.broker.clone(), self.tls()) {
            Ok(inbox) => Some(inbox),
            Err(error) => {
                let why = chain(&error);
                tracing::error!("{why}");
                self.offline = Some(why);
                None
            }
        }
    }

    fn tls(&self) -> Option<Tls> {
        if !self.broker.is_tls() {
            return None;
        }
        let client = self.credentials.shown();
        Some(Tls {
            ca: self.identity.broker_ca.clone().unwrap_or_default().into_bytes(),
            name: self.identity.broker_name.clone(),
            client: client.map(|shown| ClientCredential { chain: shown.chain_pem(), key: shown.key_pem() }),
            now: tls_time(&self.floor),
        })
    }

    /// Feeds the machine, and does what it asks for.
    pub(super) fn credential(&mut self, event: Event) -> Result<(), StoreError> {
        if !self.broker.is_tls() || self.identity.detached {
            return Ok(());
        }
        let before = self.credentials.clone();
        let mut effects = std::collections::VecDeque::from(self.credentials.step(event));
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Keep => {
                    let record = KeptRecord::from(self.credentials.kept().clone());
                    let kept = self.store.database().write(|t| t.put(Key::Credentials, &record));
                    if let Err(error) = kept {
                        // What is not written down did not happen.
                        self.credentials = before;
                        return Err(error);
                    }
                    self.dirty = true;
                }
                Effect::MakeRequest if self.asking.failed.is_some() => {}
                Effect::MakeRequest => match request::make(&self.identity.device) {
                    Ok(request) => {
                        tracing::info!("asking for a certificate");
                        (self.asking.at, self.asking.wait) = (Duration::ZERO, WAITS.0);
                        effects.extend(self.credentials.step(Event::Made(request)));
                    }
                    Err(error) => {
                        tracing::error!("{}", chain(&error));
                        self.asking.failed = Some(chain(&error));
                    }
                },
                Effect::Connect => {
                    tracing::info!(using = ?self.credentials.using(), "connecting with another certificate");
                    self.asking.reopening = true;
                    self.link.close();
                }
            }
        }
        Ok(())
    }

    /// Time has passed: whether another certificate is due, or to be asked for again.
    pub(super) fn mind_the_certificate(&mut self, at: Duration) -> Result<(), StoreError> {
        let now = self.now().at;
        self.credential(Event::Tick { at, now, ran: at.saturating_sub(self.started) })?;
        let waits = self.credentials.kept().request.is_some();
        // Until the key is accepted, every introduction asks.
        if waits && self.identity.enrolled && self.link.is_connected() && at >= self.asking.at {
            self.asking.at = at + self.asking.wait.max(WAITS.0);
            self.asking.wait = (self.asking.wait.max(WAITS.0) * 2).min(WAITS.1);
            self.enrol("");
        }
        Ok(())
    }

    /// When to look again.
    pub(super) fn certificate_wakes_at(&self) -> Option<Duration> {
        let waits = self.credentials.kept().request.is_some() && self.identity.enrolled;
        let ask = (waits && self.link.is_connected()).then_some(self.asking.at);
        [ask, self.credentials.wake_at()].into_iter().flatten().min()
    }

    /// There is a connection: what is wanted is asked for soon.
    pub(super) fn may_ask(&mut self) {
        (self.asking.at, self.asking.wait) = (Duration::ZERO, WAITS.0);
    }

    /// Asks to be enrolled, or for a certificate.
    pub(super) fn enrol(&mut self, token: &str) {
        let public_key = self.reporter.public_key().0.to_vec();
        let request = self.credentials.kept().request.as_ref().filter(|_| self.broker.is_tls());
        let csr = request.map(|request| request.csr.to_vec()).unwrap_or_default();
        self.link.enrol(Enrol::new(&self.identity.device, token, public_key, csr));
    }

    /// A certificate, from whoever can publish: it is worth what it proves.
    pub(super) fn certified(&mut self, chain_of: &[ByteString]) -> Result<(), StoreError> {
        let Some(request) = &self.credentials.kept().request else {
            return Ok(());
        };
        let authority = self.identity.broker_ca.clone().unwrap_or_default();
        match Credential::issued(request, chain_of, &authority, &self.identity.device, self.now()) {
            Ok(credential) => {
                tracing::info!(until = %credential.not_after, "a new certificate has come");
                self.credential(Event::Certificate(credential))
            }
            Err(error) => {
                self.grumble(&format!("a certificate is not taken: {}", one_line(&chain(&error), 300)));
                Ok(())
            }
        }
    }

    /// The key is accepted and no certificate comes with that: who directs this device issues none, as
    /// `selvedge push`. The one in use stays, and is asked for again: a registry may come later.
    pub(super) fn uncertified(&mut self) {
        let asked = self.credentials.kept().request.is_some();
        if !asked || !self.broker.is_tls() || std::mem::replace(&mut self.asking.said_none, true) {
            return;
        }
        if let Some(shown) = self.credentials.shown() {
            tracing::info!(
                until = %shown.not_after,
                "no certificate was issued for this device's own key: the one of the enrolment file stays in use"
            );
        }
    }

    /// There was no connection, or it ended before it had proved anything.
    pub(super) fn missed(&mut self) -> Result<(), StoreError> {
        let now = self.now().at;
        self.credential(Event::Missed { at: clock::since_boot(), now })
    }

    /// What a person should know of it.
    pub(super) fn certificate(&self) -> Option<ShownCertificate> {
        let kept = self.credentials.kept();
        self.broker.is_tls().then(|| ShownCertificate::of(self.credentials.shown(), kept, self.now().at))
    }

    /// What stands in the way.
    pub(super) fn certificate_trouble(&self, now: Timestamp) -> Option<String> {
        if !self.broker.is_tls() || self.identity.detached {
            return None;
        }
        let anew = format!(
            "start the agent with a new enrolment file (`selvedge target enrol {} --again --out FILE`)",
            self.identity.device
        );
        match self.credentials.shown() {
            _ if self.asking.failed.is_some() => self.asking.failed.clone(),
            _ if self.unshown.is_some() => self.unshown.clone(),
            Some(shown) if shown.has_expired(now) => Some(format!(
                "the device's certificate is over since {}, and its broker will refuse it: {anew}; what runs \
                 goes on",
                shown.not_after
            )),
            Some(_) => None,
            None => Some(format!("the device has no certificate to show to its broker: {anew}")),
        }
    }
}
