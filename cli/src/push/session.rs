//! The conversation with one device: messages in, desired states, blocks and answers out.

mod judging;

use std::time::Duration;

use selvedge_mqtt::{BrokerAddress, Client, Inbox, Incoming, Options, PublishError, Qos, Tls};
use selvedge_package::Digest;
use selvedge_package::trust::AssignedPackage;
use selvedge_protocol::block::{Bucket, Rate};
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::message::{Birth, Enrolled, Need, Rows, Want};
use selvedge_protocol::topic::{Direction, Kind, Topic};

use super::blocks::Blocks;
use super::director::{self, Claims, Start, Wish, bundle, direct};
use super::repository::{Device, Image, Repository};
use super::ring::Ring;
use super::verdict::Goal;
use super::{enrol, reports};
use crate::clock::{self, Deadline};
use crate::failure::Failure;
use crate::output::Output;
use crate::packaging::layout::Layout;
use crate::progress::Step;

/// Desired states a second: each may be three signatures and two durable files.
const STATES: Rate = Rate { per_second: 1, burst: 10 };
/// Other answers a second: enrolments, and acknowledgements of rows.
const ANSWERS: Rate = Rate { per_second: 50, burst: 200 };
/// Lines a second that messages of others can cause.
const NOTES: Rate = Rate { per_second: 1, burst: 20 };
/// A device that still has an older desired state is told again after this long.
const AGAIN: Duration = Duration::from_secs(20);
/// A refusal counts when so much time has passed since the device was last told.
const GRACE: Duration = Duration::from_secs(10);
/// A broker that was never reached is given up after this long.
const CONNECT: Duration = Duration::from_secs(10);
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(500);
/// Bytes of a packet besides the desired state in it: topic, envelope, MQTT's own.
const ROOM: usize = 1024;
/// Smallest desired state that is pulled: below that, blocks would cost more than they save.
const SMALLEST_PULL: usize = 2048;
/// Largest block that any device takes, in bytes.
const LARGEST_BLOCK: u32 = 64 << 10;
/// Longest nonce, agent version, and list of capabilities of a birth.
const NONCE: usize = 64;
const AGENT: usize = 64;
const CAPABILITIES: usize = 32;

/// Hands a payload for a topic to the broker; never waits.
pub type Publish = Box<dyn Fn(String, Qos, Vec<u8>) -> Result<(), PublishError> + Send>;

/// What a session is made of.
pub struct Parts<'a> {
    pub out: Output,
    pub repository: &'a Repository,
    pub ring: &'a Ring,
    pub image: Image,
    pub device: Device,
    pub start: Start,
    pub goal: Goal,
    pub assignments: Vec<AssignedPackage>,
    pub layout: &'a Layout,
    pub take_over: bool,
    /// Everything is to be signed again, once: the roots have changed.
    pub always: bool,
    pub deadline: Deadline,
}

/// One device, one broker.
pub struct Session<'a> {
    pub(super) parts: Parts<'a>,
    blocks: Blocks,
    step: Step,
    publish: Publish,
    maximum_packet: u32,
    /// For envelopes, and to tell our own from another Director's.
    epoch: u64,
    sequence: u64,
    birth: Option<(u64, Birth)>,
    heard: bool,
    connected: bool,
    unreachable: Option<String>,
    told: Bucket,
    told_at: Option<Duration>,
    answers: Bucket,
    notes: Bucket,
    /// Whether a state was reported since the start.
    reported: bool,
    /// Whether everything was signed above what others may have signed: that is done once.
    above: bool,
    rival: bool,
    disbelieved: bool,
    /// A sequence of another Director, by the device's unsigned word.
    claimed: Option<u64>,
    shown: String,
    text: String,
}

