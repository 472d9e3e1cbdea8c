//! What the device reports: verified with its key, kept, and only then acknowledged.
//!
//! Rows behind one that does not verify are not looked at. One that verifies but cannot be read, or
//! says more than is kept, is let go of with a note: it must not hold up those behind it.

use std::io::Write as _;

use selvedge_package::DeviceId;
use selvedge_protocol::envelope::{from_cbor, to_cbor};
use selvedge_protocol::message::{Ack, ByteString, DeviceEvent, Report, ReportBody, Rows};
use selvedge_protocol::signed::{self, Purpose, SignedError, verify};
use selvedge_signing::{OnlineKeys, Signer as _, SigningError};
use serde::Deserialize;
use serde_json::json;

use super::repository::{Device, Repository};
use crate::failure::Failure;
use crate::keyring::failed;

/// Rows of one message.
const ROWS: usize = 256;
/// Packages of one reported state.
const PACKAGES: usize = 128;
/// Bytes of a file of events; then it becomes the old one.
const EVENTS: u64 = 1 << 20;

/// What came of a message with rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Epoch and sequence of the rows that verified.
    pub rows: Vec<(u64, u64)>,
    /// Events that were not known before.
    pub events: Vec<DeviceEvent>,
    /// Whether the device's state is newer than the one known.
    pub state: bool,
    /// Why rows were not taken, or let go of.
    pub notes: Vec<String>,
}

/// What every report has, whatever it says.
#[derive(Deserialize)]
struct Head {
    epoch: u64,
    sequence: u64,
}

/// Takes rows into the memory of the device, which the caller keeps. Nothing without its key.
pub fn take(device: &mut Device, rows: &Rows) -> Taken {
    let mut taken = Taken::default();
    let Some(key) = device.public_key else {
        return taken;
    };
    let key = signed::PublicKey(*key.as_bytes());
    for row in rows.rows.iter().take(ROWS) {
        let payload = match verify(&key, Purpose::Report, &device.device, &row.0) {
            Ok(payload) => payload,
            Err(error) => {
                taken.notes.push(format!("a report is refused: {error}"));
                break;
            }
        };
        let Ok(Head { epoch, sequence }) = from_cbor(&payload) else {
            taken.notes.push("a report is refused: it has no place among the others".to_owned());
            break;
        };
        let at = (epoch, sequence);
        taken.rows.push(at);
        device.epoch = device.epoch.max(epoch);
        match from_cbor::<Report>(&payload).map(|report| report.body) {
            Ok(ReportBody::State(state)) if state.packages.len() <= PACKAGES => {
                if at > device.reported {
                    device.reported = at;
                    device.state = Some(state);
                    taken.state = true;
                }
            }
            Ok(ReportBody::State(_)) => {
                taken.notes.push("a report lists more packages than are kept".to_owned());
            }
            Ok(ReportBody::Event(event)) => {
                if at > device.events {
                    device.events = at;
                    taken.events.push(event);
                }
            }
            Ok(ReportBody::Facts(_)) => {}
            Err(why) => taken.notes.push(format!("a report cannot be read: {why}")),
        }
    }
    taken
}

