//! One connection after another: the only task that polls rumqttc.
//!
//! Every connection gets fresh protocol state; what an ended one leaves is sorted into what is sent
//! again with its packet id (the broker kept the session), what waits again in the outbox, and what
//! is worth nothing any more. See the list in the crate's documentation for what that works round.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnAck, Packet, Publish, SubAck, SubscribeReasonCode};
use rumqttc::v5::{AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, MqttState, Request};
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff::Backoff;
use crate::contained::contained;
use crate::hints::Hints;
use crate::inbox::{Incoming, Queue, lock};
use crate::options::Options;
use crate::outbox::{Outbox, packet_size};
use crate::refusal::{self, Reason};
use crate::second::{Second, Taken};
use crate::setup::{self, CONNECT_TIMEOUT, HANDED_OVER, IN_FLIGHT, RECEIVE_MAXIMUM, Start};
use crate::tls::Spoken;

const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(30);
const GOODBYE: Duration = Duration::from_secs(2);
/// Longest silence after a ping: then the broker, or the link to it, is dead. Anything that comes counts.
const PONG: Duration = Duration::from_secs(30);
/// Longest wait for an acknowledgement while others wait behind it.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(120);

pub(crate) struct Connection {
    options: Options,
    tls: Option<Arc<Spoken>>,
    poll: EventLoop,
    /// A second way to the broker while this one is silent.
    second: Option<Second>,
    outbox: Arc<Mutex<Outbox>>,
    inbox: Arc<Queue>,
    closing: watch::Receiver<bool>,
    hints: Arc<Hints>,
    /// Unacknowledged messages with their packet ids, in case the broker kept the session.
    unacknowledged: Vec<Publish>,
    /// Packet ids in the order in which this connection used them: rumqttc keeps none.
    order: Vec<u16>,
}

/// How a connection stands.
struct Progress {
    connected_at: Instant,
    session_present: bool,
    maximum_packet: u32,
    /// Subscribing waits until packet ids of the kept session are free again.
    subscribe: Subscribing,
    announced: bool,
    /// When the broker last acknowledged something, or had nothing to acknowledge.
    acknowledged_at: Instant,
    /// When a ping went out after which nothing has come yet.
    pinged_at: Option<Instant>,
    /// Whether a ping has no answer of its own yet: rumqttc takes another one for the end.
    pinging: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscribing {
    Due,
    Asked(Instant),
    Done,
}

enum End {
    Closed,
    Failed(String, Reason),
}

/// What happens next on a connection.
#[expect(clippy::large_enum_variant, reason = "there is one at a time; a box for every packet costs more")]
enum Turn {
    Polled(Result<Result<Result<Event, ConnectionError>, String>, Elapsed>),
    Taken(Box<Taken>),
    /// There is no more to be had of it.
    Over(String),
}

impl End {
    fn failed(why: String) -> Self {
        Self::Failed(why, Reason::Link)
    }
}

impl Connection {
    pub fn new(
        options: Options,
        tls: Option<Arc<Spoken>>,
        inbox: Arc<Queue>,
        closing: watch::Receiver<bool>,
        hints: Arc<Hints>,
    ) -> Self {
        let (client, poll) = AsyncClient::new(anew(&options, tls.as_ref()), HANDED_OVER);
        let outbox = Outbox::new(client, options.outbox, options.cargo, options.maximum_packet);
        Self {
            options,
            tls,
            poll,
            second: None,
            outbox: Arc::new(Mutex::new(outbox)),
            inbox,
            closing,
            hints,
            unacknowledged: Vec::new(),
            order: Vec::new(),
        }
    }

    pub fn outbox(&self) -> Arc<Mutex<Outbox>> {
        self.outbox.clone()
    }

