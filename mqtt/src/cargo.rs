//! What gives way to everything else: blocks of blobs, QoS 0.
//!
//! It waits apart from other messages, within bounds of its own, and not for long: whoever asked for a
//! block asks again. Topics take turns, so that one receiver's megabyte does not make another wait.

use std::collections::VecDeque;
use std::time::Duration;

use rumqttc::v5::mqttbytes::v5::Publish;
use tokio::time::Instant;

use crate::options::QueueLimit;

/// Longest time to wait here.
const LONGEST: Duration = Duration::from_secs(10);

/// Cargo that waits.
#[derive(Debug)]
pub(crate) struct Cargo {
    limit: QueueLimit,
    /// One for each topic that has any; the first is the next.
    lanes: VecDeque<Lane>,
    messages: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Lane(VecDeque<(Publish, Instant)>);

impl Cargo {
    pub fn new(limit: QueueLimit) -> Self {
        Self { limit, lanes: VecDeque::new(), messages: 0, bytes: 0 }
    }

    /// Takes a message; drops it where there is no room, and says so: `false`.
    pub fn push(&mut self, publish: Publish, now: Instant) -> bool {
        if self.is_full(&publish) {
            self.drop_late(now);
        }
        if self.is_full(&publish) {
            return false;
        }
        self.messages += 1;
        self.bytes += cost(&publish);
        let until = now + LONGEST;
        match self.lanes.iter_mut().find(|lane| lane.topic() == Some(&publish.topic)) {
            Some(lane) => lane.0.push_back((publish, until)),
            None => self.lanes.push_back(Lane(VecDeque::from([(publish, until)]))),
        }
        true
    }

    /// The next one.
    pub fn pop(&mut self, now: Instant) -> Option<Publish> {
        while let Some(mut lane) = self.lanes.pop_front() {
            let Some((publish, until)) = lane.0.pop_front() else { continue };
            self.messages -= 1;
            self.bytes -= cost(&publish);
            if !lane.0.is_empty() {
                self.lanes.push_back(lane);
            }
            if now < until {
                return Some(publish);
            }
        }
        None
    }

    /// One that was taken and could not be sent is the next again.
    pub fn put_back(&mut self, publish: Publish, now: Instant) {
        self.messages += 1;
        self.bytes += cost(&publish);
        let until = now + LONGEST;
        match self.lanes.iter().position(|lane| lane.topic() == Some(&publish.topic)) {
            Some(at) => {
                if let Some(mut lane) = self.lanes.remove(at) {
                    lane.0.push_front((publish, until));
                    self.lanes.push_front(lane);
                }
            }
            None => self.lanes.push_front(Lane(VecDeque::from([(publish, until)]))),
        }
    }

    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    pub fn len(&self) -> usize {
        self.messages
    }

    fn is_full(&self, publish: &Publish) -> bool {
        self.messages >= self.limit.messages || self.bytes + cost(publish) > self.limit.bytes
    }

    fn drop_late(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            lane.0.retain(|(_, until)| now < *until);
        }
        self.lanes.retain(|lane| !lane.0.is_empty());
        self.messages = self.lanes.iter().map(|lane| lane.0.len()).sum();
        self.bytes = self.lanes.iter().flat_map(|lane| &lane.0).map(|(publish, _)| cost(publish)).sum();
    }
}

impl Lane {
    fn topic(&self) -> Option<&bytes::Bytes> {
        self.0.front().map(|(publish, _)| &publish.topic)
    }
}

fn cost(publish: &Publish) -> usize {
    publish.topic.len() + publish.payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rumqttc::v5::mqttbytes::QoS;

    fn publish(topic: &str, payload: u8, size: usize) -> Publish {
        Publish::new(topic, QoS::AtMostOnce, vec![payload; size], None)
    }

    fn cargo() -> Cargo {
        Cargo::new(QueueLimit { messages: 5, bytes: 1000 })
    }

    fn next(cargo: &mut Cargo, now: Instant) -> Option<u8> {
        cargo.pop(now).map(|publish| publish.payload[0])
    }

    #[test]
    fn topics_take_turns_and_keep_their_order() {
        let (mut cargo, now) = (cargo(), Instant::now());
        for (topic, payload) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5)] {
            assert!(cargo.push(publish(topic, payload, 10), now));
        }
        let taken = cargo.pop(now).unwrap();
        assert_eq!(taken.payload[0], 1);
        cargo.put_back(taken, now);
        let order: Vec<u8> = std::iter::from_fn(|| next(&mut cargo, now)).collect();
        assert_eq!(order, [1, 4, 2, 5, 3]);
        assert_eq!((cargo.len(), cargo.bytes), (0, 0));
    }

    #[test]
    fn it_is_bounded_and_does_not_keep() {
        let (mut cargo, now) = (cargo(), Instant::now());
        assert!(!cargo.push(publish("a", 0, 1000), now), "a topic has bytes, too");
        for payload in 0..5 {
            assert!(cargo.push(publish("a", payload, 10), now));
        }
        assert!(!cargo.push(publish("b", 9, 10), now));
        let later = now + LONGEST;
        assert!(cargo.push(publish("b", 9, 10), later));
        assert_eq!(next(&mut cargo, later), Some(9), "what is late is gone");
        assert_eq!(next(&mut cargo, later), None);
        assert!(cargo.push(publish("a", 1, 900), later));
        cargo.clear();
        assert_eq!((cargo.len(), cargo.bytes), (0, 0));
    }
}
