//! Messages in the body of a call: five bytes of head (packed or not, and the length), then the message.

mod outgoing;
#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use bytes::Bytes;
use futures_util::StreamExt;
pub use outgoing::{answer, framed, response};
use tokio::sync::Semaphore;

use super::request::raw_begins;
use super::timeout;
use crate::clock;
use crate::serve::body::{Bounds, Budget, Reserved};
use crate::serve::coding::{self, Coding, Job};
use crate::serve::failure::Failure;

/// Bytes in front of a message.
const HEAD: usize = 5;

/// Most bytes that an announced length may ask for before they come.
const AT_ONCE: usize = 1 << 20;

/// Messages that are unpacked side by side: whose they are, and what its package allows, is known afterwards only.
static UNPACKING: Semaphore = Semaphore::const_new(4);

/// Longest time that a message may take to come, once it has begun.
pub const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// The messages of a call, as they come.
pub struct Messages {
    frames: BodyDataStream,
    /// What has come and was not taken.
    rest: Bytes,
    /// How messages are packed that say that they are.
    coding: Option<Coding>,
    /// The time that its client gives the call.
    given: Option<Duration>,
}

impl Messages {
    /// Of a call's body, packed as its head says.
    pub fn of(headers: &HeaderMap, body: Body) -> Result<Self, Failure> {
        let coding = match headers.get("grpc-encoding").map(|value| value.to_str().unwrap_or_default()) {
            None | Some("identity") => None,
            Some(name) => Some(Coding::named(name).ok_or(Failure::NotOffered(
                "messages packed so (grpc-encoding) are not taken here: gzip, deflate or identity",
            ))?),
        };
        let given = timeout::of(headers)?;
        Ok(Self { frames: body.into_data_stream(), rest: Bytes::new(), coding, given })
    }

    /// Waits until something of a message is here; `false`: there are no more.
    pub async fn begins(&mut self) -> Result<bool, Failure> {
        while self.rest.is_empty() {
            match self.frames.next().await {
                None => return Ok(false),
                Some(frame) => self.rest = frame.map_err(|error| Failure::Broken(error.to_string()))?,
            }
        }
        Ok(true)
    }

    /// The next message, of at most `limit` bytes, unpacked too; `None`: there are no more.
    pub async fn next(
        &mut self,
        limit: usize,
        budget: &Budget,
    ) -> Result<Option<(Bytes, Reserved)>, Failure> {
        let (message, packed, reserved) =
            match tokio::time::timeout(MESSAGE_TIME, self.whole(limit, budget)).await {
                Ok(whole) => match whole? {
                    Some(message) => message,
                    None => return Ok(None),
                },
                Err(_) => return Err(Failure::Slow(MESSAGE_TIME.as_millis())),
            };
        if !packed {
            return Ok(Some((message, reserved)));
        }
        let Some(coding) = self.coding else {
            return Err(Failure::Unnamed);
        };
        let bounds = Bounds { limit, time: MESSAGE_TIME, aligned: 0 };
        // Nobody waits for its answer after this.
        let time = self.given.map_or(MESSAGE_TIME, |given| given.min(MESSAGE_TIME));
        let until = clock::now() + time;
        let waiting = tokio::time::timeout(time, UNPACKING.acquire()).await;
        // The semaphore is never closed.
        let permit = waiting.map_err(|_| Failure::Late(time))?.ok();
        // Whose it is, is inside. Held until it is unpacked, be its client gone.
        let job = Job { bounds, until, leave: None, permit };
        coding::unpack(coding, message, reserved, job, budget).await.map(Some)
    }

    /// The only message of a call that has one.
    pub async fn only(&mut self, limit: usize, budget: &Budget) -> Result<(Bytes, Reserved), Failure> {
        let missing = || Failure::NotOffered("this call takes one message, and there is no message in it");
        let message = self.next(limit, budget).await?.ok_or_else(missing)?;
        match tokio::time::timeout(MESSAGE_TIME, self.begins()).await {
            Ok(Ok(false)) => Ok(message),
            Ok(Ok(true)) => Err(Failure::NotOffered("this call takes one message, and more came")),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Slow(MESSAGE_TIME.as_millis())),
        }
    }

    async fn whole(
        &mut self,
        limit: usize,
        budget: &Budget,
    ) -> Result<Option<(Bytes, bool, Reserved)>, Failure> {
        let mut head = [0; HEAD];
        let mut have = 0;
        while have < HEAD {
            if !self.begins().await? {
                return if have == 0 { Ok(None) } else { Err(cut_off()) };
            }
            let part = self.rest.split_to(self.rest.len().min(HEAD - have));
            head[have..have + part.len()].copy_from_slice(&part);
            have += part.len();
        }
        let [packed, length @ ..] = head;
        if packed > 1 {
            return Err(Failure::Broken("what comes is no message of gRPC".to_owned()));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > limit {
            return Err(Failure::TooLarge { limit });
        }
        // What a client announces is not reserved before it comes.
        let mut reserved = budget.reserve(self.rest.len().min(length).max(1))?;
        if self.rest.len() >= length {
            // A message of one frame is used as it came.
            return Ok(Some((self.rest.split_to(length), packed == 1, reserved)));
        }
        let skipped = if packed == 1 {
            0
        } else {
            Bounds { limit, time: MESSAGE_TIME, aligned: raw_begins(&self.rest).unwrap_or(0) }.skipped()
        };
        let mut whole = Vec::with_capacity(skipped + length.min(AT_ONCE));
        whole.resize(skipped, 0);
        while whole.len() < skipped + length {
            if !self.begins().await? {
                return Err(cut_off());
            }
            let part = self.rest.split_to(self.rest.len().min(skipped + length - whole.len()));
            reserved.grow(budget, whole.len() + part.len())?;
            whole.extend_from_slice(&part);
        }
        Ok(Some((Bytes::from(whole).slice(skipped..), packed == 1, reserved)))
    }
}

fn cut_off() -> Failure {
    Failure::Broken("it ends in the middle of a message".to_owned())
}
