//! What a client is told at its start.

use std::time::Duration;

use selvedge_protocol::topic::Qos;

use crate::address::BrokerAddress;
use crate::tls::Tls;

/// Everything about a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The broker.
    pub broker: BrokerAddress,
    /// How TLS is spoken: needed for `mqtts://`, refused for `mqtt://`.
    pub tls: Option<Tls>,
    /// Client id; a second client with the same id throws the first one out.
    pub client_id: String,
    /// Whether the broker keeps a session.
    pub session: Session,
    /// Longest silence towards the broker; at least 5 s. A dead peer is noticed after 1.6 times it.
    pub keep_alive: Duration,
    /// Topic filters, subscribed to on every connection.
    pub subscriptions: Vec<(String, Qos)>,
    /// What the broker publishes when this client is lost.
    pub will: Option<Will>,
    /// Largest MQTT packet in bytes that is accepted, and sent.
    pub maximum_packet: u32,
    /// How many clients may lose their broker at once: spreads their return, 200 a second.
    pub fleet: u32,
    /// Longest time between attempts to connect.
    pub longest_retry: Duration,
    /// Whether a second connection may take the place of one that is silent while something is awaited and
    /// the link is back. Needs TLS. A clean session is then kept for a minute, for the second connection
    /// only, and the will is published 5 s after the loss.
    pub second: bool,
    /// What may wait to be sent.
    pub outbox: QueueLimit,
    /// What may wait of what gives way to all others ([`crate::Handle::publish_cargo`]).
    pub cargo: QueueLimit,
    /// The socket's send buffer in bytes, of which the system takes the double: what is in it goes before
    /// whatever comes later, and it is all that is on its way in a round trip.
    pub send_buffer: u32,
    /// What may wait to be taken by [`crate::Inbox::recv`].
    pub inbox: QueueLimit,
}

/// Whether the broker keeps a session across connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// No: each connection starts clean.
    Clean,
    /// Yes, for so long after the connection is lost.
    Kept(Duration),
}

/// A last will. Never retained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Will {
    /// Its topic.
    pub topic: String,
    /// Its delivery.
    pub qos: Qos,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A bound of a queue: stops memory exhaustion by a slow or absent other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// Most messages.
    pub messages: usize,
    /// Most bytes of topics and payloads.
    pub bytes: usize,
}

impl Options {
    /// A client as a device needs it: clean session, 60 s keep-alive, packets up to 128 KiB. A broker
    /// on this machine is tried again every 5 s at least: no fleet returns to it at once, and people
    /// watch. Another one is left alone for up to 5 minutes.
    pub fn new(broker: BrokerAddress, client_id: impl Into<String>) -> Self {
        let queue = QueueLimit { messages: 512, bytes: 2 * 1024 * 1024 };
        let longest_retry = Duration::from_secs(if broker.is_loopback() { 5 } else { 300 });
        Self {
            broker,
            tls: None,
            client_id: client_id.into(),
            session: Session::Clean,
            keep_alive: Duration::from_secs(60),
            subscriptions: Vec::new(),
            will: None,
            maximum_packet: 128 * 1024,
            fleet: 1,
            longest_retry,
            second: false,
            outbox: queue,
            cargo: queue,
            send_buffer: 64 * 1024,
            inbox: queue,
        }
    }
}
