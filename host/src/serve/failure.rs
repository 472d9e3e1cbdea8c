//! Everything that keeps a request from its answer, and the status code of each. The one table; the
//! same table for people is in `docs/oip.md`.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use selvedge_control::ControlError;
use serde::Serialize;

use super::gate::Turned;
use super::table::Missing;
use crate::control::refused;
use crate::failure::{PredictError, millis};
use crate::oip::binary::TooLong;
use crate::oip::refusal::Refusal;
use crate::sequence::SequenceError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The request breaks the protocol or the manifest.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A header that cannot be.
    #[error("{0}")]
    Header(String),
    /// The body ended before its end.
    #[error("the body could not be read to its end: {0}")]
    Broken(String),
    /// Neither a path of the protocol.
    #[error("there is nothing at this path; the protocol's paths begin with /v2")]
    Path,
    /// A path of an extension that is not offered here.
    #[error("{0}")]
    NotOffered(&'static str),
    /// The model repository did not do what it was asked for.
    #[error("{}", .0.error)]
    Repository(ControlError),
    /// A service that is not here.
    #[error("no such service is here; there is `inference.GRPCInferenceService`")]
    NoService,
    /// No such model or version.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// No such model, and not everything is loaded.
    #[error("no model `{0}` is served here so far; packages are still being loaded, try again later")]
    Coming(String),
    /// A path that takes another method.
    #[error("this path does not take the method {0}")]
    Method(String),
    /// The body came too slowly.
    #[error("the body did not come within {0} ms")]
    Slow(u128),
    /// The body is larger than the package allows.
    #[error("the body is larger than the {limit} bytes that the package allows")]
    TooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The body is not in the coding that its Content-Encoding names.
    #[error("the body is not the {coding} that its Content-Encoding says: {why}")]
    Coding {
        /// As the header names it.
        coding: &'static str,
        /// What the decoder said.
        why: String,
    },
    /// The answer can come in no coding that the client takes.
    #[error(
        "the request's Accept-Encoding leaves no way to answer: `identity` is excluded, and neither `gzip` nor \
         `deflate` is allowed"
    )]
    NotAcceptable,
    /// An output that cannot be written as the client asked.
    #[error(transparent)]
    Unwritable(#[from] TooLong),
    /// An answer that a message of gRPC cannot hold.
    #[error(
        "the answer has more bytes than a message of gRPC can have (4 GiB): ask for fewer outputs, or over REST"
    )]
    Unanswerable,
    /// The time that a client gave a stream is over.
    #[error("the time that was given to this call is over")]
    StreamTime,
    /// A message that says it is packed, of a call that does not say how.
    #[error("a message says that it is packed, and grpc-encoding does not say how")]
    Unnamed,
    /// A stream on which nothing comes.
    #[error("no message came within {} ms: open a stream anew when there is something to ask", millis(*.0))]
    StreamIdle(Duration),
    /// A body of another kind.
    #[error("{0}")]
    MediaType(String),
    /// There is no such sequence, or no place for it.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Too many requests wait; there may be room after this.
    #[error("too many requests wait for this model; try again in {} s", seconds(*.0))]
    Full(Duration),
    /// So many wait that this one's turn would come too late.
    #[error("the requests that wait for this model take longer than this one's deadline; try again in {} s", seconds(*.0))]
    Hopeless(Duration),
    /// The deadline passed before the request's turn came.
    #[error("no turn within {} ms: the model was busy with others", millis(*.0))]
    Late(Duration),
    /// What the client gives in `timeout` passed.
    #[error("no answer within the request's `timeout` of {} ms", millis(*.0))]
    Timeout(Duration),
    /// The deadline passed, most of it while others had their turn, or ran together with this one.
    #[error("no answer within {} ms, of which {} ms went by before its turn", allowed.as_millis(), waited.as_millis())]
    Crowded {
        /// The deadline.
        allowed: Duration,
        /// Time in the queue.
        waited: Duration,
    },
    /// Requests hold all the memory that they may.
    #[error("requests hold all the memory that they may; try again later")]
    Memory,
    /// The server ends.
    #[error("the server is ending")]
    Ending,
    /// The package did not answer.
    #[error("{0}")]
    Predict(#[from] PredictError),
    /// The package answered without an output of its manifest.
    #[error("the module gave no output `{0}`")]
    NoOutput(String),
    /// A bug of this program.
    #[error("the server failed while it worked on this request; its log says more")]
    Panic,
}

impl From<Turned> for Failure {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Full(again) => Self::Full(again),
            Turned::Hopeless(again) => Self::Hopeless(again),
            Turned::Late => Self::Late(Duration::ZERO),
        }
    }
}

/// As Retry-After has them.
fn seconds(again: Duration) -> u64 {
    again.as_secs_f64().ceil() as u64
}

