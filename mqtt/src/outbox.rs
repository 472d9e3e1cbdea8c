//! What waits to be sent. Callers put messages in and never wait; the connection takes them out.
//!
//! QoS 0 is worth nothing later, so it is refused while there is no connection. QoS 1 waits here,
//! within bounds, through lost connections and lost sessions, until the broker acknowledged it, or
//! until its lifetime is over, if it was given one. Cargo gives way to both ([`crate::cargo`]).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use rumqttc::v5::mqttbytes::v5::{PubAck, Publish};
use rumqttc::v5::mqttbytes::{QoS, valid_topic};
use rumqttc::v5::{AsyncClient, ClientError, Request};
use selvedge_protocol::topic::Qos;
use tokio::time::Instant;

use crate::cargo::Cargo;
use crate::lifetime::{self, Deadlines};
use crate::options::QueueLimit;

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Larger than the broker or this client allows; it will not fit later either.
    #[error("a packet of {size} bytes is larger than the {limit} that may be sent")]
    TooLarge {
        /// Size of the whole packet in bytes.
        size: usize,
        /// The limit in bytes.
        limit: u32,
    },
    /// The queue is full: try later or drop it.
    #[error("{0} messages wait to be sent already")]
    Full(usize),
    /// QoS 0 while there is no connection.
    #[error("there is no connection to the broker")]
    Offline,
    /// A topic that may not be published to.
    #[error("`{0}` is not a topic to publish to")]
    Topic(String),
    /// The client has been closed.
    #[error("the client is closed")]
    Closed,
}

pub(crate) struct Outbox {
    client: AsyncClient,
    state: State,
    /// Counts connections: an acknowledgement of another one's message means nothing.
    generation: u64,
    limit: QueueLimit,
    largest: u32,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    cargo: Cargo,
    deadlines: Deadlines,
    acks: Vec<u16>,
}

struct Waiting {
    publish: Publish,
    /// Then it is worth nothing any more.
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Offline,
    Connected,
    Closed,
}

impl Outbox {
    pub fn new(client: AsyncClient, limit: QueueLimit, cargo: QueueLimit, largest: u32) -> Self {
        Self {
            client,
            state: State::Offline,
            generation: 0,
            limit,
            largest,
            waiting: VecDeque::new(),
            bytes: 0,
            cargo: Cargo::new(cargo),
            deadlines: Deadlines::default(),
            acks: Vec::new(),
        }
    }

    pub fn publish(
        &mut self,
        topic: String,
        qos: Qos,
        payload: Bytes,
        lifetime: Option<Duration>,
    ) -> Result<(), PublishError> {
        let qos = match qos {
            Qos::AtMostOnce => QoS::AtMostOnce,
            Qos::AtLeastOnce => QoS::AtLeastOnce,
        };
        let mut publish = Self::checked(topic, qos, payload)?;
        let now = Instant::now();
        let until = lifetime.map(|lifetime| lifetime::until(lifetime, now));
        if let Some(until) = until {
            lifetime::put(&mut publish, until, now);
        }
        self.may_be_sent(&publish)?;
        let cost = cost(&publish);
        if self.waiting.len() >= self.limit.messages || self.bytes + cost > self.limit.bytes {
            self.drop_late(now);
        }
        if self.waiting.len() >= self.limit.messages || self.bytes + cost > self.limit.bytes {
            return Err(PublishError::Full(self.waiting.len()));
        }
        let waiting = Waiting { publish, until };
        let rest = match self.state {
            State::Connected if self.waiting.is_empty() => self.hand_over(waiting),
            _ => Some(waiting),
        };
        if let Some(waiting) = rest {
            self.bytes += cost;
            self.waiting.push_back(waiting);
        }
        Ok(())
    }

    fn checked(topic: String, qos: QoS, payload: Bytes) -> Result<Publish, PublishError> {
        if topic.is_empty() || topic.len() > 1024 || topic.contains('\0') || !valid_topic(&topic) {
            return Err(PublishError::Topic(topic.chars().take(120).collect()));
        }
        Ok(Publish::new(topic, qos, payload, None))
    }

    /// Whether it fits the broker's limit, and there is a connection where it needs one.
    fn may_be_sent(&self, publish: &Publish) -> Result<(), PublishError> {
        let size = packet_size(publish);
        if size > self.largest as usize {
            return Err(PublishError::TooLarge { size, limit: self.largest });
        }
        match (self.state, publish.qos) {
            (State::Closed, _) => Err(PublishError::Closed),
            (State::Offline, QoS::AtMostOnce) => Err(PublishError::Offline),
            _ => Ok(()),
        }
    }

