//! Reports: verified with the device's key, kept once, acknowledged with the Director's.
//!
//! An acknowledgement names the rows that are kept, so that a broker which holds rows back cannot
//! make a device forget them. Rows behind one that does not verify are
//! not looked at and not acknowledged. A row that verifies but says what this registry does not
//! understand, or more than it keeps, becomes an event: it must not hold up those behind it.

use std::collections::BTreeMap;

use selvedge_package::{DeviceId, PackageName};
use selvedge_protocol::envelope::{from_cbor, to_cbor};
use selvedge_protocol::message::{
    Ack, ByteString, Clock, DeviceEvent, DeviceState, Report, ReportBody, Rows,
};
use selvedge_protocol::signed::{PublicKey, Purpose, verify};
use serde::Deserialize;

use super::noise::Noise;
use crate::app::App;
use crate::error::Error;
use crate::store::in_force::InForce;
use crate::store::reports::Kept;
use crate::store::targets::Target;

/// Rows of one message.
const ROWS: usize = 256;
/// Facts of one device.
const FACTS: usize = 128;
/// Packages of one reported state.
const PACKAGES: usize = 128;

/// A signed acknowledgement, and the newest epoch that the kept rows prove.
pub struct Answered {
    /// To be sent.
    pub ack: ByteString,
    /// Newest epoch of the rows.
    pub epoch: u64,
    /// Whether the rows may change what the device shall run: its facts or floors are others now.
    pub decides: bool,
}

/// Keep the rows; gives the acknowledgement, if anything is to be acknowledged.
pub async fn keep(
    app: &App,
    target: &Target,
    key: &[u8; 32],
    rows: &Rows,
    now_ms: i64,
    noise: &Noise,
) -> Result<Option<Answered>, Error> {
    let device = &target.name;
    let mut change = None;
    let mut kept = Vec::new();
    let mut decides = false;
    let in_force = app.store.in_force(&target.workspace).await?;
    let mut floors = target.floors.clone();
    for row in rows.rows.iter().take(ROWS) {
        let report = match read(&PublicKey(*key), device, &row.0, now_ms) {
            Ok(report) => report,
            Err(why) => {
                noise.warn(device, &format!("a report is refused: {why}"));
                break;
            }
        };
        let change = match &mut change {
            Some(change) => change,
            none => none.insert(app.store.change().await?),
        };
        let stored = change.keep_report(device, &report, now_ms).await?;
        match &report.body {
            ReportBody::Facts(facts) => decides |= stored == Kept::New && *facts != target.facts,
            // What was committed once counts, however late it is heard.
            ReportBody::State(state) => raise(&mut floors, state, &in_force),
            ReportBody::Event(_) => {}
        }
        kept.push((report.epoch, report.sequence));
    }
    if let Some(mut change) = change {
        if floors != target.floors {
            change.set_floors(device, &floors).await?;
            decides = true;
        }
        // The enrolled device has spoken: the token of its file opens nothing more.
        if !kept.is_empty() && !target.token_hash.is_empty() && !target.token_replaces {
            change.use_up_token(device).await?;
        }
        change.commit().await?;
    }
    let Some((epoch, _)) = kept.iter().max().copied() else {
        return Ok(None);
    };
    let sign = |why: String| Error::Sign { what: "an acknowledgement".to_owned(), why };
    let payload =
        to_cbor(&Ack { device: device.clone(), rows: kept, fleet: app.presences.heard() }).map_err(sign)?;
    let ack = ByteString(app.trust.sign_ack(device, payload)?);
    Ok(Some(Answered { ack, epoch, decides }))
}

/// Raise floors by what is committed: below them the device never goes again.
fn raise(floors: &mut BTreeMap<PackageName, u64>, state: &DeviceState, in_force: &InForce) {
    for package in &state.packages {
        let Some(committed) = &package.committed else { continue };
        let floor = in_force.floor(&package.name, committed.release).unwrap_or(0);
        if floor > floors.get(&package.name).copied().unwrap_or(0) {
            floors.insert(package.name.clone(), floor);
        }
    }
}

/// What every report has, whatever it says.
#[derive(Deserialize)]
struct Head {
    epoch: u64,
    sequence: u64,
}

/// Verify one row. The error says why it is not the device's, or has no place among its rows.
fn read(key: &PublicKey, device: &DeviceId, row: &[u8], now_ms: i64) -> Result<Report, String> {
    let payload = verify(key, Purpose::Report, device, row).map_err(|error| error.to_string())?;
    let Head { epoch, sequence } = from_cbor(&payload)?;
    let most = i64::MAX as u64;
    if epoch > most || sequence > most {
        return Err("its epoch or sequence is beyond 2^63".to_owned());
    }
    let why = match from_cbor::<Report>(&payload) {
        Ok(report) => match too_much(&report.body) {
            None => return Ok(report),
            Some(why) => why.to_owned(),
        },
        Err(why) => why,
    };
    tracing::warn!(%device, epoch, sequence, "a report cannot be kept as it is: {why}");
    let body =
        ReportBody::Event(DeviceEvent { kind: "unreadable-report".to_owned(), package: None, what: why });
    Ok(Report { epoch, sequence, at_ms: now_ms, clock: Clock::Free, body })
}

fn too_much(body: &ReportBody) -> Option<&'static str> {
    match body {
        ReportBody::Facts(facts) if facts.len() > FACTS => Some("it lists more facts than are kept"),
        ReportBody::State(state) if state.packages.len() > PACKAGES => {
            Some("it lists more packages than are kept")
        }
        _ => None,
    }
}
