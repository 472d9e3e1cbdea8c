//! Bytes of one blob from one server: a request for a range, its answer, and then block after block
//! out of the same body, for as long as blocks are asked for in their order.
//!
//! The server is not asked for each block: the body is read as blocks are wanted, and TCP holds the
//! server back meanwhile. So a window that is asked for bit by bit costs no round trips.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, HOST, RANGE, USER_AGENT};
use tokio::time::{Instant, timeout, timeout_at};

use super::Trouble;
use super::address::Address;
use super::answer::{Asked, Body, judge};
use super::connect::{Connection, Shared};
use super::waits::Waiting;

/// Redirections that are followed.
const REDIRECTIONS: usize = 3;
/// Bytes of a body that are read for nothing, to come to where they are wanted: cheaper than another
/// request where the server answers ranges, and the only way where it does not.
const SKIPPED: u64 = 64 * 1024;
const SKIPPED_OF_WHOLE: u64 = 4 << 20;

/// An answer that is being read.
pub(super) struct Stream {
    connection: Connection,
    body: Incoming,
    /// Came, and not taken yet.
    rest: Bytes,
    /// Where in the blob the next byte lies, and where the answer ends.
    at: u64,
    end: u64,
    whole: bool,
    silence: Duration,
}

/// Asks for a range. The address becomes that to which the server redirected.
pub(super) async fn open(
    shared: &Arc<Shared>,
    address: &mut Address,
    kept: Option<Connection>,
    asked: Asked,
    waiting: &mut Waiting,
) -> Result<Stream, Trouble> {
    let mut kept = kept;
    for _ in 0..=REDIRECTIONS {
        let old = kept.take().filter(|old| old.serves(address)).or_else(|| shared.idle(address));
        let (connection, answer) = match old {
            None => fresh(shared, address, asked, waiting).await?,
            // The server may have closed it meanwhile: that says nothing about the next one.
            Some(mut old) => match old.ask(request(address, asked)?, shared.patience.answer).await {
                Ok(answer) => (old, answer),
                Err(Trouble::Cut(_)) => fresh(shared, address, asked, waiting).await?,
                Err(trouble) => return Err(trouble),
            },
        };
        match judge(&answer, asked)? {
            Body::Elsewhere(location) => *address = address.redirected(&location, connection.near)?,
            Body::Bytes { first, end, whole } => {
                let (body, silence) = (answer.into_body(), shared.patience.silence);
                let mut stream =
                    Stream { connection, body, rest: Bytes::new(), at: first, end, whole, silence };
                if !stream.reaches(asked.first) {
                    return Err(Trouble::NoRanges);
                }
                stream.skip_to(asked.first, shared.patience.block).await?;
                return Ok(stream);
            }
        }
    }
    Err(Trouble::Answer(format!("it redirects more than {REDIRECTIONS} times")))
}

async fn fresh(
    shared: &Arc<Shared>,
    address: &Address,
    asked: Asked,
    waiting: &mut Waiting,
) -> Result<(Connection, hyper::Response<Incoming>), Trouble> {
    let mut connection = shared.open(address, waiting).await?;
    let answer = connection.ask(request(address, asked)?, shared.patience.answer).await?;
    Ok((connection, answer))
}

fn request(address: &Address, asked: Asked) -> Result<Request<Empty<Bytes>>, Trouble> {
    Request::get(address.target.as_str())
        .header(HOST, address.server.host_header())
        .header(RANGE, format!("bytes={}-{}", asked.first, asked.end - 1))
        .header(ACCEPT_ENCODING, "identity")
        .header(USER_AGENT, concat!("selvedge-agent/", env!("CARGO_PKG_VERSION")))
        .body(Empty::new())
        .map_err(|error| Trouble::Answer(error.to_string()))
}

impl Stream {
    /// Whether bytes from `offset` on can still be had out of this answer at little cost.
    pub fn reaches(&self, offset: u64) -> bool {
        let most = if self.whole { SKIPPED_OF_WHOLE } else { SKIPPED };
        (self.at..self.end).contains(&offset) && offset - self.at <= most
    }

    /// Where in the blob the next byte lies.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Whether nothing is left of it.
    pub fn is_read(&self) -> bool {
        self.at == self.end
    }

    /// Reads up to `offset` for nothing, within `patience` for all of it: a byte now and then is no answer.
    pub async fn skip_to(&mut self, offset: u64, patience: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + patience;
        while self.at < offset {
            timeout_at(until, self.fill()).await.map_err(|_| Trouble::Slow)??;
            let skipped = (self.rest.len() as u64).min(offset - self.at);
            self.rest.advance(skipped as usize);
            self.at += skipped;
        }
        Ok(())
    }

    /// Appends the next `length` bytes to `into`, within `patience` for all of them.
    pub async fn read(&mut self, length: u32, into: &mut Vec<u8>, patience: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + patience;
        let mut lacking = length as usize;
        while lacking > 0 {
            timeout_at(until, self.fill()).await.map_err(|_| Trouble::Slow)??;
            let piece = self.rest.split_to(self.rest.len().min(lacking));
            into.extend_from_slice(&piece);
            lacking -= piece.len();
            self.at += piece.len() as u64;
        }
        Ok(())
    }

    /// The connection, for the next request, where the answer was read to its end.
    pub async fn end(mut self) -> Option<Connection> {
        if !self.is_read() || !self.rest.is_empty() {
            return None;
        }
        // What follows the last byte (the end of a chunked body) is part of the answer.
        let over = timeout(Duration::from_secs(1), self.body.frame()).await;
        if !matches!(over, Ok(None)) {
            return None;
        }
        drop(self.body);
        if self.connection.is_ready().await { Some(self.connection) } else { None }
    }

    /// Waits until something has come that is not taken yet.
    async fn fill(&mut self) -> Result<(), Trouble> {
        while self.rest.is_empty() {
            match timeout(self.silence, self.body.frame()).await {
                Err(_) => return Err(Trouble::Slow),
                Ok(None) => return Err(Trouble::Cut("before its end".to_owned())),
                Ok(Some(Err(error))) => return Err(Trouble::Cut(error.to_string())),
                Ok(Some(Ok(frame))) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        Ok(())
    }
}
