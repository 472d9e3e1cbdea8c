//! Errors of the control socket: a sentence, a word for programs, and the status code of the word.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use selvedge_control::{ControlError, Reason};

use crate::cases::CaseError;
use crate::failure::OpenError;
use crate::serve::failure::{json, said};

/// A request of the control socket that is not followed.
#[derive(Debug)]
pub struct Refused(pub ControlError);

impl Refused {
    /// With a word and a sentence, of which no more is said than people read.
    pub fn new(reason: Reason, error: impl Into<String>) -> Self {
        Self(ControlError { error: said(error.into()), reason })
    }
}

impl From<OpenError> for Refused {
    fn from(error: OpenError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

impl From<CaseError> for Refused {
    fn from(error: CaseError) -> Self {
        Self::new(Reason::BadCase, error.to_string())
    }
}

/// The status code of a reason.
pub fn status(reason: Reason) -> StatusCode {
    match reason {
        Reason::BadRequest => StatusCode::BAD_REQUEST,
        Reason::NotLoaded => StatusCode::NOT_FOUND,
        Reason::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Reason::Corrupt
        | Reason::BadManifest
        | Reason::BadComponent
        | Reason::BadModel
        | Reason::BadCase
        | Reason::Limit => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        json(status(self.0.reason), &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_repeats_what_came_ends_somewhere() {
        let said = |text: &str| Refused::new(Reason::BadRequest, text).0.error;
        assert_eq!(said("no path `/a`"), "no path `/a`");
        let long = said(&"ä".repeat(2048));
        assert!(long.len() < 2056 && long.ends_with("ä…"), "{} bytes", long.len());
    }
}
