//! Pulling blobs over MQTT: events in, actions out.
//!
//! [`Transfers`] runs a few transfers at a time; [`fetch`] drives one: what to ask for is planned by
//! `selvedge_protocol::block`, blocks are put together to chunks in bounded memory ([`assembly`]),
//! and a chunk goes to its destination, which checks it before it keeps it. Bytes that are not what
//! was signed are asked for again; they are never written. A destination may check and keep chunks beside
//! and say later what became of them ([`Chunks::take`]). Nothing here reads a clock, waits, or
//! touches the network: the agent's event loop does.
//!
//! A desired state that does not fit one packet comes the same way, but has no signed index: it is
//! held in memory ([`memory`]) and checked as a whole.

mod assembly;
mod fetch;
mod memory;
mod queue;

#[cfg(test)]
mod bad_link;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod simulation;

use std::convert::Infallible;

use selvedge_package::Digest;
use selvedge_protocol::message::Need;

pub use memory::LARGEST_PULL;
pub use queue::{AT_ONCE, PullError, Transfers};

use crate::store::{Partial, Put, Settled, StoreError};

/// Where the chunks of one blob go.
pub trait Chunks {
    /// What can go wrong when keeping them.
    type Error;

    /// The blob's size in bytes.
    fn size(&self) -> u64;

    /// Whether chunk `n` is there already.
    fn have(&self, n: u32) -> bool;

    /// Checks a chunk against what was signed, and keeps it only if it is that.
    fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, Self::Error>;

    /// The same with bytes that are given away. They come back, with what became of the chunk; unless that is
    /// still to be said.
    fn take(&mut self, n: u32, bytes: Vec<u8>) -> Result<(Put, Vec<u8>), Self::Error> {
        Ok((self.put(n, &bytes)?, bytes))
    }

    /// What has become since of chunks of which that was still to be said.
    fn settled(&mut self) -> Result<Vec<Settled>, Self::Error> {
        Ok(Vec::new())
    }

    /// Makes what was kept durable.
    fn checkpoint(&mut self) -> Result<(), Self::Error>;

    /// Begins to make it durable. How that ends may be said by a later call.
    fn checkpoint_beside(&mut self) -> Result<(), Self::Error> {
        self.checkpoint()
    }
}

impl Chunks for Partial {
    type Error = StoreError;

    fn size(&self) -> u64 {
        Partial::size(self)
    }

    fn have(&self, n: u32) -> bool {
        Partial::have(self, n)
    }

    fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, StoreError> {
        Partial::put(self, n, bytes)
    }

    fn take(&mut self, n: u32, bytes: Vec<u8>) -> Result<(Put, Vec<u8>), StoreError> {
        Partial::take(self, n, bytes)
    }

    fn settled(&mut self) -> Result<Vec<Settled>, StoreError> {
        Partial::settled(self)
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        Partial::checkpoint(self)
    }

    fn checkpoint_beside(&mut self) -> Result<(), StoreError> {
        Partial::checkpoint_beside(self)
    }
}

/// What the event loop has to do.
#[derive(Debug, PartialEq)]
pub enum Action<C: Chunks> {
    /// Publish this on `up/need`. When that fails, nothing need be done: it is asked again.
    Publish(Need),
    /// Every chunk is kept: check the whole, make it durable, put it into its place.
    Done {
        /// The blob.
        digest: Digest,
        /// Where its chunks went.
        target: C,
    },
    /// A blob that was pulled into memory is here, and has its digest.
    Pulled {
        /// The blob.
        digest: Digest,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// It ended without the blob. Trying again later is the caller's decision.
    Failed {
        /// The blob.
        digest: Digest,
        /// Why.
        why: Failure<C::Error>,
        /// Where its chunks went; `None` for a pull into memory.
        target: Option<C>,
    },
}

/// Why a transfer ended without its blob.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Failure<E> {
    /// The registry said so several times, with waits between.
    #[error("the registry does not have it, or this device may not have it")]
    Unknown,
    /// The destination failed: the disk is full, or broken.
    #[error("what came could not be kept")]
    Keep(#[source] E),
    /// A pull into memory came to other bytes several times.
    #[error("what came does not have the digest that was announced")]
    Corrupt,
    /// It has more blocks than can be numbered.
    #[error("it is too large to be transferred")]
    TooLarge,
}

impl<E> Failure<E> {
    /// A word for programs, as reports carry it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown => "blob-unknown",
            Self::Keep(_) => "blob-not-kept",
            Self::Corrupt => "blob-corrupt",
            Self::TooLarge => "blob-too-large",
        }
    }
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The blob.
    pub digest: Digest,
    /// Bytes that are kept.
    pub bytes: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Chunks that came wrong since the transfer began.
    pub spoiled: u64,
}

/// Either destination.
enum Target<C> {
    Store(C),
    Memory(memory::Memory),
}

impl<C: Chunks> Chunks for Target<C> {
    type Error = C::Error;

    fn size(&self) -> u64 {
        match self {
            Self::Store(target) => target.size(),
            Self::Memory(target) => target.size(),
        }
    }

    fn have(&self, n: u32) -> bool {
        match self {
            Self::Store(target) => target.have(n),
            Self::Memory(target) => target.have(n),
        }
    }

    fn put(&mut self, n: u32, bytes: &[u8]) -> Result<Put, C::Error> {
        match self {
            Self::Store(target) => target.put(n, bytes),
            Self::Memory(target) => Ok(infallible(target.put(n, bytes))),
        }
    }

    fn take(&mut self, n: u32, bytes: Vec<u8>) -> Result<(Put, Vec<u8>), C::Error> {
        match self {
            Self::Store(target) => target.take(n, bytes),
            Self::Memory(target) => Ok(infallible(target.take(n, bytes))),
        }
    }

    fn settled(&mut self) -> Result<Vec<Settled>, C::Error> {
        match self {
            Self::Store(target) => target.settled(),
            Self::Memory(_) => Ok(Vec::new()),
        }
    }

    fn checkpoint(&mut self) -> Result<(), C::Error> {
        match self {
            Self::Store(target) => target.checkpoint(),
            Self::Memory(target) => {
                infallible(target.checkpoint());
                Ok(())
            }
        }
    }

    fn checkpoint_beside(&mut self) -> Result<(), C::Error> {
        match self {
            Self::Store(target) => target.checkpoint_beside(),
            Self::Memory(_) => self.checkpoint(),
        }
    }
}

fn infallible<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}
