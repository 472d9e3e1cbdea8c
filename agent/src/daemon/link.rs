//! The device's side of the conversation: envelopes out, messages in, and when to speak again.
//!
//! A birth says that the device is there; it is said again, ever more rarely, until the registry
//! has answered anything, since either side may have started first. What cannot be sent now is not
//! lost: reports stay in the outbox, births and heartbeats are said anew.

use std::sync::Arc;
use std::time::Duration;

use selvedge_mqtt::{BrokerAddress, Client, Handle, Inbox, Options, StartError, Tls, Will};
use selvedge_package::DeviceId;
use selvedge_protocol::envelope::{Body, Envelope, EnvelopeError};
use selvedge_protocol::message as say;
use selvedge_protocol::sealed::{self, SealError};
use selvedge_protocol::signed::{PrivateKey, Purpose};
use selvedge_protocol::topic::{Kind, Qos, Topic};

use crate::clock;

/// First and longest wait before a birth, or an enrolment, is said again.
const WAITS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Requests for blocks that go unanswered for so long make the link doubtful.
const UNHEARD: Duration = Duration::from_secs(10);

/// A connection to the broker, and what was said over it.
pub struct Link {
    /// None where the link is not open.
    handle: Option<Handle>,
    device: DeviceId,
    /// Seals what must not travel open.
    key: Arc<PrivateKey>,
    epoch: u64,
    sequence: u64,
    heartbeat: Duration,
    /// Longest silence towards the broker.
    keep_alive: Duration,
    /// How many devices have this broker, about.
    fleet: u32,
    /// Since when something was asked for and nothing has come.
    unheard: Option<Duration>,
    asked: bool,
    connected: bool,
    heard: bool,
    /// Whether the device introduces itself once more although it was heard.
    again: bool,
    wait: Duration,
    /// When to introduce the device again, or to give a sign of life.
    speak_at: Duration,
}

/// What is to be said now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Who the device is: its birth, or its enrolment.
    Introduction,
    /// That it is still there.
    Heartbeat,
}

impl Link {
    /// A link of this device that is not open yet.
    pub fn new(
        device: DeviceId,
        key: Arc<PrivateKey>,
        epoch: u64,
        heartbeat: Duration,
        keep_alive: Duration,
    ) -> Self {
        Self {
            handle: None,
            device,
            key,
            epoch,
            sequence: 0,
            heartbeat,
            keep_alive,
            fleet: 1,
            unheard: None,
            asked: false,
            connected: false,
            heard: false,
            again: false,
            wait: WAITS.0,
            speak_at: Duration::ZERO,
        }
    }

