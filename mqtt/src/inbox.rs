//! What was received and not yet taken.
//!
//! QoS 1 is acknowledged when it is taken, so that a slow consumer slows the broker down instead of
//! filling memory; QoS 0 that does not fit is dropped, which every user of it must expect anyway.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::client::CloseOnDrop;
use crate::options::QueueLimit;
use crate::outbox::Outbox;
use crate::refusal::Reason;

/// Something that happened to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// There is a connection, and the subscriptions are in force.
    Connected {
        /// Whether the broker had kept a session.
        session_present: bool,
        /// Largest packet in bytes that this connection carries, either way.
        maximum_packet: u32,
    },
    /// There is none, or the attempt to make one failed.
    Disconnected {
        /// Why, for people.
        why: String,
        /// Why, for programs.
        reason: Reason,
        /// When it is tried again, from now.
        retry_in: Duration,
    },
    /// The broker refused a subscription. It may say so of others by silence.
    Refused {
        /// The filter.
        filter: String,
    },
    /// A message that was taken for sending has become too large for the broker, and was dropped.
    Dropped {
        /// Its topic.
        topic: String,
        /// Size of the whole packet in bytes.
        size: usize,
    },
    /// A message.
    Message {
        /// Its topic.
        topic: String,
        /// Its payload.
        payload: Bytes,
    },
}

/// Where a client's events are taken from. Dropping it closes the client.
pub struct Inbox {
    queue: Arc<Queue>,
    outbox: Arc<Mutex<Outbox>>,
    _owner: CloseOnDrop,
}

pub(crate) struct Queue {
    held: Mutex<Held>,
    arrived: Notify,
    limit: QueueLimit,
}

#[derive(Default)]
struct Held {
    items: VecDeque<Item>,
    /// Messages of QoS 0.
    loose: usize,
    /// Their bytes.
    bytes: usize,
    /// Messages of QoS 1.
    unacknowledged: usize,
    dropped: u64,
    closed: bool,
}

struct Item {
    incoming: Incoming,
    ack: Option<(u64, u16)>,
}

impl Inbox {
    pub(crate) fn new(queue: Arc<Queue>, outbox: Arc<Mutex<Outbox>>, owner: CloseOnDrop) -> Self {
        Self { queue, outbox, _owner: owner }
    }

    /// The next event; `None` once the client is closed and everything has been taken. May be
    /// cancelled without losing anything.
    pub async fn recv(&mut self) -> Option<Incoming> {
        loop {
            match self.take() {
                Ok(incoming) => return Some(incoming),
                Err(true) => return None,
                Err(false) => self.queue.arrived.notified().await,
            }
        }
    }

    /// The next event, if there is one now.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.take().ok()
    }

    /// How many messages of QoS 0 did not fit, since the start.
    pub fn dropped(&self) -> u64 {
        lock(&self.queue.held).dropped
    }

    /// `Err(true)`: closed.
    fn take(&mut self) -> Result<Incoming, bool> {
        let item = {
            let mut held = lock(&self.queue.held);
            let Some(item) = held.items.pop_front() else {
                return Err(held.closed);
            };
            if let Incoming::Message { topic, payload } = &item.incoming {
                match item.ack {
                    Some(_) => held.unacknowledged -= 1,
                    None => {
                        held.loose -= 1;
                        held.bytes -= topic.len() + payload.len();
                    }
                }
            }
            item
        };
        if let Some((generation, pkid)) = item.ack {
            lock(&self.outbox).acknowledge(generation, pkid);
        }
        Ok(item.incoming)
    }
}

impl Queue {
    pub fn new(limit: QueueLimit) -> Self {
        Self { held: Mutex::default(), arrived: Notify::new(), limit }
    }

    /// A message. `ack`: connection and packet id of QoS 1. `false` if more of those are
    /// unacknowledged than `most`, which the broker had been told.
    pub fn message(&self, topic: String, payload: Bytes, ack: Option<(u64, u16)>, most: usize) -> bool {
        let mut held = lock(&self.held);
        let cost = topic.len() + payload.len();
        match ack {
            // Messages of an earlier connection still count, so there may be twice as many.
            Some(_) if held.unacknowledged >= 2 * most => return false,
            Some(_) => held.unacknowledged += 1,
            None if held.loose >= self.limit.messages || held.bytes + cost > self.limit.bytes => {
                held.dropped += 1;
                return true;
            }
            None => {
                held.loose += 1;
                held.bytes += cost;
            }
        }
        held.items.push_back(Item { incoming: Incoming::Message { topic, payload }, ack });
        drop(held);
        self.arrived.notify_one();
        true
    }

    /// Anything else. A failed attempt replaces the failure before it, so that a broker that is
    /// away for weeks fills nothing.
    pub fn event(&self, incoming: Incoming) {
        let mut held = lock(&self.held);
        let failed = |incoming: &Incoming| matches!(incoming, Incoming::Disconnected { .. });
        if failed(&incoming) && held.items.back().is_some_and(|last| failed(&last.incoming)) {
            held.items.pop_back();
        }
        if held.items.len() < 4 * self.limit.messages.max(64) {
            held.items.push_back(Item { incoming, ack: None });
        }
        drop(held);
        self.arrived.notify_one();
    }

    pub fn close(&self) {
        lock(&self.held).closed = true;
        self.arrived.notify_one();
    }
}

/// A poisoned lock guards plain data that is consistent after every statement here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
