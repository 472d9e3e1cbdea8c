//! How long a message is worth anything: it counts on while the message waits, here and in rumqttc.
//!
//! MQTT 5 carries the rest of a lifetime in whole seconds (message expiry interval), and rumqttc
//! keeps what it was told at the hand-over. So deadlines are noted here by the address of a
//! payload, which stays one message's own as long as rumqttc holds it.

use std::collections::VecDeque;
use std::time::Duration;

use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};
use tokio::time::Instant;

/// More than rumqttc ever holds at once: older ones are acknowledged.
const NOTED: usize = 64;

/// Deadlines of what was handed over.
#[derive(Default)]
pub(crate) struct Deadlines(VecDeque<((usize, usize), Instant)>);

impl Deadlines {
    /// The message is handed over now; it carries what is left. `false`: nothing is.
    pub fn note(&mut self, publish: &mut Publish, until: Option<Instant>, now: Instant) -> bool {
        let Some(until) = until else { return true };
        let key = key(publish);
        self.0.retain(|(noted, _)| *noted != key);
        if self.0.len() >= NOTED {
            self.0.pop_front();
        }
        self.0.push_back((key, until));
        put(publish, until, now)
    }

    /// Until when a message that comes back from rumqttc is worth anything; `None`: always.
    pub fn of(&self, publish: &Publish, now: Instant) -> Option<Instant> {
        let left = publish.properties.as_ref()?.message_expiry_interval?;
        let key = key(publish);
        let noted = self.0.iter().find(|(noted, _)| *noted == key).map(|(_, until)| *until);
        Some(noted.unwrap_or_else(|| now + Duration::from_secs(left.into())))
    }
}

/// When a lifetime that begins now ends.
pub(crate) fn until(lifetime: Duration, now: Instant) -> Instant {
    // Longer is not for ever, but nobody waits to see the difference.
    now + lifetime.min(Duration::from_secs(u32::MAX.into()))
}

/// Writes what is left into the message, in seconds, rounded up. `false`: nothing is.
pub(crate) fn put(publish: &mut Publish, until: Instant, now: Instant) -> bool {
    let left = until.saturating_duration_since(now);
    let seconds = u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    publish.properties =
        Some(PublishProperties { message_expiry_interval: Some(seconds), ..PublishProperties::default() });
    seconds > 0
}

fn key(publish: &Publish) -> (usize, usize) {
    (publish.payload.as_ptr() as usize, publish.payload.len())
}