    pub async fn run(mut self) {
        let mut backoff = Backoff::new(self.options.fleet, self.options.longest_retry);
        loop {
            self.prepare();
            let started = Instant::now();
            let end = self.connection(started).await;
            self.second = None;
            self.clear_up();
            let End::Failed(why, reason) = end else { break };
            backoff.of_fleet(self.hints.fleet());
            backoff.ended(started.elapsed());
            let retry_in = backoff.next(&mut rand::rng());
            tracing::info!(broker = %self.options.broker, why, ?retry_in, "no connection to the broker");
            self.inbox.event(Incoming::Disconnected { why, reason, retry_in });
            let wait = sleep(retry_in);
            tokio::select! {
                _ = wait => {}
                () = is_closing(&mut self.closing) => break,
            }
        }
        lock(&self.outbox).close();
        self.inbox.close();
    }

    /// What a server overrode in the options of the last connection is ours again.
    fn prepare(&mut self) {
        self.poll.options = anew(&self.options, self.tls.as_ref());
        self.poll.state = MqttState::new(IN_FLIGHT, true);
        self.order.clear();
    }

    async fn connection(&mut self, started: Instant) -> End {
        let mut progress: Option<Progress> = None;
        let mut goodbye: Option<Instant> = None;
        let mut said_goodbye = false;
        loop {
            let taking = self.second.as_ref().is_some_and(Second::is_taking);
            let mut over = None;
            if let Some(progress) = &mut progress {
                over = self.before_poll(progress).err();
                // Whoever may have taken this one's place says it instead.
                if goodbye.is_some() && !said_goodbye && !taking {
                    let outbox = lock(&self.outbox);
                    said_goodbye = outbox.is_empty() && outbox.disconnect();
                }
            } else if goodbye.is_some() {
                return End::Closed;
            }
            let patience = match &progress {
                Some(progress) => self.patience(progress),
                None => CONNECT_TIMEOUT + Duration::from_secs(5),
            };
            let mut turn = match over {
                Some(why) => Turn::Over(why),
                None => tokio::select! {
                    polled = timeout(patience, contained(self.poll.poll())) => Turn::Polled(polled),
                    taken = taken(&mut self.second), if goodbye.is_none() || taking => Turn::Taken(Box::new(taken)),
                    () = is_closing(&mut self.closing), if goodbye.is_none() => {
                        goodbye = Some(Instant::now() + GOODBYE);
                        self.second.take_if(|second| !second.is_taking());
                        continue;
                    }
                    _ = sleep_until(goodbye.unwrap_or_else(Instant::now)), if goodbye.is_some() => {
                        return End::Closed;
                    }
                },
            };
            // The broker closes the connection whose place is taken.
            if !matches!(turn, Turn::Polled(Ok(Ok(Ok(_)))))
                && (goodbye.is_none() || taking)
                && let Some(second) = self.second.as_mut().filter(|second| second.is_making())
            {
                tokio::select! {
                    taken = second.made() => if let Some(taken) = taken {
                        turn = Turn::Taken(Box::new(taken));
                    },
                    () = is_over(&mut self.closing, &mut goodbye) => return End::Closed,
                }
            }
            let polled = match turn {
                Turn::Polled(polled) => polled,
                Turn::Over(why) => return End::failed(why),
                Turn::Taken(taken) => match self.switch(*taken, progress.as_ref()) {
                    Ok(new) => {
                        said_goodbye = false;
                        progress = Some(new);
                        continue;
                    }
                    Err(why) => return End::failed(why),
                },
            };
            let event = match polled {
                Ok(Ok(Ok(event))) => event,
                Ok(Ok(Err(error))) if said_goodbye => {
                    tracing::debug!(%error, "closed");
                    return End::Closed;
                }
                Ok(Ok(Err(error))) => {
                    let (why, reason) = refusal::judge(&error);
                    return End::Failed(why, reason);
                }
                Ok(Err(panic)) => {
                    self.rebuild();
                    return End::failed(format!("the MQTT client panicked: {panic}"));
                }
                Err(_) => return End::failed(format!("the broker did not react for {patience:?}")),
            };
            let handled = match event {
                Event::Incoming(Packet::ConnAck(ack)) => self.connected(&ack).map(|new| {
                    // TCP, TLS and MQTT took one each, at least.
                    self.watch(started.elapsed() / 3);
                    progress = Some(new);
                }),
                Event::Outgoing(Outgoing::PingReq) => {
                    if let Some(progress) = &mut progress {
                        progress.pinged_at.get_or_insert_with(Instant::now);
                        progress.pinging = true;
                    }
                    Ok(())
                }
                Event::Incoming(packet) => match &mut progress {
                    Some(progress) => self.received(packet, progress),
                    None => Err("the broker spoke before it accepted the connection".to_owned()),
                },
                // Then the broker closes: hanging up at once, with something still to be read, could
                // destroy the goodbye on its way.
                Event::Outgoing(Outgoing::Disconnect) => Ok(()),
                Event::Outgoing(outgoing) => {
                    self.note_order(&outgoing);
                    Ok(())
                }
            };
            if let Err(why) = handled {
                return End::failed(why);
            }
        }
    }

