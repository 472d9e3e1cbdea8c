//! What an answer of the control socket has to be, whatever was asked.

use axum::http::{HeaderMap, StatusCode, header, response::Parts};
use selvedge_control::{ControlError, Events, HostStatus, Loaded};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::host::Host;
use crate::twin;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A load.
    Load,
    /// Something that is answered with the host's status.
    Status,
    /// Events.
    Events,
    /// A path by GET.
    Got,
    /// A path of REST.
    Rest,
    /// Inference with binary data.
    Binary,
    /// Inference with a packed body.
    Packed,
    /// A call of gRPC.
    Call,
}

/// An answer.
pub struct Reply {
    /// Status and headers.
    pub head: Parts,
    /// What came after the body.
    pub trailers: Option<HeaderMap>,
    /// All of it.
    pub body: Vec<u8>,
}

impl Reply {
    /// It is no fault of the host, says what it is, and is of the form that it says.
    pub fn check(&self, asked: Asked, host: &Host) {
        let ends = host.serving.draining();
        let status = self.head.status;
        if asked == Asked::Call {
            return self.check_call(ends);
        }
        let fine = status.is_success()
            || status.is_client_error()
            // A deadline that the request itself sets.
            || status == StatusCode::GATEWAY_TIMEOUT
            || status == StatusCode::SERVICE_UNAVAILABLE && ends;
        assert!(fine, "{asked:?}: {status}: {}", self.text());
        if !status.is_success() {
            return self.check_error(asked);
        }
        match asked {
            Asked::Load => drop(self.of::<Loaded>()),
            Asked::Events => {
                let Events { last, events } = self.of();
                assert!(events.iter().all(|event| event.number <= last));
            }
            Asked::Status => self.check_status(),
            _ => self.check_json(),
        }
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    fn of<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    fn check_status(&self) {
        let known = Host::packages();
        for package in self.of::<HostStatus>().packages {
            assert!(known.contains(&package.package), "{:?} is none that there is", package.package);
        }
    }

    fn check_error(&self, asked: Asked) {
        let said: Value = self.of();
        let error = said["error"].as_str().unwrap_or_else(|| panic!("no error: {said}"));
        assert!(!error.is_empty() && error.len() <= 4096, "{} bytes are said", error.len());
        if matches!(asked, Asked::Load | Asked::Status | Asked::Events) {
            assert!(!self.of::<ControlError>().error.is_empty());
        }
    }

    /// Numbers that JSON has not are written as words, which is what clients read.
    fn check_json(&self) {
        let kind = self.head.headers.get(header::CONTENT_TYPE);
        let packed = self.head.headers.contains_key(header::CONTENT_ENCODING);
        if kind.is_some_and(|kind| kind == "application/json") && !packed && !twin::has_words(&self.body) {
            drop(self.of::<Value>());
        }
    }

    fn check_call(&self, ends: bool) {
        assert_eq!(self.head.status, StatusCode::OK);
        let headers = [Some(&self.head.headers), self.trailers.as_ref()];
        let find = |name| headers.iter().flatten().find_map(|headers| headers.get(name));
        let code = find("grpc-status").and_then(|code| code.to_str().ok()).expect("how the call ended");
        let told = find("grpc-message").map(|told| String::from_utf8_lossy(told.as_bytes()).into_owned());
        let told = told.unwrap_or_default();
        let fine = match code {
            "0" | "3" | "4" | "5" | "8" | "9" | "12" => true,
            // As the standard has it for one message.
            "13" => told.contains("a message says that it is packed"),
            "14" => ends,
            _ => false,
        };
        assert!(fine, "the call ended with {code}: {told}");
        let mut rest = &self.body[..];
        while let [0, a, b, c, d, after @ ..] = rest {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            rest = after.get(length..).expect("whole messages");
        }
        assert!(rest.is_empty(), "{} bytes are no message", rest.len());
    }
}
