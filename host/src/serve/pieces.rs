//! A body of several pieces, none of which is copied, and what may follow it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::HeaderMap;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// The body.
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    left: u64,
    trailers: Option<HeaderMap>,
}

impl Pieces {
    /// Of these, one after another.
    pub fn new(pieces: Vec<Bytes>) -> Self {
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces: pieces.into(), left, trailers: None }
    }

    /// Followed by trailers.
    #[must_use]
    pub fn followed_by(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.pieces.pop_front();
        self.left -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        let next = next.map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(next.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // What has trailers says its length nowhere.
        if self.trailers.is_some() { SizeHint::default() } else { SizeHint::with_exact(self.left) }
    }
}
