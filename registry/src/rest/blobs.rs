//! Blobs: asked for, uploaded and fetched by digest; the bytes are verified while they are written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use selvedge_package::Digest;
use serde_json::json;

use super::input::{DISCARDED, Params, discard};
use crate::app::App;
use crate::blobs::{Reader, Stored};
use crate::error::Error;
use crate::refusal::Refusal;

/// Longest pause between two parts of an upload.
const PATIENCE: Duration = Duration::from_secs(30);

fn digest(text: &str) -> Result<Digest, Refusal> {
    text.parse().map_err(|error| Refusal::because("digest", error))
}

/// HEAD: 200 with the length, or 404; a released blob whose file has another size is not here.
pub async fn head(State(app): State<Arc<App>>, Params(text): Params<String>) -> Result<Response, Refusal> {
    let digest = digest(&text)?;
    let size = match app.store.blob_size(&digest).await? {
        Some(recorded) => app.blobs.whole(&digest, recorded)?,
        None => app.blobs.size(&digest)?,
    };
    match size {
        Some(size) => Ok(([(CONTENT_LENGTH, size)], Body::empty()).into_response()),
        None => Err(Refusal::NoBlob(digest)),
    }
}

/// PUT: 201 when it is new, 200 when it was there.
pub async fn put(
    State(app): State<Arc<App>>,
    Params(text): Params<String>,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Response, Refusal> {
    let digest = digest(&text)?;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|size| size > app.blobs.limit()) {
        return Err(Refusal::TooLarge { limit: app.blobs.limit() });
    }
    let mut upload = match app.blobs.begin(digest).await {
        Ok(upload) => upload,
        Err(refusal) => {
            discard(body, DISCARDED).await;
            return Err(refusal);
        }
    };
    loop {
        let frame = match tokio::time::timeout(PATIENCE, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Refusal::Interrupted { why: error.to_string() });
            }
            Err(_) => {
                return Err(Refusal::Interrupted { why: "nothing came for too long".to_owned() });
            }
        };
        if let Ok(bytes) = frame.into_data() {
            upload.write(&bytes).await?;
        }
    }
    let status = match upload.finish().await? {
        Stored::New => StatusCode::CREATED,
        Stored::Known => StatusCode::OK,
    };
    Ok((status, Json(json!({"digest": digest}))).into_response())
}

/// GET: the bytes.
pub async fn get(State(app): State<Arc<App>>, Params(text): Params<String>) -> Result<Response, Refusal> {
    let digest = digest(&text)?;
    let size = match app.store.blob_size(&digest).await? {
        Some(recorded) => Some(recorded),
        None => app.blobs.size(&digest)?,
    };
    let reader = match size {
        Some(size) => app.blobs.reader(&digest, size)?.map(|reader| (reader, size)),
        None => None,
    };
    let (reader, size) = reader.ok_or(Refusal::NoBlob(digest))?;
    let body = Body::new(Download { reader, at: 0, size });
    let headers = [(CONTENT_LENGTH, size.to_string()), (CONTENT_TYPE, "application/octet-stream".to_owned())];
    Ok((headers, body).into_response())
}

/// Bytes read at once.
const PART: u64 = 64 << 10;

/// A blob on its way out, in parts that are read when they are wanted. Whoever gets it verifies it.
struct Download {
    reader: Reader,
    at: u64,
    size: u64,
}

impl HttpBody for Download {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let left = self.size - self.at;
        if left == 0 {
            return Poll::Ready(None);
        }
        let mut part = vec![0; left.min(PART) as usize];
        let read = self.reader.read_at(&mut part, self.at);
        self.at += part.len() as u64;
        Poll::Ready(Some(read.map(|()| Frame::data(part.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.size - self.at)
    }
}