impl<'a> Session<'a> {
    /// Ready to run.
    pub fn new(parts: Parts<'a>, publish: Publish) -> Self {
        let Goal { package, release, .. } = &parts.goal;
        let step =
            Step::begin(parts.out, &format!("pushing {package} r{release} to {}", parts.device.device));
        let now = parts.deadline.elapsed();
        Self {
            blocks: Blocks::of(parts.layout, now),
            step,
            publish,
            maximum_packet: LARGEST_BLOCK,
            epoch: rand::random::<u64>() >> 1,
            sequence: 0,
            birth: None,
            heard: false,
            connected: false,
            unreachable: None,
            told: Bucket::new(STATES, now),
            told_at: None,
            answers: Bucket::new(ANSWERS, now),
            notes: Bucket::new(NOTES, now),
            reported: false,
            above: false,
            rival: false,
            disbelieved: false,
            claimed: None,
            text: "nothing happened".to_owned(),
            shown: String::new(),
            parts,
        }
    }

    /// Connects, and talks until the device serves the package, or it is clear that it will not.
    pub async fn run(
        parts: Parts<'a>,
        broker: &BrokerAddress,
        tls: Option<Tls>,
        id: Option<String>,
    ) -> Result<(), Failure> {
        let device = &parts.device.device;
        let name = id.unwrap_or_else(|| format!("selvedge-push-{:08x}", rand::random::<u32>()));
        let mut options = Options::new(broker.clone(), name);
        options.tls = tls;
        // `Want` shows whether somebody else directs the device too.
        options.subscriptions =
            [Kind::Birth, Kind::Heartbeat, Kind::State, Kind::Need, Kind::Enrol, Kind::Want]
                .into_iter()
                .map(|kind| (Topic::new(device.clone(), kind).to_string(), kind.qos()))
                .collect();
        let (handle, mut inbox) = Client::start(options).map_err(|source| Failure::Internal {
            what: "the MQTT client cannot be started",
            source: source.into(),
        })?;
        let publisher = handle.clone();
        let mut session =
            Self::new(parts, Box::new(move |topic, qos, payload| publisher.publish(topic, qos, payload)));
        let ended = session.talk(&mut inbox, broker).await;
        // What waits is sent, within the two seconds that the client takes at most.
        handle.close();
        while inbox.recv().await.is_some() {}
        ended?;
        session.tell_success();
        Ok(())
    }

    async fn talk(&mut self, inbox: &mut Inbox, broker: &BrokerAddress) -> Result<(), Failure> {
        loop {
            let pause = self.parts.deadline.cut(TICK);
            let incoming = tokio::time::timeout(pause, inbox.recv()).await;
            match incoming {
                Ok(Some(incoming)) => self.incoming(incoming)?,
                Ok(None) => {
                    return Err(Failure::Internal {
                        what: "the MQTT client ended",
                        source: "by itself".into(),
                    });
                }
                Err(_) => {}
            }
            let now = self.now();
            if let Some(why) =
                self.unreachable.as_ref().filter(|_| now >= CONNECT || self.parts.deadline.passed())
            {
                return Err(Failure::Unreachable {
                    who: "the broker",
                    address: broker.to_string(),
                    source: why.clone().into(),
                    advice: "check --broker, and that the broker runs".to_owned(),
                });
            }
            if self.judge(now)? {
                return Ok(());
            }
            if self.parts.deadline.passed() {
                return Err(self.late());
            }
        }
    }

    pub(super) fn incoming(&mut self, incoming: Incoming) -> Result<(), Failure> {
        match incoming {
            Incoming::Connected { maximum_packet, .. } => {
                self.maximum_packet = maximum_packet;
                self.connected = true;
                self.unreachable = None;
                // It may have been there all the while: then it gives no birth.
                self.tell()
            }
            Incoming::Disconnected { why, .. } => {
                if self.connected {
                    self.note(&format!("no connection to the broker: {why}"));
                } else {
                    self.unreachable = Some(why);
                }
                Ok(())
            }
            Incoming::Refused { filter } => Err(Failure::refused(
                format!("the broker does not let this program hear {filter}"),
                "let the broker's rules allow it to read `up/#` and to write `dn/#` of the device",
            )),
            Incoming::Dropped { topic, size } => {
                self.note(&format!("a message of {size} bytes on {topic} is too large for the broker"));
                Ok(())
            }
            Incoming::Message { topic, payload } => {
                let Ok(topic) = Topic::parse(&topic) else { return Ok(()) };
                if topic.device != self.parts.device.device {
                    return Ok(());
                }
                match Envelope::decode(&payload) {
                    Ok(envelope) => self.message(topic.kind, envelope),
                    Err(error) => {
                        self.note(&format!("a message is not read: {error}"));
                        Ok(())
                    }
                }
            }
        }
    }

