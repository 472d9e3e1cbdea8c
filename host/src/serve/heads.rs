//! Memory for the heads of requests on HTTP/2, of which one connection may have many open: it comes from what
//! all requests share, as their bodies do, and is refused where there is none.

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use axum::response::{IntoResponse, Response};

use super::body::{Budget, Reserved};
use super::failure::Failure;
use crate::grpc;

/// What a request takes beside its head: its place on the connection, and what works on it.
pub const BESIDE: usize = 4 << 10;

/// What a header takes beside its name and its value.
const BESIDE_HEADER: usize = 128;

/// Memory for a request, beside its body; or the answer that there is none.
#[allow(clippy::result_large_err)]
pub fn reserve<B>(budget: &Budget, request: &Request<B>) -> Result<Reserved, Response<Body>> {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    budget.reserve(BESIDE + path + takes(request.headers())).map_err(|failure| refused(request, &failure))
}

fn refused<B>(request: &Request<B>, failure: &Failure) -> Response<Body> {
    if grpc::is_call(request) { grpc::status::refused(failure) } else { Failure::Memory.into_response() }
}

fn takes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + BESIDE_HEADER).sum()
}
