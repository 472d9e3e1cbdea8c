//! Reports: signed with the device's key, kept in the outbox until the registry acknowledges them.
//!
//! An acknowledgement counts only when a Director key of the accepted root has signed it for this
//! device; anyone else could otherwise make the device forget what it has to say.

use std::sync::Arc;
use std::time::Duration;

use selvedge_package::DeviceId;
use selvedge_package::trust::TrustState;
use selvedge_protocol::envelope::{from_cbor, to_cbor};
use selvedge_protocol::message::{Ack, ByteString, DeviceEvent, Report, ReportBody, Rows};
use selvedge_protocol::signed::{self, PrivateKey, PublicKey, Purpose};

use crate::clock;
use crate::store::{Replaces, Row, Store, StoreError};

/// Bytes of rows in one message.
const MESSAGE: usize = 24 * 1024;
/// Bytes of a packet besides the rows in it.
const ROOM: usize = 1024;
/// First and longest wait for an acknowledgement before rows are sent again.
const WAITS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Why an acknowledgement does not count.
#[derive(Debug, thiserror::Error)]
pub enum AckError {
    /// No Director key signed it for this device.
    #[error("no key of the accepted Director root signed the acknowledgement")]
    Signature,
    /// It was signed, and is none.
    #[error("the acknowledgement cannot be read: {0}")]
    Unreadable(String),
    /// It is for another device.
    #[error("the acknowledgement is for `{0}`")]
    OtherDevice(DeviceId),
    /// The Director's keys cannot be had.
    #[error("the Director's keys cannot be read from the trust state")]
    Keys(#[source] selvedge_package::trust::TrustError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes reports and says when to send them.
#[derive(Debug)]
pub struct Reporter {
    store: Store,
    device: DeviceId,
    key: Arc<PrivateKey>,
    epoch: u64,
    sequence: u64,
    /// When rows are to be sent; `None`: nothing waits.
    send_at: Option<Duration>,
    wait: Duration,
    /// Largest row that the connection carries, in bytes.
    largest: usize,
}

impl Reporter {
    /// A reporter of this start of the agent. Rows of earlier starts are sent first.
    pub fn new(store: Store, device: DeviceId, key: Arc<PrivateKey>, epoch: u64) -> Result<Self, StoreError> {
        let waiting = store.database().rows_waiting()? > 0;
        Ok(Self {
            store,
            device,
            key,
            epoch,
            sequence: 0,
            send_at: waiting.then_some(Duration::ZERO),
            wait: WAITS.0,
            largest: MESSAGE,
        })
    }

    /// The device's public key.
    pub fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// Something happened.
    pub fn event(
        &mut self,
        kind: &str,
        package: Option<&selvedge_package::PackageName>,
        what: impl Into<String>,
    ) -> Result<(), StoreError> {
        self.happened(kind, package, what.into(), Replaces::Nothing)
    }

    /// A desired state was refused. Only the newest refusal is kept.
    pub fn refusal(&mut self, what: String) -> Result<(), StoreError> {
        self.happened("refused", None, what, Replaces::Refusal)
    }

    fn happened(
        &mut self,
        kind: &str,
        package: Option<&selvedge_package::PackageName>,
        what: String,
        replaces: Replaces,
    ) -> Result<(), StoreError> {
        tracing::info!(kind, package = package.map(tracing::field::display), "{what}");
        let what = what.chars().take(2000).collect();
        let event = DeviceEvent { kind: kind.to_owned(), package: package.cloned(), what };
        self.push(ReportBody::Event(event), replaces)
    }

    /// Keeps a report until it is acknowledged.
    pub fn push(&mut self, body: ReportBody, replaces: Replaces) -> Result<(), StoreError> {
        self.sequence += 1;
        let report = Report {
            epoch: self.epoch,
            sequence: self.sequence,
            at_ms: clock::system_ms(),
            clock: clock::trusted(),
            body,
        };
        let unwritable = |why: String| StoreError::Record { key: "report".to_owned(), why };
        let payload = to_cbor(&report).map_err(unwritable)?;
        let signed = signed::sign(&self.key, Purpose::Report, &self.device, payload)
            .map_err(|error| unwritable(error.to_string()))?;
        let row = Row { epoch: self.epoch, sequence: self.sequence, signed };
        self.store.database().write(|transaction| transaction.push_row(&row, replaces))?;
        self.send_at = Some(Duration::ZERO);
        Ok(())
    }

    /// Rows to send now, if it is time; they are due again later unless they are acknowledged.
    pub fn due(&mut self, now: Duration) -> Result<Option<Rows>, StoreError> {
        if self.send_at.is_none_or(|at| at > now) {
            return Ok(None);
        }
        let mut rows = self.store.database().oldest_rows(MESSAGE.min(self.largest))?;
        while let Some(row) = rows.first().filter(|row| row.signed.len() > self.largest) {
            // It would never arrive, and nothing after it either.
            tracing::error!(bytes = row.signed.len(), "a report is too large for the broker and was dropped");
            let row = (row.epoch, row.sequence);
            self.store.database().write(|transaction| transaction.drop_rows(&[row]))?;
            rows = self.store.database().oldest_rows(MESSAGE.min(self.largest))?;
        }
        if rows.is_empty() {
            self.send_at = None;
            return Ok(None);
        }
        self.send_at = Some(now + self.wait);
        self.wait = (self.wait * 2).min(WAITS.1);
        Ok(Some(Rows { rows: rows.into_iter().map(|row| ByteString(row.signed)).collect() }))
    }

    /// When to ask [`Reporter::due`] again.
    pub fn wake_at(&self) -> Option<Duration> {
        self.send_at
    }

    /// There is a new connection, for packets of so many bytes: whatever waits is sent at once.
    pub fn connected(&mut self, maximum_packet: u32) {
        self.largest = usize::try_from(maximum_packet).unwrap_or(usize::MAX).saturating_sub(ROOM);
        self.introduced();
    }

    /// The registry listens now: whatever waits is sent at once.
    pub fn introduced(&mut self) {
        self.wait = WAITS.0;
        if self.send_at.is_some() {
            self.send_at = Some(Duration::ZERO);
        }
    }

    /// Takes an acknowledgement; returns how many rows it let go.
    pub fn acknowledged(&mut self, trust: &TrustState, bytes: &[u8]) -> Result<Acknowledged, AckError> {
        let keys = trust.director_keys().map_err(AckError::Keys)?;
        let payload = keys
            .into_iter()
            .find_map(|key| signed::verify(&PublicKey(key), Purpose::Ack, &self.device, bytes).ok())
            .ok_or(AckError::Signature)?;
        let ack: Ack = from_cbor(&payload).map_err(AckError::Unreadable)?;
        if ack.device != self.device {
            return Err(AckError::OtherDevice(ack.device));
        }
        let database = self.store.database();
        let gone = database.write(|transaction| transaction.drop_rows(&ack.rows))?;
        self.wait = WAITS.0;
        let waiting = database.rows_waiting()? > 0;
        // What is left goes at once where this let something go, else as it was.
        self.send_at = match (waiting, gone) {
            (false, _) => None,
            (true, 0) => self.send_at,
            (true, _) => Some(Duration::ZERO),
        };
        let of_this_run = ack.rows.iter().any(|(epoch, _)| *epoch == self.epoch);
        Ok(Acknowledged { gone, of_this_run, fleet: ack.fleet })
    }
}

/// What an acknowledgement of the Director says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// How many rows it let go.
    pub gone: usize,
    /// Whether it names a row of this run of the agent. One that was recorded before does not, and so says
    /// nothing about a key that has been made since.
    pub of_this_run: bool,
    /// How many devices have this broker, about.
    pub fleet: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter(place: &std::path::Path, epoch: u64) -> (Reporter, DeviceId) {
        let store = Store::open(Arc::new(crate::store::RealDisk), place).unwrap();
        let device: DeviceId = "edge-1".parse().unwrap();
        let (key, _) = PrivateKey::generate().unwrap();
        (Reporter::new(store, device.clone(), Arc::new(key), epoch).unwrap(), device)
    }

    #[test]
    fn rows_are_signed_sent_and_sent_again() {
        let place = tempfile::tempdir().unwrap();
        let (mut reporter, device) = reporter(place.path(), 3);
        assert_eq!(reporter.due(Duration::ZERO).unwrap(), None);
        reporter.event("committed", None, "x".repeat(5000)).unwrap();
        let rows = reporter.due(Duration::from_secs(1)).unwrap().unwrap();
        let key = reporter.public_key();
        let payload = signed::verify(&key, Purpose::Report, &device, &rows.rows[0].0).unwrap();
        let report: Report = from_cbor(&payload).unwrap();
        assert_eq!((report.epoch, report.sequence), (3, 1));
        assert!(matches!(report.body, ReportBody::Event(event) if event.what.len() == 2000));

        assert_eq!(reporter.due(Duration::from_secs(2)).unwrap(), None);
        let again = reporter.wake_at().unwrap();
        assert_eq!(reporter.due(again).unwrap(), Some(rows));
        reporter.connected(128 * 1024);
        assert!(reporter.due(again).unwrap().is_some());

        // A broker that carries less than the row: it goes, the next one is sent.
        reporter.event("committed", None, "small").unwrap();
        reporter.connected(2048);
        let rows = reporter.due(again).unwrap().unwrap();
        assert!(rows.rows.len() == 1 && rows.rows[0].0.len() < 1024, "{rows:?}");
    }
}