    fn message(&mut self, kind: Kind, envelope: Envelope) -> Result<(), Failure> {
        if kind.direction() == Direction::Down {
            if envelope.epoch != self.epoch && !std::mem::replace(&mut self.rival, true) {
                self.step.note(&format!(
                    "{} is also told by somebody else what to run (a registry on this broker?); \
                     only one Director can direct a device",
                    self.parts.device.device
                ));
            }
            return Ok(());
        }
        match (kind, envelope.body) {
            (Kind::Birth, Body::Birth(birth)) => self.birth(envelope.epoch, birth),
            (Kind::Heartbeat, Body::Heartbeat(heartbeat)) => {
                self.heard = true;
                let waited = self.told_at.is_none_or(|at| self.now() >= at + AGAIN);
                if waited && heartbeat.desired < self.parts.device.sequence { self.tell() } else { Ok(()) }
            }
            (Kind::Need, Body::Need(need)) => self.need(&need),
            (Kind::State, Body::State(rows)) => self.state(&rows),
            (Kind::Enrol, body) => self.enrol(&body),
            _ => Ok(()),
        }
    }

    fn birth(&mut self, epoch: u64, birth: Birth) -> Result<(), Failure> {
        let capabilities = birth.capabilities.iter().all(|word| word.len() <= AGENT);
        if birth.nonce.len() > NONCE
            || birth.agent.len() > AGENT
            || birth.capabilities.len() > CAPABILITIES
            || !capabilities
        {
            self.note("a birth is out of bounds and dropped");
            return Ok(());
        }
        // Only what signed rows have proved makes an older birth a late copy.
        if epoch < self.parts.device.epoch {
            return Ok(());
        }
        self.heard = true;
        self.birth = Some((epoch, birth));
        self.tell()
    }

    /// Signs what is due and publishes it, no faster than the bucket allows: a heartbeat shows when
    /// it has to be said again.
    fn tell(&mut self) -> Result<(), Failure> {
        let now = self.now();
        if self.told.take(1, now).is_err() {
            return Ok(());
        }
        let mut claims = self.claims();
        if claims.sequence > self.parts.device.sequence && !self.parts.take_over {
            // Anyone could say so in its name. What the device signs will prove it, or the time will.
            if self.claimed.is_none() {
                let failure = self.overruled(claims.sequence);
                self.step.note(&format!("{failure}; {}", failure.advice().unwrap_or_default()));
            }
            self.claimed = Some(std::mem::take(&mut claims.sequence));
        }
        // A device that another Director has directed may know our numbers with other contents.
        let above = self.parts.take_over && self.birth.is_some() && !std::mem::replace(&mut self.above, true);
        self.sign_and_publish(claims, above, now)
    }

    fn sign_and_publish(&mut self, claims: Claims, above: bool, now: Duration) -> Result<(), Failure> {
        let (nonce, largest) = match &self.birth {
            Some((_, birth)) => (birth.nonce.clone(), birth.largest_block.min(LARGEST_BLOCK)),
            None => (hex::decode(&self.parts.device.nonce).unwrap_or_default(), LARGEST_BLOCK),
        };
        let Parts { image, device, ring, repository, assignments, always, .. } = &mut self.parts;
        let wish = Wish { assignments, nonce: &nonce, claims, above, always: std::mem::take(always) };
        let (image_changed, device_changed) = direct(image, device, ring, &wish, clock::now())?;
        let bytes = bundle(image, device, clock::now())?;
        if image_changed {
            repository.keep_image(image)?;
        }
        if device_changed {
            repository.keep_device(device)?;
        }
        let packet = usize::try_from(self.maximum_packet).unwrap_or(usize::MAX).saturating_sub(ROOM);
        let most = (largest as usize).min(packet).max(SMALLEST_PULL);
        let want = if bytes.len() <= most {
            Want::Inline(bytes)
        } else {
            let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
            self.blocks.offer(digest, bytes);
            Want::Pull { digest, size }
        };
        self.told_at = Some(now);
        self.send(Kind::Want, Body::Want(want));
        Ok(())
    }

