//! What goes out to devices: one count of messages for all who send.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use selvedge_mqtt::{Handle, PublishError};
use selvedge_package::DeviceId;
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::signed;
use selvedge_protocol::topic::{Kind, Topic};

use crate::clock;
use crate::error::Error;

/// Packets are taken to carry this much until the broker has said what it takes: messages of a kept
/// session come before that.
const PACKET: u32 = 64 << 10;
/// Bytes of a packet besides what a message carries: topic, envelope, MQTT's own.
pub const ROOM: usize = 1024;

/// Sends to devices. Shared by the loop that answers them and by requests that ask them.
pub struct Outgoing {
    handle: Handle,
    /// For envelopes: the registry's start, and a count.
    epoch: u64,
    sequence: AtomicU64,
    /// Largest packet that the broker takes, in bytes.
    maximum_packet: AtomicU32,
    connected: AtomicBool,
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsent {
    /// It does not fit one packet, whose limit in bytes this is.
    TooLarge(usize),
    /// Something else, for people.
    Failed(String),
}

impl Outgoing {
    /// Sends through `handle`.
    pub fn new(handle: Handle) -> Self {
        Self {
            handle,
            epoch: u64::try_from(clock::now().as_second()).unwrap_or(0),
            sequence: AtomicU64::new(0),
            maximum_packet: AtomicU32::new(PACKET),
            connected: AtomicBool::new(false),
        }
    }

    /// The MQTT client.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// There is a connection that carries packets of this many bytes.
    pub fn connected(&self, maximum_packet: u32) {
        self.maximum_packet.store(maximum_packet, Ordering::Relaxed);
        self.connected.store(true, Ordering::Relaxed);
    }

    /// There is none.
    pub fn disconnected(&self) {
        self.connected.store(false, Ordering::Relaxed);
    }

    /// Whether there is a connection to the broker.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Bytes that one message can carry.
    pub fn room(&self) -> usize {
        let packet = self.maximum_packet.load(Ordering::Relaxed);
        usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(ROOM)
    }

    /// The same for a sealed message.
    pub fn sealed_room(&self) -> usize {
        self.room().min(signed::LARGEST - ROOM)
    }

    /// As [`Outgoing::send`], with the whole message under the signature that `seal` makes.
    pub fn send_sealed(
        &self,
        device: &DeviceId,
        kind: Kind,
        body: Body,
        lifetime: Option<Duration>,
        seal: impl FnOnce(&Envelope) -> Result<Body, Error>,
    ) -> Result<(), Unsent> {
        let sealed = seal(&self.envelope(body)).map_err(|error| Unsent::Failed(error.chain()))?;
        self.send(device, kind, sealed, lifetime)
    }

    fn envelope(&self, body: Body) -> Envelope {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let at_ms = clock::now().as_millisecond();
        Envelope { id: sequence, epoch: self.epoch, sequence, at_ms, body }
    }

    /// Publish one envelope to a device; with a lifetime it is dropped once that is over.
    pub fn send(
        &self,
        device: &DeviceId,
        kind: Kind,
        body: Body,
        lifetime: Option<Duration>,
    ) -> Result<(), Unsent> {
        let payload = self.envelope(body).encode().map_err(|error| Unsent::Failed(error.to_string()))?;
        let topic = Topic::new(device.clone(), kind).to_string();
        let published = match lifetime {
            Some(lifetime) => self.handle.publish_within(topic, kind.qos(), payload, lifetime),
            None => self.handle.publish(topic, kind.qos(), payload),
        };
        published.map_err(|error| match error {
            PublishError::TooLarge { limit, .. } => {
                Unsent::TooLarge(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(ROOM))
            }
            error => Unsent::Failed(error.to_string()),
        })
    }
}