    /// QoS 0 that gives way to everything else. The first that is not taken is the last that is tried.
    pub fn publish_cargo(
        &mut self,
        topic: &str,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), PublishError> {
        let now = Instant::now();
        let taken = payloads.into_iter().try_for_each(|payload| {
            let publish = Self::checked(topic.to_owned(), QoS::AtMostOnce, payload)?;
            self.may_be_sent(&publish)?;
            match self.cargo.push(publish, now) {
                true => Ok(()),
                false => Err(PublishError::Full(self.cargo.len())),
            }
        });
        self.refill();
        taken
    }

    /// Hands what waits to rumqttc, as much as it takes now; cargo when nothing else waits.
    pub fn refill(&mut self) {
        while let Some(waiting) = self.waiting.pop_front() {
            let cost = cost(&waiting.publish);
            match self.hand_over(waiting) {
                None => self.bytes -= cost,
                Some(waiting) => {
                    self.waiting.push_front(waiting);
                    return;
                }
            }
        }
        let now = Instant::now();
        while let Some(publish) = self.cargo.pop(now) {
            if let Some(refused) = self.hand_over(Waiting { publish, until: None }) {
                self.cargo.put_back(refused.publish, now);
                return;
            }
        }
    }

    /// There is a connection. What has become too large for it is taken out and returned.
    pub fn connected(&mut self, largest: u32) -> Vec<Publish> {
        self.state = State::Connected;
        self.generation += 1;
        self.largest = largest;
        self.acks.clear();
        let (fit, oversize): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| packet_size(&waiting.publish) <= largest as usize);
        self.waiting = fit.into();
        self.drop_late(Instant::now());
        oversize.into_iter().map(|waiting| waiting.publish).collect()
    }

    /// There is none. QoS 0 that waited is dropped.
    pub fn disconnected(&mut self) {
        if self.state != State::Closed {
            self.state = State::Offline;
        }
        self.acks.clear();
        self.cargo.clear();
        self.waiting.retain(|waiting| waiting.publish.qos != QoS::AtMostOnce);
        self.drop_late(Instant::now());
    }

    /// Messages that were handed over but never acknowledged wait again, before all others.
    pub fn put_back(&mut self, publishes: Vec<Publish>) {
        let now = Instant::now();
        for mut publish in publishes.into_iter().rev() {
            let until = self.deadlines.of(&publish, now);
            publish.pkid = 0;
            publish.dup = false;
            self.bytes += cost(&publish);
            self.waiting.push_front(Waiting { publish, until });
        }
        self.drop_late(now);
    }

    /// A message is handed to rumqttc once more. `false`: its lifetime is over.
    pub fn renew(&mut self, publish: &mut Publish) -> bool {
        let now = Instant::now();
        let until = self.deadlines.of(publish, now);
        self.deadlines.note(publish, until, now)
    }

    fn drop_late(&mut self, now: Instant) {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.until.is_none_or(|until| now < until));
        if self.waiting.len() < before {
            tracing::debug!(messages = before - self.waiting.len(), "dropped what had waited too long");
        }
        self.bytes = self.waiting.iter().map(|waiting| cost(&waiting.publish)).sum();
    }

    /// Nothing is taken any more.
    pub fn close(&mut self) {
        self.state = State::Closed;
    }

    /// The client was replaced.
    pub fn replace(&mut self, client: AsyncClient) {
        self.client = client;
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Says goodbye behind everything that was handed over; `false` if there is no room yet.
    pub fn disconnect(&self) -> bool {
        self.client.try_disconnect().is_ok()
    }

    /// Acknowledges a message of connection `generation`.
    pub fn acknowledge(&mut self, generation: u64, pkid: u16) {
        if generation != self.generation || self.state != State::Connected {
            return;
        }
        let acknowledged = Publish { qos: QoS::AtLeastOnce, pkid, ..Publish::default() };
        if self.client.try_ack(&acknowledged).is_err() {
            self.acks.push(pkid);
        }
    }

    /// Acknowledgements for which rumqttc had no room.
    pub fn take_acks(&mut self) -> Vec<Request> {
        let acks = std::mem::take(&mut self.acks);
        acks.into_iter().map(|pkid| Request::PubAck(PubAck::new(pkid, None))).collect()
    }

    /// The message again, if rumqttc has no room for it.
    fn hand_over(&mut self, mut waiting: Waiting) -> Option<Waiting> {
        let publish = &mut waiting.publish;
        if !self.deadlines.note(publish, waiting.until, Instant::now()) {
            tracing::debug!("dropped a message that had waited too long");
            return None;
        }
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let payload = publish.payload.clone();
        let sent = match publish.properties.clone() {
            None => self.client.try_publish(topic, publish.qos, publish.retain, payload),
            Some(properties) => {
                let client = &self.client;
                client.try_publish_with_properties(topic, publish.qos, publish.retain, payload, properties)
            }
        };
        match sent {
            Ok(()) => None,
            Err(ClientError::Request(_) | ClientError::TryRequest(_)) => Some(waiting),
        }
    }
}

