//! The two ends that a program holds: a handle to publish with, an inbox to take from.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use selvedge_protocol::topic::Qos;
use tokio::sync::watch;

use crate::connection::Connection;
use crate::hints::Hints;
use crate::inbox::{Inbox, Queue, lock};
use crate::options::Options;
use crate::outbox::{Outbox, PublishError};
use crate::tls::{Spoken, TlsError};

/// Starts clients.
pub struct Client;

/// Options that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The keep-alive is out of bounds.
    #[error("a keep-alive of {0:?} is not between 5 s and 18 h")]
    KeepAlive(Duration),
    /// The client id cannot be sent.
    #[error("`{0}` cannot be a client id: 1 to 128 characters, none of them a control character")]
    ClientId(String),
    /// TLS was asked for by the address and not described, or the other way round.
    #[error("{0}: mqtts:// needs a certificate authority to believe, mqtt:// takes none")]
    Tls(String),
    /// TLS cannot be spoken with what was given.
    #[error("no TLS can be spoken")]
    Unusable(#[source] TlsError),
    /// The packet limit is too small for anything.
    #[error("a limit of {0} bytes a packet is below 1024")]
    MaximumPacket(u32),
    /// A topic filter is malformed.
    #[error("`{0}` is not a topic filter")]
    Filter(String),
}

/// Publishes. Cheap to clone; when the last one is dropped, or [`Handle::close`] called, the client
/// says goodbye and ends.
#[derive(Clone)]
pub struct Handle {
    outbox: Arc<Mutex<Outbox>>,
    closing: Arc<watch::Sender<bool>>,
    hints: Arc<Hints>,
    _last: Arc<CloseOnDrop>,
}

/// Ends the client when dropped.
pub(crate) struct CloseOnDrop(Arc<watch::Sender<bool>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl Client {
    /// Starts a client, which connects and reconnects by itself. To be called within a tokio
    /// runtime.
    pub fn start(options: Options) -> Result<(Handle, Inbox), StartError> {
        check(&options)?;
        let tls = tls(&options)?;
        if tls.is_none() {
            tracing::warn!(broker = %options.broker, "plaintext MQTT, which is accepted on loopback only");
        }
        let closing = Arc::new(watch::Sender::new(false));
        let queue = Arc::new(Queue::new(options.inbox));
        let hints = Arc::new(Hints::new(options.fleet));
        let connection =
            Connection::new(options, tls, queue.clone(), closing.subscribe(), Arc::clone(&hints));
        let outbox = connection.outbox();
        tokio::spawn(connection.run());
        let last = Arc::new(CloseOnDrop(closing.clone()));
        // An inbox that is dropped closes the client too: nobody would take what arrives.
        let owner = CloseOnDrop(closing.clone());
        let handle = Handle { outbox: outbox.clone(), closing, hints, _last: last };
        Ok((handle, Inbox::new(queue, outbox, owner)))
    }
}

impl Handle {
    /// Takes a message for sending; never waits. QoS 1 survives lost connections, QoS 0 needs one
    /// now. Never retained.
    pub fn publish(
        &self,
        topic: impl Into<String>,
        qos: Qos,
        payload: impl Into<Bytes>,
    ) -> Result<(), PublishError> {
        lock(&self.outbox).publish(topic.into(), qos, payload.into(), None)
    }

    /// Like [`Handle::publish`], for a message that is worth nothing after `lifetime`: when that is
    /// over it is dropped here, or by the broker, which is told the rest in whole seconds, rounded
    /// up (MQTT 5, message expiry interval). One that has been delivered is its receiver's to judge.
    pub fn publish_within(
        &self,
        topic: impl Into<String>,
        qos: Qos,
        payload: impl Into<Bytes>,
        lifetime: Duration,
    ) -> Result<(), PublishError> {
        lock(&self.outbox).publish(topic.into(), qos, payload.into(), Some(lifetime))
    }

    /// Like [`Handle::publish`] at QoS 0, for what gives way to all other messages and is asked for again
    /// where it is lost: blocks of blobs. They are taken in this order; where one is not, the rest is not
    /// either.
    pub fn publish_cargo(
        &self,
        topic: &str,
        payloads: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), PublishError> {
        lock(&self.outbox).publish_cargo(topic, payloads)
    }

    /// Something that should have come has not: the broker is pinged together with what is published next,
    /// and left when nothing comes within half a minute.
    pub fn doubt(&self) {
        self.hints.doubt();
    }

    /// Whether messages are awaited in bulk: while they are, a silence of seconds is a reason to look for a
    /// second way to the broker ([`Options::second`]). To be said before what they are asked for with.
    pub fn awaits(&self, awaited: bool) {
        self.hints.set_awaited(awaited);
    }

    /// How many clients may lose the broker at once, as far as is known: spreads their return.
    pub fn fleet(&self, fleet: u32) {
        self.hints.set_fleet(fleet);
    }

    /// Sends what waits, if that takes no more than two seconds, then says goodbye, so that the
    /// broker does not publish the will. [`Inbox::recv`] gives `None` when it is done.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}

fn tls(options: &Options) -> Result<Option<Arc<Spoken>>, StartError> {
    match (&options.tls, options.broker.is_tls()) {
        (Some(tls), true) => Ok(Some(Arc::new(tls.spoken().map_err(StartError::Unusable)?))),
        (None, false) => Ok(None),
        _ => Err(StartError::Tls(options.broker.to_string())),
    }
}

fn check(options: &Options) -> Result<(), StartError> {
    let seconds = options.keep_alive.as_secs();
    if !(5..=65_535).contains(&seconds) {
        return Err(StartError::KeepAlive(options.keep_alive));
    }
    let id = &options.client_id;
    if id.is_empty() || id.chars().count() > 128 || id.chars().any(char::is_control) {
        return Err(StartError::ClientId(id.chars().take(128).collect()));
    }
    if options.maximum_packet < 1024 {
        return Err(StartError::MaximumPacket(options.maximum_packet));
    }
    for (filter, _) in &options.subscriptions {
        if filter.len() > 1024 || !rumqttc::v5::mqttbytes::valid_filter(filter) {
            return Err(StartError::Filter(filter.chars().take(120).collect()));
        }
    }
    Ok(())
}