    fn watch(&mut self, round_trip: Duration) {
        let before = self.second.take();
        let second = Second::beside(&self.options, self.tls.as_ref(), &self.hints, round_trip);
        self.second = second.map(|second| second.in_place_of(before.as_ref()));
    }

    /// A new connection has taken the place of the old one, which ends as any does. Nobody is told of that:
    /// only that there is one, at once, since its subscriptions go before whatever is said on it, or are there.
    /// Where those of the old one had not been confirmed it is told when they are, as of any connection.
    fn switch(&mut self, taken: Taken, old: Option<&Progress>) -> Result<Progress, String> {
        self.clear_up();
        self.order.clear();
        self.poll = taken.poll;
        lock(&self.outbox).replace(taken.client);
        tracing::info!(session = taken.ack.session_present, "a new connection in the old one's place");
        let mut progress = self.connected(&taken.ack)?;
        if old.is_some_and(|old| old.subscribe == Subscribing::Done) {
            self.announce(&mut progress);
        }
        self.watch(taken.round_trip);
        Ok(progress)
    }

    /// How long the next thing may take to happen: something is sent or comes within the keep-alive, and
    /// a ping is answered.
    fn patience(&self, progress: &Progress) -> Duration {
        let silence = self.options.keep_alive.mul_f64(1.6);
        // Before rumqttc would ping again.
        let answer = PONG.min(self.options.keep_alive.mul_f64(0.8));
        let left = progress.pinged_at.map(|at| (at + answer).saturating_duration_since(Instant::now()));
        left.map_or(silence, |left| left.min(silence))
    }

    fn connected(&mut self, ack: &ConnAck) -> Result<Progress, String> {
        let limits = ack.properties.as_ref();
        let broker_packet = limits.and_then(|limits| limits.max_packet_size);
        if broker_packet.is_some_and(|bytes| bytes < 256)
            || limits.and_then(|limits| limits.receive_max) == Some(0)
        {
            return Err("the broker announces limits under which nothing can be sent".to_owned());
        }
        if limits.and_then(|limits| limits.max_qos) == Some(0) {
            return Err("the broker does not take QoS 1".to_owned());
        }
        // A server's keep-alive of zero would make pings a storm, a long one hide a dead link.
        let shortest = Duration::from_secs(5);
        let keep_alive = self.poll.options.keep_alive().clamp(shortest, self.options.keep_alive);
        self.poll.options.set_keep_alive(keep_alive);

        let ours = self.options.maximum_packet;
        let maximum_packet = broker_packet.map_or(ours, |bytes| bytes.min(ours));
        let unacknowledged = std::mem::take(&mut self.unacknowledged);
        let (fit, mut oversize): (Vec<_>, Vec<_>) =
            unacknowledged.into_iter().partition(|publish| packet_size(publish) <= maximum_packet as usize);
        {
            let mut outbox = lock(&self.outbox);
            if ack.session_present {
                self.poll.pending = fit
                    .into_iter()
                    .filter_map(|mut publish| outbox.renew(&mut publish).then_some(publish))
                    .map(|publish| Request::Publish(Publish { dup: true, ..publish }))
                    .collect();
            } else {
                self.poll.pending.clear();
                outbox.put_back(fit);
            }
            oversize.extend(outbox.connected(maximum_packet));
        }
        for publish in oversize {
            let topic = String::from_utf8_lossy(&publish.topic).into_owned();
            let size = packet_size(&publish);
            tracing::warn!(topic, size, maximum_packet, "dropped a message that the broker cannot take");
            self.inbox.event(Incoming::Dropped { topic, size });
        }
        let now = Instant::now();
        let mut progress = Progress {
            connected_at: now,
            session_present: ack.session_present,
            maximum_packet,
            subscribe: Subscribing::Due,
            announced: false,
            acknowledged_at: now,
            pinged_at: None,
            pinging: false,
        };
        if self.options.subscriptions.is_empty() {
            progress.subscribe = Subscribing::Done;
            self.announce(&mut progress);
        }
        Ok(progress)
    }

