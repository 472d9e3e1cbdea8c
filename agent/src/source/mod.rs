//! Blobs from web servers that a signed manifest names, instead of from the registry over MQTT.
//!
//! Transfers over HTTP are transfers: the same plan asks for the same blocks, the same chunks are
//! checked before they are kept, the same bitmap remembers them. Only who answers is another.
//! [`sources`] runs them and chooses whom to ask; a [`job`] turns requests into HTTP ranges, [`stream`]
//! reads the answers, [`connect`] holds the connections, [`answer`] judges what a server says, [`address`]
//! where it lies, [`authorities`] whom to believe, [`pace`] how slow it may be, [`waits`] how long it was
//! waited for, [`trouble`] what rests after a failure. A source that fails gives its blob back, and it goes
//! on over MQTT at once; when the source has rested, it is asked again. No broker is needed.

mod address;
mod answer;
mod authorities;
mod connect;
mod job;
mod pace;
mod sources;
mod stream;
mod trouble;
mod waits;

#[cfg(test)]
mod bad_servers;
#[cfg(test)]
mod paced_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
#[cfg(test)]
#[path = "../../../tests/src/web.rs"]
mod web;

use std::sync::Arc;
use std::time::Duration;

use selvedge_package::Digest;

pub use authorities::Authorities;
pub use sources::Sources;
use trouble::Trouble;

use crate::transfer::{Action, Chunks};

/// Longest times for the parts of a request.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the head of an answer.
    pub answer: Duration,
    /// Between two pieces of a body.
    pub silence: Duration,
    /// For a whole block, and for what is read for nothing to come to it.
    pub block: Duration,
    /// For which a connection that is not used is kept.
    pub idle: Duration,
    /// After which it is judged how much has come, of waiting for a source.
    pub pace: Duration,
    /// Bytes a second that have to come where there is another way.
    pub lowest: u64,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(15),
            answer: seconds(20),
            silence: seconds(30),
            block: seconds(60),
            idle: seconds(15),
            pace: seconds(60),
            lowest: 16 * 1024,
        }
    }
}

/// What a job has to say; it goes to [`Sources::take`].
#[derive(Debug)]
pub struct Event {
    digest: Digest,
    job: u64,
    what: Happened,
}

impl Event {
    /// Whether it is no more than a part of a blob.
    pub fn is_progress(&self) -> bool {
        matches!(self.what, Happened::Frame { .. })
    }
}

#[derive(Debug)]
enum Happened {
    /// A frame as the registry would have sent it, and how long the source was waited for since the last one
    /// of any blob.
    Frame {
        frame: Vec<u8>,
        waited: Duration,
    },
    Failed(Trouble),
}

/// How jobs say something.
pub type Say = Arc<dyn Fn(Event) + Send + Sync>;

/// What follows from an event.
pub struct Outcome<C: Chunks> {
    /// To be done for the transfers.
    pub actions: Vec<Action<C>>,
    /// Blobs that go on another way.
    pub fallen: Vec<(Digest, C)>,
    /// A source that fails, once in a row, for people.
    pub told: Option<String>,
}
