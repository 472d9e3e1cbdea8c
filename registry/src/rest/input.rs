//! Reading requests: path, query and JSON body, each with a limit and with our words on failure.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use http_body_util::BodyExt;
use selvedge_package::{DeviceId, PackageName};
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::refusal::Refusal;
use crate::store::targets::Target;

/// Largest JSON body of an ordinary route, in bytes.
pub const BODY: usize = 64 << 10;
/// Longest time that a JSON body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a refused body that are read before the answer, and the time that this may take.
pub const DISCARDED: u64 = 16 << 20;
const DISCARDING: Duration = Duration::from_secs(5);

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

/// The target that a path names, in a workspace that there is.
pub async fn target(app: &App, workspace: &str, name: &str) -> Result<Target, Refusal> {
    app.store.expect_workspace(workspace).await?;
    app.store.expect_target(workspace, &target_name(name)?).await
}

/// Read a JSON body of at most `limit` bytes.
pub async fn json<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Refusal> {
    let bytes = bytes(body, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| Refusal::because("body", error))
}

/// As [`json`]; no body stands for what has all defaults.
pub async fn json_or_nothing<T: DeserializeOwned + Default>(body: Body, limit: usize) -> Result<T, Refusal> {
    let bytes = bytes(body, limit).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    let value: Option<T> = serde_json::from_slice(&bytes).map_err(|error| Refusal::because("body", error))?;
    Ok(value.unwrap_or_default())
}

/// Read a body of at most `limit` bytes.
pub async fn bytes(mut body: Body, limit: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Refusal::Interrupted { why: error.to_string() })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(Refusal::TooLarge { limit: limit as u64 });
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    match tokio::time::timeout(PATIENCE, read).await {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => {
            discard(body, DISCARDED).await;
            return Err(refusal);
        }
        Err(_) => return Err(Refusal::Interrupted { why: "it took too long".to_owned() }),
    }
    Ok(bytes)
}

/// Read what is left of a body whose request is refused, within bounds: a connection that is closed
/// on unread bytes is reset, and the client may never see why it was refused.
pub async fn discard(mut body: Body, most: u64) {
    // It says itself that it is too much: the rest is not worth waiting for.
    if HttpBody::size_hint(&body).lower() > most {
        return;
    }
    let mut left = most;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // Whoever takes longer is not told.
    let _ = tokio::time::timeout(DISCARDING, read).await;
}

/// A target's name from a path.
pub fn target_name(text: &str) -> Result<DeviceId, Refusal> {
    text.parse().map_err(Refusal::malformed("target name"))
}

/// A package's name from a body.
pub fn package_name(text: &str) -> Result<PackageName, Refusal> {
    text.parse().map_err(Refusal::malformed("package name"))
}