    /// What the device says that it has accepted, as far as that is believed.
    fn claims(&mut self) -> Claims {
        let Some((_, birth)) = &self.birth else { return Claims::default() };
        match self.parts.start.believe(birth) {
            Ok(claims) => claims,
            Err(number) => {
                if !std::mem::replace(&mut self.disbelieved, true) {
                    let device = &self.parts.device.device;
                    self.step.note(&format!(
                        "{device} says that it has accepted version {number}, which is more than {} above what is \
                         known here: not believed",
                        director::LEAP
                    ));
                }
                Claims::default()
            }
        }
    }

    fn need(&mut self, need: &Need) -> Result<(), Failure> {
        self.heard = true;
        let known = self.parts.device.public_key.is_some();
        let now = self.now();
        let topic = Topic::new(self.parts.device.device.clone(), Kind::Block).to_string();
        for frame in self.blocks.answer(need, known, now)? {
            // A full queue loses the rest: the device's bitmap asks for it again.
            if (self.publish)(topic.clone(), Kind::Block.qos(), frame).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn state(&mut self, rows: &Rows) -> Result<(), Failure> {
        if self.answers.take(1, self.now()).is_err() {
            return Ok(());
        }
        let Parts { device, repository, ring, .. } = &mut self.parts;
        let epoch = device.epoch;
        let taken = reports::take(device, rows);
        reports::keep_events(repository, &device.device, &taken.events)?;
        if taken.state || !taken.events.is_empty() || device.epoch != epoch {
            repository.keep_device(device)?;
        }
        if !taken.rows.is_empty() {
            self.heard = true;
            let ack = reports::acknowledge(&ring.online, &device.device, taken.rows)?;
            self.send(Kind::Ack, Body::Ack(ack));
        }
        self.reported |= taken.state;
        for note in &taken.notes {
            self.note(note);
        }
        for event in &taken.events {
            self.note(&format!("{}: {}", event.kind, event.what));
        }
        Ok(())
    }

    fn enrol(&mut self, body: &Body) -> Result<(), Failure> {
        if self.answers.take(1, self.now()).is_err() {
            return Ok(());
        }
        let Some(enrol) = enrol::opened(&self.parts.device.device, body) else {
            self.note("an enrolment that is not sealed by its own key is dropped");
            return Ok(());
        };
        let enrol = &enrol;
        let (answer, changed) = enrol::register(&mut self.parts.device, enrol);
        match &answer {
            Enrolled::Accepted | Enrolled::Certificate(_) => {
                self.heard = true;
                if changed {
                    self.parts.repository.keep_device(&self.parts.device)?;
                    self.note("it has enrolled");
                }
            }
            Enrolled::Refused(why) => self.note(&format!("an enrolment is refused: {why}")),
        }
        self.send(Kind::Enrolled, Body::Enrolled(answer));
        Ok(())
    }

    /// A line that others can cause: not faster than people read.
    fn note(&mut self, text: &str) {
        if self.notes.take(1, self.now()).is_ok() {
            let text: String = text.chars().take(1000).collect();
            self.step.note(&format!("{}: {text}", self.parts.device.device));
        }
    }

    fn send(&mut self, kind: Kind, body: Body) {
        self.sequence += 1;
        let envelope = Envelope {
            id: self.sequence,
            epoch: self.epoch,
            sequence: self.sequence,
            at_ms: clock::now().as_millisecond(),
            body,
        };
        let topic = Topic::new(self.parts.device.device.clone(), kind).to_string();
        let published = envelope.encode().map_err(|error| error.to_string()).and_then(|payload| {
            (self.publish)(topic, kind.qos(), payload).map_err(|error| error.to_string())
        });
        if let Err(why) = published {
            self.note(&format!("a message was not sent: {why}"));
        }
    }

    fn now(&self) -> Duration {
        self.parts.deadline.elapsed()
    }
}