/// Writes events behind those that are there. They are durable when this returns.
pub fn keep_events(
    repository: &Repository,
    device: &DeviceId,
    events: &[DeviceEvent],
) -> Result<(), Failure> {
    if events.is_empty() {
        return Ok(());
    }
    let path = repository.events_path(device);
    if std::fs::metadata(&path).is_ok_and(|held| held.len() > EVENTS) {
        let old = path.with_extension("old.jsonl");
        std::fs::rename(&path, &old).map_err(Failure::file("move", &path))?;
    }
    let mut text = String::new();
    for event in events {
        text.push_str(&json!({"kind": event.kind, "package": event.package, "what": event.what}).to_string());
        text.push('\n');
    }
    let mut file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(&path)
        .map_err(Failure::file("open", &path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(Failure::file("write", &path))
}

/// The acknowledgement of rows that are kept.
pub fn acknowledge(
    online: &OnlineKeys,
    device: &DeviceId,
    rows: Vec<(u64, u64)>,
) -> Result<ByteString, Failure> {
    let payload = to_cbor(&Ack { device: device.clone(), rows, fleet: 1 })
        .map_err(|why| Failure::Internal { what: "cannot write an acknowledgement", source: why.into() })?;
    let signed = signed::sign_with(Purpose::Ack, device, payload, |bytes| {
        online.director_targets.sign(bytes).map_err(Unsigned::Key)
    });
    signed.map(ByteString).map_err(|error| match error {
        Unsigned::Key(error) => failed("sign an acknowledgement", error),
        Unsigned::Form(error) => {
            Failure::Internal { what: "cannot sign an acknowledgement", source: error.into() }
        }
    })
}

enum Unsigned {
    Key(SigningError),
    Form(SignedError),
}

impl From<SignedError> for Unsigned {
    fn from(error: SignedError) -> Self {
        Self::Form(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::message::{Clock, DeviceState};
    use selvedge_protocol::signed::{PrivateKey, sign};
    use selvedge_signing::PublicKey;

    fn device() -> (Device, PrivateKey) {
        let (key, _) = PrivateKey::generate().unwrap();
        let mut device = Device::new("edge-1".parse().unwrap());
        device.public_key = Some(PublicKey::from_bytes(key.public().0));
        (device, key)
    }

    fn row(key: &PrivateKey, name: &str, epoch: u64, sequence: u64, body: ReportBody) -> ByteString {
        let report = Report { epoch, sequence, at_ms: 0, clock: Clock::Free, body };
        let payload = to_cbor(&report).unwrap();
        ByteString(sign(key, Purpose::Report, &name.parse().unwrap(), payload).unwrap())
    }

    fn state(desired: u64) -> ReportBody {
        ReportBody::State(DeviceState { desired, ..DeviceState::default() })
    }

    fn event(what: &str) -> ReportBody {
        let kind = "committed".to_owned();
        ReportBody::Event(DeviceEvent { kind, package: None, what: what.to_owned() })
    }

    #[test]
    fn only_the_newest_state_counts_and_events_count_once() {
        let (mut device, key) = device();
        let rows = Rows {
            rows: vec![
                row(&key, "edge-1", 1, 1, state(1)),
                row(&key, "edge-1", 1, 2, event("a")),
                row(&key, "edge-1", 2, 1, state(5)),
            ],
        };
        let taken = take(&mut device, &rows);
        assert_eq!(taken.rows, [(1, 1), (1, 2), (2, 1)]);
        assert_eq!((taken.events.len(), taken.state, device.epoch), (1, true, 2));
        // The same again, and an older one: acknowledged, and no news.
        let again = take(&mut device, &rows);
        assert_eq!((again.rows.len(), again.events.len(), again.state), (3, 0, false));
        assert_eq!(device.state.as_ref().unwrap().desired, 5);
    }

    #[test]
    fn nothing_is_taken_that_the_device_did_not_sign() {
        let (mut device, key) = device();
        let (thief, _) = PrivateKey::generate().unwrap();
        let good = row(&key, "edge-1", 1, 1, state(1));
        for bad in [
            row(&thief, "edge-1", 9, 9, state(9)),
            row(&key, "edge-2", 9, 9, state(9)),
            ByteString(b"rubbish".to_vec()),
            ByteString(Vec::new()),
        ] {
            let taken = take(&mut device, &Rows { rows: vec![good.clone(), bad, good.clone()] });
            assert_eq!((taken.rows.as_slice(), taken.notes.len()), (&[(1, 1)][..], 1));
        }
        assert_eq!(device.state.as_ref().unwrap().desired, 1);
        // Without a key nothing is.
        device.public_key = None;
        assert_eq!(take(&mut device, &Rows { rows: vec![good] }), Taken::default());
    }

    #[test]
    fn what_cannot_be_read_holds_nothing_up() {
        let (mut device, key) = device();
        let odd = to_cbor(&json!({"epoch": 1, "sequence": 1, "body": "of a later version"})).unwrap();
        let odd = ByteString(sign(&key, Purpose::Report, &device.device, odd).unwrap());
        let many = DeviceState {
            packages: (0..=PACKAGES)
                .map(|n| selvedge_protocol::message::PackageReport {
                    name: format!("p{n}").parse().unwrap(),
                    committed: None,
                    pending: None,
                    serving: false,
                    failure: None,
                })
                .collect(),
            ..DeviceState::default()
        };
        let many = row(&key, "edge-1", 1, 2, ReportBody::State(many));
        let taken = take(&mut device, &Rows { rows: vec![odd, many, row(&key, "edge-1", 1, 3, state(3))] });
        assert_eq!((taken.rows.len(), taken.notes.len(), taken.state), (3, 2, true));
    }
}
