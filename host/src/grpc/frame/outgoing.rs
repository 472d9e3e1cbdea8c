//! Messages as they go.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;

use crate::grpc::status::{self, Code};
use crate::serve::failure::Failure;
use crate::serve::pieces::Pieces;

/// Puts the head of a message in front of its pieces.
pub fn framed(mut pieces: Vec<Bytes>) -> Result<Vec<Bytes>, Failure> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let length = u32::try_from(length).map_err(|_| Failure::Unanswerable)?;
    let mut head = vec![0];
    head.extend(length.to_be_bytes());
    if let Some(first) = pieces.first_mut() {
        // The first one has what stands before elements, and is short.
        head.extend_from_slice(first);
        *first = head.into();
    } else {
        pieces.push(head.into());
    }
    Ok(pieces)
}

/// The answer of a call that has one message, of which these are the pieces with its head.
pub fn answer(pieces: Vec<Bytes>) -> Response {
    response(Body::new(Pieces::new(pieces).followed_by(status::trailers(Code::Ok, ""))))
}

/// An answer with this body.
pub fn response(body: Body) -> Response {
    let mut response = Response::new(body);
    status::mark(&mut response);
    response
}
