//! The registry's side of MQTT: what devices say, and what they are told.
//!
//! Every message may be hostile, come twice, late, or out of order. Messages of devices that nobody
//! made a target for are dropped. One loop handles what changes the database, in the order that it
//! came; requests for blocks are answered in between where the bytes are in memory, and beside it where not.

pub mod blocks;
mod enrol;
mod found;
mod frames;
mod noise;
pub mod outgoing;
mod reports;
mod want;

use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use selvedge_mqtt::{Inbox, Incoming};
use selvedge_package::DeviceId;
use selvedge_protocol::block::{Bucket, Rate};
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::message::{Birth, Heartbeat, Rows, Want};
use selvedge_protocol::sealed;
use selvedge_protocol::signed::{PublicKey, Purpose};
use selvedge_protocol::topic::{Kind, Topic};
use tokio::sync::watch;

use crate::app::App;
use crate::clock;
use crate::error::{Error, causes};
use crate::remote;
use crate::rest::server::stopped;
use crate::store::presence::Presence;

pub use blocks::{Blocks, Limits};
use noise::Noise;
use outgoing::Outgoing;

/// How often presence is stored.
const FLUSH: Duration = Duration::from_secs(20);
/// How often people are told what they must sign again soon.
const WARN: Duration = Duration::from_secs(24 * 3600);
/// Desired states for one device: each may be a signature and some files.
const STATES: Rate = Rate { per_second: 1, burst: 10 };
/// A device that still has an older desired state is told again after this long.
const AGAIN: Duration = Duration::from_secs(60);
/// Longest nonce, agent version, and list of capabilities of a birth.
const NONCE: usize = 64;
const AGENT: usize = 64;
const CAPABILITIES: usize = 32;

/// The MQTT side of a registry.
pub struct Devices {
    app: Arc<App>,
    blocks: Arc<Blocks>,
    outgoing: Arc<Outgoing>,
    told: BTreeMap<DeviceId, Told>,
    /// Requests to be enrolled, for each target and of all others together.
    asks: BTreeMap<DeviceId, Bucket>,
    /// New certificates, for each target.
    certified: BTreeMap<DeviceId, Bucket>,
    strangers: Bucket,
    noise: Noise,
}

/// When a device was last told what it shall run. One for each target at most.
struct Told {
    bucket: Bucket,
    at: Duration,
    /// It asked or changed too often, and is looked at again when its bucket has filled.
    later: bool,
}

impl Devices {
    /// Ready to run; `limits` are for blocks.
    pub fn new(app: Arc<App>, outgoing: Arc<Outgoing>, limits: Limits) -> Self {
        let blocks = Arc::new(Blocks::new(Arc::clone(&app), limits, clock::running()));
        let now = clock::running();
        Self {
            app,
            blocks,
            outgoing,
            told: BTreeMap::new(),
            asks: BTreeMap::new(),
            certified: BTreeMap::new(),
            strangers: enrol::strangers(now),
            noise: Noise::new(now),
        }
    }