    fn received(&mut self, packet: Packet, progress: &mut Progress) -> Result<(), String> {
        progress.pinged_at = None;
        if let Some(second) = &mut self.second {
            second.heard(matches!(packet, Packet::Publish(_)));
        }
        match packet {
            Packet::PingResp(_) => progress.pinging = false,
            Packet::Publish(publish) => return self.message(publish),
            Packet::SubAck(ack) => {
                self.report_refusals(&ack);
                progress.subscribe = Subscribing::Done;
                self.announce(progress);
            }
            Packet::PubAck(_) => progress.acknowledged_at = Instant::now(),
            _ => {}
        }
        Ok(())
    }

    fn message(&self, publish: Publish) -> Result<(), String> {
        let Ok(topic) = String::from_utf8(publish.topic.to_vec()) else {
            return Err("the broker sent a topic that is not UTF-8".to_owned());
        };
        if topic.is_empty() {
            return Err("the broker used a topic alias, although it was told not to".to_owned());
        }
        let ack = (publish.qos == QoS::AtLeastOnce).then(|| (lock(&self.outbox).generation(), publish.pkid));
        if self.inbox.message(topic, publish.payload, ack, RECEIVE_MAXIMUM.into()) {
            Ok(())
        } else {
            Err("the broker sends more than it was told to before it is acknowledged".to_owned())
        }
    }

    fn report_refusals(&self, ack: &SubAck) {
        for ((filter, _), code) in self.options.subscriptions.iter().zip(&ack.return_codes) {
            if !matches!(code, SubscribeReasonCode::Success(_)) {
                tracing::warn!(filter, ?code, "the broker refused a subscription");
                self.inbox.event(Incoming::Refused { filter: filter.clone() });
            }
        }
    }

    fn announce(&self, progress: &mut Progress) {
        if !std::mem::replace(&mut progress.announced, true) {
            self.inbox.event(Incoming::Connected {
                session_present: progress.session_present,
                maximum_packet: progress.maximum_packet,
            });
        }
    }

    /// Hands over what waits, and looks for what never comes.
    fn before_poll(&mut self, progress: &mut Progress) -> Result<(), String> {
        let now = Instant::now();
        let in_flight = self.poll.state.inflight();
        // A subscription's packet id must not be one that the kept session still uses. When other
        // messages keep it busy, the session's own subscriptions serve until then.
        let ids_free = in_flight == 0 && self.poll.pending.is_empty();
        match progress.subscribe {
            Subscribing::Due if ids_free || !progress.session_present => {
                self.poll.pending.push_front(Request::Subscribe(setup::subscribe(&self.options)));
                progress.subscribe = Subscribing::Asked(now);
            }
            Subscribing::Due if now > progress.connected_at + SUBSCRIBE_TIMEOUT => {
                self.announce(progress);
            }
            Subscribing::Asked(at) if now > at + SUBSCRIBE_TIMEOUT => {
                return Err("the broker did not answer a subscription".to_owned());
            }
            _ => {}
        }
        if in_flight == 0 {
            progress.acknowledged_at = now;
        } else if now > progress.acknowledged_at + (2 * self.options.keep_alive).min(ACKNOWLEDGEMENT) {
            return Err("the broker does not acknowledge messages".to_owned());
        }
        if self.hints.take_doubt() && !progress.pinging {
            progress.pinging = true;
            self.poll.pending.push_front(Request::PingReq);
        }
        if let Some(second) = &mut self.second {
            second.awaits(in_flight > 0 || progress.pinged_at.is_some());
        }
        let mut outbox = lock(&self.outbox);
        self.poll.pending.extend(outbox.take_acks());
        if self.poll.pending.is_empty() {
            outbox.refill();
        }
        Ok(())
    }