    /// Starts a client. An earlier one must have ended: the broker would part the two.
    pub fn open(&mut self, broker: BrokerAddress, tls: Option<Tls>) -> Result<Inbox, LinkError> {
        let mut options = Options::new(broker, self.device.as_str());
        options.tls = tls;
        options.keep_alive = self.keep_alive;
        options.fleet = self.fleet;
        // Nothing comes between this machine and itself.
        options.second = !options.broker.is_loopback();
        options.subscriptions = vec![(Topic::subscription_device(&self.device), Qos::AtLeastOnce)];
        let will = envelope(self.epoch, 0, Body::Will(say::Will {})).encode().map_err(LinkError::Will)?;
        options.will = Some(Will {
            topic: Topic::new(self.device.clone(), Kind::Will).to_string(),
            qos: Kind::Will.qos(),
            payload: will,
        });
        let (handle, inbox) = Client::start(options).map_err(LinkError::Start)?;
        self.handle = Some(handle);
        self.connected = false;
        Ok(inbox)
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// There is a connection: the device introduces itself.
    pub fn connected(&mut self) {
        self.connected = true;
        self.unheard = None;
        self.heard = false;
        self.wait = WAITS.0;
        self.speak_at = Duration::ZERO;
    }

    /// There is none.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// How many devices would return with this one. Said by the Director, and bounded by the longest delay.
    pub fn fleet(&mut self, fleet: u32) {
        self.fleet = fleet;
        if let Some(handle) = &self.handle {
            handle.fleet(fleet);
        }
    }

    /// Something has come, whatever it is: the link carries.
    pub fn carries(&mut self) {
        self.unheard = None;
    }

    /// Asks for blocks. When nothing comes for a while the link itself is asked whether it is alive: one that
    /// is open at one end only would be noticed at the next ping, minutes later.
    pub fn need(&mut self, need: say::Need) {
        let now = clock::since_boot();
        if now >= *self.unheard.get_or_insert(now) + UNHEARD {
            self.unheard = Some(now);
            if let Some(handle) = &self.handle {
                handle.doubt();
            }
        }
        self.asked = true;
        self.awaits(true);
        self.say(Kind::Need, Body::Need(need));
    }

    /// Whether blocks are on their way, as far as is known.
    pub fn awaits(&self, blocks: bool) {
        if let Some(handle) = &self.handle {
            handle.awaits(blocks);
        }
    }

    /// Whether blocks were asked for since the last look.
    pub fn has_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// The registry has said something.
    pub fn heard(&mut self) {
        self.heard = true;
    }

    /// The device has more to say of itself: it introduces itself again, at once.
    pub fn introduce(&mut self) {
        self.again = true;
        self.speak_at = Duration::ZERO;
    }

    /// What to say now, if anything. It counts as said.
    pub fn due(&mut self, now: Duration) -> Option<Due> {
        if !self.connected || now < self.speak_at {
            return None;
        }
        if self.heard {
            self.speak_at = now + self.heartbeat;
            return Some(if std::mem::take(&mut self.again) { Due::Introduction } else { Due::Heartbeat });
        }
        self.again = false;
        self.speak_at = now + self.wait;
        self.wait = (self.wait * 2).min(WAITS.1);
        Some(Due::Introduction)
    }

    /// When to ask [`Link::due`] again.
    pub fn wake_at(&self) -> Option<Duration> {
        self.connected.then_some(self.speak_at)
    }

    /// Says something. What cannot be said is logged; whoever needs it said will say it again.
    pub fn say(&mut self, kind: Kind, body: Body) {
        self.send(kind, body, None);
    }

    /// Asks for what only this device may have: sealed by its key.
    pub fn enrol(&mut self, enrol: say::Enrol) {
        self.say_sealed(Kind::Enrol, Purpose::Enrol, Body::Enrol(enrol), None);
    }

    /// Answers a question: sealed by the device's key, worth nothing after `lifetime`.
    pub fn answer(&mut self, kind: Kind, body: Body, lifetime: Duration) {
        self.say_sealed(kind, Purpose::Answer, body, Some(lifetime));
    }

    fn say_sealed(&mut self, kind: Kind, purpose: Purpose, body: Body, lifetime: Option<Duration>) {
        self.sequence += 1;
        let inner = envelope(self.epoch, self.sequence, body);
        let key = Arc::clone(&self.key);
        match sealed::seal::<SealError>(purpose, &self.device, &inner, |bytes| Ok(key.raw(bytes))) {
            Ok(body) => self.send(kind, body, lifetime),
            Err(error) => tracing::error!(%error, "a message cannot be sealed"),
        }
    }

    fn send(&mut self, kind: Kind, body: Body, lifetime: Option<Duration>) {
        self.sequence += 1;
        let envelope = envelope(self.epoch, self.sequence, body);
        let payload = match envelope.encode() {
            Ok(payload) => payload,
            Err(error) => {
                tracing::error!(%error, "a message cannot be written");
                return;
            }
        };
        let topic = Topic::new(self.device.clone(), kind).to_string();
        let Some(handle) = &self.handle else {
            return;
        };
        let sent = match lifetime {
            None => handle.publish(topic, kind.qos(), payload),
            Some(lifetime) => handle.publish_within(topic, kind.qos(), payload, lifetime),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, ?kind, "not sent");
        }
    }

    /// Says goodbye.
    pub fn close(&self) {
        if let Some(handle) = &self.handle {
            handle.close();
        }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The client's options are wrong.
    #[error("the MQTT client cannot be started")]
    Start(#[source] StartError),
    /// The will cannot be written.
    #[error("the device's will cannot be written")]
    Will(#[source] EnvelopeError),
}

fn envelope(epoch: u64, sequence: u64, body: Body) -> Envelope {
    // Within a device an epoch and a sequence are enough to tell messages apart.
    let id = (epoch << 32) | (sequence & 0xffff_ffff);
    Envelope { id, epoch, sequence, at_ms: clock::system_ms(), body }
}