    /// Handle messages and changes until `stop` says so.
    pub async fn run(mut self, mut inbox: Inbox, mut stop: watch::Receiver<bool>) {
        let mut flush = tokio::time::interval(FLUSH);
        let mut refresh = tokio::time::interval(self.app.trust.look());
        let mut warn = tokio::time::interval(WARN);
        for timer in [&mut flush, &mut refresh, &mut warn] {
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        let app = Arc::clone(&self.app);
        loop {
            let result = tokio::select! {
                () = stopped(&mut stop) => break,
                incoming = inbox.recv() => match incoming {
                    Some(incoming) => self.incoming(incoming).await,
                    None => break,
                },
                (device, anew) = app.changed.take() => {
                    // What was put off may have been a birth, whose nonce is to be echoed.
                    let owed = self.told.get_mut(&device).is_some_and(|told| std::mem::take(&mut told.later));
                    let told = match owed || anew {
                        true => self.tell_if_online(&device).await,
                        false => self.tell_if_behind(&device).await,
                    };
                    self.log(&device, "tell what changed", told);
                    Ok(())
                }
                _ = flush.tick() => self.app.presences.flush(&self.app.store).await,
                _ = refresh.tick() => self.refresh().await,
                _ = warn.tick() => self.app.trust.warn(&self.app.store, clock::now()).await,
            };
            if let Err(error) = result {
                tracing::error!("{}", error.chain());
            }
        }
        if let Err(error) = self.app.presences.flush(&self.app.store).await {
            tracing::error!("{}", error.chain());
        }
        self.outgoing.handle().close();
        // What waits is sent, within the two seconds that the client takes at most.
        while inbox.recv().await.is_some() {}
    }

    async fn incoming(&mut self, incoming: Incoming) -> Result<(), Error> {
        match incoming {
            Incoming::Connected { maximum_packet, .. } => {
                tracing::info!(maximum_packet, "connected to the broker");
                self.outgoing.connected(maximum_packet);
                // Devices may have been there all the while: they give no birth again.
                self.app.changed.add_all(self.app.store.enrolled().await?);
                Ok(())
            }
            Incoming::Disconnected { why, retry_in, .. } => {
                self.outgoing.disconnected();
                tracing::warn!(?retry_in, "not connected to the broker: {why}");
                Ok(())
            }
            Incoming::Refused { filter } => {
                tracing::error!("the broker refuses the subscription {filter}: no device is heard");
                Ok(())
            }
            Incoming::Dropped { topic, size } => {
                tracing::error!("a message of {size} bytes on {topic} is too large for the broker");
                Ok(())
            }
            Incoming::Message { topic, payload } => {
                let topic = match Topic::parse(&topic) {
                    Ok(topic) => topic,
                    Err(error) => {
                        tracing::debug!("a message is dropped: {error}");
                        return Ok(());
                    }
                };
                let envelope = match Envelope::decode(&payload) {
                    Ok(envelope) => envelope,
                    Err(error) => {
                        tracing::debug!(device = %topic.device, "a message is dropped: {error}");
                        return Ok(());
                    }
                };
                let result = self.message(&topic, envelope).await;
                self.log(&topic.device, "handle its message", result);
                Ok(())
            }
        }
    }

    /// One message. The kind of topic and the type of the body must be of each other.
    async fn message(&mut self, topic: &Topic, envelope: Envelope) -> Result<(), Error> {
        let device = &topic.device;
        let epoch = envelope.epoch;
        match (topic.kind, envelope.body) {
            (Kind::Need, Body::Need(need)) => {
                let (blocks, device) = (Arc::clone(&self.blocks), device.clone());
                let handle = self.outgoing.handle().clone();
                self.heard(&device, epoch).await?;
                let mut answer = Box::pin(async move { blocks.answer(&device, &need, &handle).await });
                // What is at hand is answered at once, and in the order in which it was asked for.
                if poll_fn(|context| Poll::Ready(answer.as_mut().poll(context).is_pending())).await {
                    tokio::spawn(answer);
                }
                Ok(())
            }
            (Kind::Birth, Body::Birth(birth)) => self.birth(device, epoch, birth).await,
            (Kind::Heartbeat, Body::Heartbeat(heartbeat)) => self.heartbeat(device, epoch, heartbeat).await,
            (Kind::Will, Body::Will(_)) => {
                let gone = |presence: &mut Presence| presence.gone |= presence.epoch == epoch;
                self.app.presences.update(&self.app.store, device, gone).await.map(drop)
            }
            (Kind::State, Body::State(rows)) => self.state(device, epoch, &rows).await,
            (Kind::Enrol, body @ Body::Signed(_)) => self.enrol(device, &body).await,
            (Kind::CommandResult, body @ Body::Signed(_)) => self.answer(device, Kind::Command, &body).await,
            (Kind::InferAnswer, body @ Body::Signed(_)) => {
                self.answer(device, Kind::InferRequest, &body).await
            }
            (kind, body) => {
                tracing::debug!(%device, "a `{}` on a topic for {kind:?} is dropped", body.ty());
                Ok(())
            }
        }
    }

    /// An answer, which the device's registered key must have sealed, to a question of `asked`. Nothing is
    /// verified for nobody.
    async fn answer(&mut self, device: &DeviceId, asked: Kind, body: &Body) -> Result<(), Error> {
        if !self.app.remote.asked(device, asked) {
            tracing::debug!(%device, "an answer that nobody waits for is dropped");
            return Ok(());
        }
        let Some(key) = self.app.store.target(device).await?.and_then(|target| target.public_key) else {
            return Ok(());
        };
        let inner = match sealed::open(&[PublicKey(key)], Purpose::Answer, device, body) {
            Ok(inner) => inner,
            Err(error) => {
                self.noise.warn(device, &format!("an answer is dropped: {}", causes(&error)));
                return Ok(());
            }
        };
        self.heard(device, inner.epoch).await?;
        if let Some((id, kind, answer)) = remote::read(inner.body)
            && kind == asked
            && !self.app.remote.answered(device, &id, kind, answer)
        {
            tracing::debug!(%device, "an answer that nobody waits for is dropped");
        }
        Ok(())
    }

    async fn heard(&self, device: &DeviceId, epoch: u64) -> Result<(), Error> {
        let now_ms = clock::now().as_millisecond();
        let heard = |presence: &mut Presence| {
            if epoch >= presence.epoch {
                presence.last_heard_ms = presence.last_heard_ms.max(now_ms);
                presence.gone = false;
            }
        };
        self.app.presences.update(&self.app.store, device, heard).await.map(drop)
    }

    async fn birth(&mut self, device: &DeviceId, epoch: u64, birth: Birth) -> Result<(), Error> {
        let capabilities = birth.capabilities.iter().all(|capability| capability.len() <= AGENT);
        let counters = [epoch, birth.generation, birth.desired, birth.image_root, birth.director_root];
        if birth.nonce.len() > NONCE
            || birth.agent.len() > AGENT
            || birth.capabilities.len() > CAPABILITIES
            || !capabilities
            || counters.into_iter().any(|counter| counter > i64::MAX as u64)
        {
            self.noise.warn(device, "its birth is out of bounds and dropped");
            return Ok(());
        }
        let Some(target) = self.app.store.target(device).await? else {
            tracing::debug!(%device, "the birth of an unknown device is dropped");
            return Ok(());
        };
        if target.revoked_ms.is_some() {
            tracing::debug!(%device, "the birth of a revoked device is dropped");
            return Ok(());
        }
        // Births are not signed, reports are: only an epoch that a report proved makes older births
        // late copies. Otherwise one forged birth could silence a device for ever.
        if epoch < target.proven_epoch {
            return Ok(());
        }
        let last_heard_ms = clock::now().as_millisecond();
        let presence = Presence { epoch, birth, last_heard_ms, gone: false };
        // A flood of births costs no durable write each: what is not answered is kept in memory.
        if !self.may_tell(device) {
            self.app.presences.set_unstored(device, presence);
            return Ok(());
        }
        self.app.store.keep_presence(device, &presence).await?;
        self.app.presences.set_stored(device, presence);
        self.tell_now(device).await
    }

    async fn heartbeat(&mut self, device: &DeviceId, epoch: u64, heartbeat: Heartbeat) -> Result<(), Error> {
        let now_ms = clock::now().as_millisecond();
        let beat = |presence: &mut Presence| {
            if epoch >= presence.epoch {
                presence.last_heard_ms = presence.last_heard_ms.max(now_ms);
                presence.gone = false;
                presence.birth.generation = heartbeat.generation.min(i64::MAX as u64);
                presence.birth.desired = heartbeat.desired.min(i64::MAX as u64);
            }
        };
        if !self.app.presences.update(&self.app.store, device, beat).await? {
            return Ok(());
        }
        let waited = self.told.get(device).is_none_or(|told| clock::running() >= told.at + AGAIN);
        if waited { self.tell_if_behind(device).await } else { Ok(()) }
    }

    async fn state(&mut self, device: &DeviceId, epoch: u64, rows: &Rows) -> Result<(), Error> {
        let Some(target) = self.app.store.target(device).await? else {
            return Ok(());
        };
        let Some(key) = target.public_key else {
            tracing::debug!(%device, "reports before its enrolment are dropped");
            return Ok(());
        };
        let kept =
            reports::keep(&self.app, &target, &key, rows, clock::now().as_millisecond(), &self.noise).await?;
        if let Some(kept) = &kept {
            // A birth is not signed. What signed rows prove takes a forged, larger epoch back.
            let proven = kept.epoch.max(target.proven_epoch).max(epoch);
            let take_back = |presence: &mut Presence| presence.epoch = presence.epoch.min(proven);
            self.app.presences.update(&self.app.store, device, take_back).await?;
        }
        self.heard(device, epoch).await?;
        if let Some(kept) = kept {
            if kept.decides {
                self.app.changed.add(device.clone());
            }
            self.send(device, Kind::Ack, Body::Ack(kept.ack));
        }
        Ok(())
    }

    async fn refresh(&mut self) -> Result<(), Error> {
        let now = clock::now();
        self.app.trust.refresh_image(&self.app.store, now).await?;
        let mut change = self.app.store.change().await?;
        if change.revoke_used_files(now.as_millisecond()).await? > 0 {
            change.commit().await?;
            self.app.credentials.revoked(&self.app.store, now).await;
        } else {
            drop(change);
            self.app.credentials.write(&self.app.store, now).await?;
        }
        for device in self.app.store.enrolled().await? {
            let stale = match self.app.store.directed(&device).await? {
                Some(directed) => directed.past_half(now.as_millisecond()),
                None => false,
            };
            if stale {
                let told = self.tell_if_online(&device).await;
                self.log(&device, "sign its desired state again", told);
            }
        }
        Ok(())
    }

    fn log(&self, device: &DeviceId, what: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            tracing::error!(%device, "cannot {what}: {}", error.chain());
        }
    }

    /// Publish one envelope to a device. What does not fit or finds no room is logged: the device
    /// asks or reports again.
    fn send(&self, device: &DeviceId, kind: Kind, body: Body) {
        if let Err(unsent) = self.outgoing.send(device, kind, body, None) {
            tracing::warn!(%device, ?kind, "a message was not sent: {unsent:?}");
        }
    }

    fn send_want(&self, device: &DeviceId, want: Want) {
        self.send(device, Kind::Want, Body::Want(want));
    }
}
