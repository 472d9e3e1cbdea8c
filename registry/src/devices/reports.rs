//! Reports: verified with the device's key, kept once, acknowledged with the Director's.
//!
//! An acknowledgement is cumulative, so a device sends its oldest rows first and every message
//! begins with the oldest one that is not acknowledged. Rows behind one that does not verify are
//! not looked at and not acknowledged.

use selvedge_package::DeviceId;
use selvedge_protocol::envelope::{from_cbor, to_cbor};
use selvedge_protocol::message::{Ack, ByteString, Report, ReportBody, Rows};
use selvedge_protocol::signed::{PublicKey, Purpose, verify};

use crate::app::App;
use crate::error::Error;
use crate::store::targets::Target;

/// Rows of one message.
const ROWS: usize = 256;
/// Facts of one device.
const FACTS: usize = 128;
/// Packages of one reported state.
const PACKAGES: usize = 128;

/// Keep the rows; gives the signed acknowledgement, if anything is to be acknowledged.
pub async fn keep(
    app: &App,
    target: &Target,
    key: &[u8; 32],
    rows: &Rows,
    now_ms: i64,
) -> Result<Option<ByteString>, Error> {
    let device = &target.name;
    let mut change = None;
    let mut newest: Option<(u64, u64)> = None;
    for row in rows.rows.iter().take(ROWS) {
        let report = match read(&PublicKey(*key), device, &row.0) {
            Ok(report) => report,
            Err(why) => {
                tracing::warn!(%device, "a report is refused: {why}");
                break;
            }
        };
        let change = match &mut change {
            Some(change) => change,
            none => none.insert(app.store.change().await?),
        };
        change.keep_report(device, &report, now_ms).await?;
        newest = newest.max(Some((report.epoch, report.sequence)));
    }
    if let Some(change) = change {
        change.commit().await?;
    }
    let Some((epoch, sequence)) = newest else {
        return Ok(None);
    };
    let sign = |why: String| Error::Sign { what: "an acknowledgement".to_owned(), why };
    let payload = to_cbor(&Ack { device: device.clone(), epoch, sequence }).map_err(sign)?;
    Ok(Some(ByteString(app.trust.sign_ack(device, payload)?)))
}

/// Verify one row and check its bounds; the error says what is wrong with it.
fn read(key: &PublicKey, device: &DeviceId, row: &[u8]) -> Result<Report, String> {
    let payload = verify(key, Purpose::Report, device, row).map_err(|error| error.to_string())?;
    let report: Report = from_cbor(&payload)?;
    let most = i64::MAX as u64;
    if report.epoch > most || report.sequence > most {
        return Err("its epoch or sequence is beyond 2^63".to_owned());
    }
    let too_many = match &report.body {
        ReportBody::Facts(facts) => facts.len() > FACTS,
        ReportBody::State(state) => state.packages.len() > PACKAGES,
        ReportBody::Event(_) => false,
    };
    if too_many {
        return Err("it lists more than any device has".to_owned());
    }
    Ok(report)
}
