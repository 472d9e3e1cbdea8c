//! How a call ends: gRPC's status codes, from the one table of failures.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::oip::refusal::Refusal;
use crate::serve::failure::Failure;

/// Media type of every answer.
pub const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Bytes of a message that are told: clients bound what their headers may take.
const MOST_TOLD: usize = 2048;

/// A status code of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Answered.
    Ok = 0,
    /// The request is wrong.
    InvalidArgument = 3,
    /// Not in time.
    DeadlineExceeded = 4,
    /// No such model.
    NotFound = 5,
    /// Too large, or too many.
    ResourceExhausted = 8,
    /// What it belongs to is not here.
    FailedPrecondition = 9,
    /// No such method, or one that is not offered.
    Unimplemented = 12,
    /// The package or the host failed.
    Internal = 13,
    /// To be tried again.
    Unavailable = 14,
}

impl Code {
    /// Of a failure: its HTTP status says it, but for what is not offered.
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Path | Failure::NotOffered(_) | Failure::Refused(Refusal::NotOffered(_)) => {
                return Self::Unimplemented;
            }
            // As the standard has it.
            Failure::Unnamed => return Self::Internal,
            _ => {}
        }
        match failure.status() {
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::CONFLICT => Self::FailedPrecondition,
            StatusCode::METHOD_NOT_ALLOWED => Self::Unimplemented,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::DeadlineExceeded,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => Self::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            status if status.is_client_error() => Self::InvalidArgument,
            _ => Self::Internal,
        }
    }
}

/// The end of a call, as trailers say it.
pub fn trailers(code: Code, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code as u16));
    if let (false, Ok(message)) = (message.is_empty(), HeaderValue::from_str(&told(message))) {
        trailers.insert("grpc-message", message);
    }
    trailers
}

/// The end of a call that failed.
pub fn failed(failure: &Failure) -> HeaderMap {
    let mut trailers = trailers(Code::of(failure), &failure.to_string());
    if let Some(seconds) = failure.retry_after() {
        trailers.insert("grpc-retry-pushback-ms", HeaderValue::from(seconds.saturating_mul(1000)));
    }
    trailers
}

/// An answer that is nothing but an end.
pub fn refused(failure: &Failure) -> Response {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = failed(failure);
    mark(&mut response);
    response
}

/// Writes into the head of an answer what it is, and how messages may be packed.
pub fn mark(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, MEDIA_TYPE);
    headers.insert(ACCEPTED, HeaderValue::from_static("identity, deflate, gzip"));
}

/// A message as a header may have it: what is not printable ASCII in percents.
fn told(message: &str) -> String {
    let mut end = message.len().min(MOST_TOLD);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let mut told = String::with_capacity(end);
    for byte in message[..end].bytes() {
        match byte {
            b'%' | ..=0x1f | 0x7f.. => drop(write!(told, "%{byte:02X}")),
            byte => told.push(char::from(byte)),
        }
    }
    if end < message.len() {
        told.push_str("...");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::PredictError;
    use crate::serve::table::Missing;
    use std::time::Duration;

    #[test]
    fn each_failure_has_its_code() {
        let check = |failure: Failure, code| assert_eq!(Code::of(&failure), code, "{failure}");
        check(Refusal::Missing("inputs").into(), Code::InvalidArgument);
        check(Refusal::Message(String::new()).into(), Code::InvalidArgument);
        check(Refusal::NotOffered("shared memory".to_owned()).into(), Code::Unimplemented);
        check(Refusal::TooLarge { bytes: 2, limit: 1 }.into(), Code::ResourceExhausted);
        check(Failure::Path, Code::Unimplemented);
        check(Failure::NotOffered("x"), Code::Unimplemented);
        check(Failure::Unnamed, Code::Internal);
        check(Failure::StreamIdle(Duration::ZERO), Code::DeadlineExceeded);
        check(Missing::Model("m".to_owned()).into(), Code::NotFound);
        check(Failure::Coming("m".to_owned()), Code::Unavailable);
        let second = std::time::Duration::from_secs(1);
        check(Failure::Full(second), Code::ResourceExhausted);
        check(Failure::Hopeless(second), Code::Unavailable);
        check(Failure::Late(second), Code::DeadlineExceeded);
        check(Failure::Slow(1), Code::DeadlineExceeded);
        check(PredictError::InvalidInput(String::new()).into(), Code::InvalidArgument);
        check(PredictError::Deadline(Duration::ZERO).into(), Code::DeadlineExceeded);
        check(PredictError::Trap(String::new()).into(), Code::Internal);
        check(Failure::Panic, Code::Internal);
    }

    #[test]
    fn any_message_can_be_told() {
        assert_eq!(told("no `m`: 100 %\ngrün"), "no `m`: 100 %25%0Agr%C3%BCn");
        let long = told(&"ü".repeat(MOST_TOLD));
        assert!(long.ends_with("%C3%BC...") && long.len() <= 3 * MOST_TOLD + 3);
        let told = failed(&Failure::Full(std::time::Duration::from_secs(1)));
        assert_eq!(
            (&told["grpc-status"], &told["grpc-retry-pushback-ms"]),
            (&HeaderValue::from(8), &HeaderValue::from(1000))
        );
        assert!(!failed(&Failure::Path).contains_key("grpc-retry-pushback-ms"));
    }
}
