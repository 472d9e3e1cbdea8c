//! How refusals look over HTTP: `{"error": "…", "reason": "kebab-word"}`.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::refusal::Refusal;

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if let Self::Fault(error) = &self {
            tracing::error!("{}", error.chain());
        }
        let (status, reason) = self.status_and_reason();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = Json(json!({"error": self.to_string(), "reason": reason}));
        match status {
            StatusCode::UNAUTHORIZED => (status, [(WWW_AUTHENTICATE, "Bearer")], body).into_response(),
            StatusCode::SERVICE_UNAVAILABLE => (status, [(RETRY_AFTER, "1")], body).into_response(),
            _ => (status, body).into_response(),
        }
    }
}