impl Failure {
    /// After how many seconds trying again makes sense, where it does.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Full(again) | Self::Hopeless(again) => Some(seconds(*again).max(1)),
            other => {
                let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
                busy.contains(&other.status()).then_some(1)
            }
        }
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Refused(Refusal::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Refused(_) | Self::Header(_) | Self::Unnamed | Self::Broken(_) | Self::Coding { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::Unwritable(_) | Self::Unanswerable => StatusCode::BAD_REQUEST,
            Self::Predict(PredictError::InvalidInput(_)) => StatusCode::BAD_REQUEST,
            Self::Path | Self::NoService | Self::NotOffered(_) | Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Repository(error) => refused::status(error.reason),
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Slow(_) | Self::StreamIdle(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Full(_) | Self::Sequence(SequenceError::TooMany(_) | SequenceError::Crowded(_)) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Sequence(SequenceError::Closed) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Sequence(SequenceError::Unknown { .. }) => StatusCode::CONFLICT,
            Self::Late(_)
            | Self::Timeout(_)
            | Self::Crowded { .. }
            | Self::Sequence(SequenceError::Late(_)) => StatusCode::GATEWAY_TIMEOUT,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::Coming(_) | Self::Hopeless(_) | Self::Memory | Self::Ending => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Predict(PredictError::Busy(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Self::StreamTime | Self::Predict(PredictError::Deadline(_)) => StatusCode::GATEWAY_TIMEOUT,
            Self::Predict(
                PredictError::Model(_)
                | PredictError::Module(_)
                | PredictError::Trap(_)
                | PredictError::Limit(_)
                | PredictError::Internal(_),
            ) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoOutput(_) | Self::Panic => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether the package is at fault, rather than the client or the load.
    pub fn is_the_packages(&self) -> bool {
        match self {
            Self::Predict(error) => !matches!(error, PredictError::InvalidInput(_) | PredictError::Busy(_)),
            Self::NoOutput(_) => true,
            _ => false,
        }
    }
}

#[derive(Serialize)]
struct Words {
    error: String,
}

/// Most bytes of a sentence: it may repeat what came, escaped.
const MOST_SAID: usize = 2048;

/// A sentence, of which no more is said than people read.
pub fn said(mut sentence: String) -> String {
    if sentence.len() > MOST_SAID {
        sentence.truncate(sentence.floor_char_boundary(MOST_SAID));
        sentence.push('…');
    }
    sentence
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = json(status, &Words { error: said(self.to_string()) });
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => json_text(status, text),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            json_text(StatusCode::INTERNAL_SERVER_ERROR, br#"{"error":"internal"}"#.to_vec())
        }
    }
}

/// An answer that is JSON already.
pub fn json_text(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_status() {
        let check = |failure: Failure, status: u16, packages: bool| {
            assert_eq!((failure.status().as_u16(), failure.is_the_packages()), (status, packages));
        };
        check(Refusal::Missing("inputs").into(), 400, false);
        check(Refusal::TooLarge { bytes: 2, limit: 1 }.into(), 413, false);
        check(Failure::Path, 404, false);
        check(Missing::Model("m".to_owned()).into(), 404, false);
        check(Failure::Coming("m".to_owned()), 503, false);
        check(Failure::Method("PUT".to_owned()), 405, false);
        check(Failure::Slow(1), 408, false);
        check(Failure::TooLarge { limit: 1 }, 413, false);
        check(Failure::MediaType(String::new()), 415, false);
        let second = Duration::from_secs(1);
        check(Turned::Full(second).into(), 429, false);
        check(Turned::Hopeless(second).into(), 503, false);
        check(Turned::Late.into(), 504, false);
        check(Failure::Timeout(second), 504, false);
        check(Failure::Crowded { allowed: second, waited: second }, 504, false);
        check(Failure::NotAcceptable, 406, false);
        check(Failure::Memory, 503, false);
        check(SequenceError::Unknown { id: String::new(), why: None }.into(), 409, false);
        check(SequenceError::Closed.into(), 503, false);
        check(SequenceError::TooMany(1).into(), 429, false);
        check(SequenceError::Crowded(String::new()).into(), 429, false);
        check(SequenceError::Late(String::new()).into(), 504, false);
        check(PredictError::InvalidInput(String::new()).into(), 400, false);
        check(PredictError::Busy(Duration::ZERO).into(), 503, false);
        check(PredictError::Deadline(Duration::ZERO).into(), 504, true);
        check(PredictError::Trap(String::new()).into(), 500, true);
        check(Failure::NoOutput(String::new()), 500, true);
    }

    #[test]
    fn one_who_should_try_again_is_told_when() {
        let of = |failure: Failure| failure.into_response().headers()[header::RETRY_AFTER].clone();
        assert_eq!(of(Failure::Coming("m".to_owned())), "1");
        assert_eq!(of(Failure::Full(Duration::ZERO)), "1");
        assert_eq!(of(Failure::Hopeless(Duration::from_millis(6500))), "7");
        assert!(!Failure::Path.into_response().headers().contains_key(header::RETRY_AFTER));
    }
}
