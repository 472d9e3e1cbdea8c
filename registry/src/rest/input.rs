//! Reading requests: path, query and JSON body, each with a limit and with our words on failure.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use selvedge_package::{DeviceId, PackageName};
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// Largest JSON body of an ordinary route, in bytes.
pub const BODY: usize = 64 << 10;
/// Longest time that a JSON body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// Path parameters.
pub struct Params<T>(pub T);

impl<T, S> FromRequestParts<S> for Params<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(Refusal::because("path", error)),
        }
    }
}

/// Query parameters.
pub struct Asked<T>(pub T);

impl<T, S> FromRequestParts<S> for Asked<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(Refusal::because("query", error)),
        }
    }
}

/// Read a JSON body of at most `limit` bytes.
pub async fn json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Refusal> {
    let bytes = match tokio::time::timeout(PATIENCE, axum::body::to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if over_limit(&error) => {
            return Err(Refusal::TooLarge { limit: limit as u64 });
        }
        Ok(Err(error)) => {
            return Err(Refusal::Interrupted { why: error.to_string() });
        }
        Err(_) => {
            return Err(Refusal::Interrupted { why: "it took too long".to_owned() });
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| Refusal::because("body", error))
}

fn over_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if inner.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// A target's name from a path.
pub fn target_name(text: &str) -> Result<DeviceId, Refusal> {
    text.parse().map_err(Refusal::malformed("target name"))
}

/// A package's name from a body.
pub fn package_name(text: &str) -> Result<PackageName, Refusal> {
    text.parse().map_err(Refusal::malformed("package name"))
}