    /// Sorts what an ended connection leaves.
    fn clear_up(&mut self) {
        self.poll.clean();
        let buffered = std::mem::take(&mut self.poll.state.events);
        let pending = std::mem::take(&mut self.poll.pending);
        let collided = self.poll.state.collision.take();
        for event in buffered {
            match event {
                // Delivered once more if it was to be acknowledged: no harm.
                Event::Incoming(Packet::Publish(publish)) => {
                    if let Err(why) = self.message(publish) {
                        tracing::debug!(why, "left behind");
                    }
                }
                Event::Outgoing(outgoing) => self.note_order(&outgoing),
                Event::Incoming(_) => {}
            }
        }
        self.keep(pending, collided);
    }

    fn note_order(&mut self, outgoing: &Outgoing) {
        if let Outgoing::Publish(pkid @ 1..) = *outgoing {
            self.order.retain(|&other| other != pkid);
            self.order.push(pkid);
        }
    }

    fn keep(&mut self, pending: VecDeque<Request>, collided: Option<Publish>) {
        let (mut sent, unsent) = sort(pending);
        let age = |publish: &Publish| self.order.iter().position(|&pkid| pkid == publish.pkid);
        sent.sort_by_key(|publish| age(publish).unwrap_or(usize::MAX));
        let mut outbox = lock(&self.outbox);
        outbox.disconnected();
        outbox.put_back(unsent);
        outbox.put_back(collided.into_iter().collect());
        self.unacknowledged.extend(sent);
    }

    /// After a panic nothing in there is to be trusted but what was to be sent.
    fn rebuild(&mut self) {
        let (client, fresh) = AsyncClient::new(anew(&self.options, self.tls.as_ref()), HANDED_OVER);
        let mut broken = std::mem::replace(&mut self.poll, fresh);
        broken.clean();
        let collided = broken.state.collision.take();
        lock(&self.outbox).replace(client);
        self.keep(broken.pending, collided);
    }
}

/// QoS 1 messages that have a packet id, and those that were never sent. QoS 0 is dropped, and so
/// is everything that only meant something to the ended connection.
fn sort(pending: VecDeque<Request>) -> (Vec<Publish>, Vec<Publish>) {
    pending
        .into_iter()
        .filter_map(|request| match request {
            Request::Publish(publish) if publish.qos != QoS::AtMostOnce => Some(publish),
            _ => None,
        })
        .partition(|publish| publish.pkid != 0)
}

fn anew(options: &Options, tls: Option<&Arc<Spoken>>) -> MqttOptions {
    setup::mqtt_options(options, tls.map(|tls| &tls.config), Start::Anew)
}

async fn taken(second: &mut Option<Second>) -> Taken {
    match second {
        Some(second) => second.taken().await,
        None => std::future::pending().await,
    }
}

/// Waits until the client is to close and has had the time for its goodbye.
async fn is_over(closing: &mut watch::Receiver<bool>, goodbye: &mut Option<Instant>) {
    is_closing(closing).await;
    sleep_until(*goodbye.get_or_insert_with(|| Instant::now() + GOODBYE)).await;
}

async fn is_closing(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}