/// Size of the whole packet, packet id included.
pub(crate) fn packet_size(publish: &Publish) -> usize {
    let mut sized = publish.clone();
    sized.pkid = 1;
    sized.size()
}

fn cost(publish: &Publish) -> usize {
    publish.topic.len() + publish.payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rumqttc::v5::MqttOptions;

    const LIMIT: QueueLimit = QueueLimit { messages: 3, bytes: 1000 };

    fn outbox(room: usize) -> (Outbox, rumqttc::v5::EventLoop) {
        let (client, poll) = AsyncClient::new(MqttOptions::new("x", "localhost", 1), room);
        (Outbox::new(client, LIMIT, LIMIT, 500), poll)
    }

    fn publish(outbox: &mut Outbox, qos: Qos, size: usize) -> Result<(), PublishError> {
        outbox.publish("a/b".into(), qos, Bytes::from(vec![0; size]), None)
    }

    #[test]
    fn qos_1_waits_within_bounds_and_qos_0_does_not_wait() {
        let (mut outbox, _poll) = outbox(2);
        assert_eq!(publish(&mut outbox, Qos::AtMostOnce, 1), Err(PublishError::Offline));
        for _ in 0..3 {
            assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 1), Ok(()));
        }
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 1), Err(PublishError::Full(3)));
        outbox.connected(500);
        outbox.refill();
        assert_eq!(outbox.waiting.len(), 1);
        assert_eq!(publish(&mut outbox, Qos::AtMostOnce, 1), Ok(()));
        outbox.disconnected();
        assert_eq!(outbox.waiting.len(), 1);
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 400), Ok(()));
        assert!(matches!(publish(&mut outbox, Qos::AtLeastOnce, 480), Ok(())));
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 400), Err(PublishError::Full(3)));
        outbox.close();
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 1), Err(PublishError::Closed));
    }

    #[test]
    fn cargo_waits_for_all_others_and_never_for_a_connection() {
        let (mut outbox, _poll) = outbox(1);
        let cargo = |outbox: &mut Outbox| outbox.publish_cargo("a/b", [Bytes::from_static(b"c")]);
        assert_eq!(cargo(&mut outbox), Err(PublishError::Offline));
        outbox.connected(500);
        for _ in 0..4 {
            assert_eq!(cargo(&mut outbox), Ok(()));
        }
        assert_eq!(cargo(&mut outbox), Err(PublishError::Full(3)), "one is handed over, three wait");
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, 1), Ok(()), "it has room of its own");
        outbox.disconnected();
        assert_eq!((outbox.cargo.len(), outbox.waiting.len()), (0, 1));
        assert!(matches!(outbox.publish_cargo("a/#", [Bytes::new()]), Err(PublishError::Topic(_))));
    }

    #[test]
    fn cargo_that_comes_together_is_taken_as_far_as_there_is_room() {
        let (mut outbox, _poll) = outbox(2);
        outbox.connected(500);
        let five = || (0..5).map(|n| Bytes::from(vec![n]));
        assert_eq!(outbox.publish_cargo("a/b", five()), Err(PublishError::Full(3)));
        assert_eq!(outbox.cargo.len(), 1, "two are on their way");
        assert_eq!(outbox.publish_cargo("a/b", [Bytes::from_static(b"x")]), Ok(()));
        assert_eq!(outbox.cargo.len(), 2);
    }

    #[test]
    fn nothing_too_large_is_taken_or_kept() {
        let (mut outbox, _poll) = outbox(2);
        let largest = 500 - 1 - 2 - 2 - 3 - 2 - 1;
        assert_eq!(publish(&mut outbox, Qos::AtLeastOnce, largest), Ok(()));
        assert_eq!(
            publish(&mut outbox, Qos::AtLeastOnce, largest + 1),
            Err(PublishError::TooLarge { size: 501, limit: 500 })
        );
        assert_eq!(outbox.connected(499).len(), 1);
        assert!(outbox.is_empty());
        assert_eq!(outbox.bytes, 0);
    }

    #[test]
    fn wildcards_and_empty_topics_are_refused() {
        let (mut outbox, _poll) = outbox(2);
        for topic in ["", "a/#", "a/+/b", "a\0b"] {
            let refused = outbox.publish(topic.into(), Qos::AtLeastOnce, Bytes::new(), None);
            assert!(matches!(refused, Err(PublishError::Topic(_))), "{topic:?}");
        }
    }
}
