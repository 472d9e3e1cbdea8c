//! A second way to the broker while the first is silent: after a cut TCP tries again ever more rarely, and
//! the link may be back for as long as it was away before an old connection notices.
//!
//! First come bare TCP dials, which cost a packet each and the broker nothing. When they were in vain and
//! then one is answered, the link is back, and a new connection is made: TCP, TLS, MQTT. The old one is
//! read meanwhile (unless rumqttc waits there for room to write, when it reads nothing), and where it speaks before the broker has shown its certificate on the new one,
//! that is dropped, unused. Only then is CONNECT sent, which takes the old one's place at the broker.
//! Something in between that takes every connection and says nothing, or cannot prove to be the broker,
//! thus never costs the old one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng as _;
use rumqttc::v5::mqttbytes::v5::{ConnAck, Packet};
use rumqttc::v5::{AsyncClient, Event, EventLoop};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::contained::contained;
use crate::hints::Hints;
use crate::options::Options;
use crate::setup::{self, Start};
use crate::silence::{Awaited, Silence, Verdict, spread};
use crate::tls::Spoken;

/// How long a dial may take, and how many run at a time.
const DIAL: Duration = Duration::from_secs(4);
const DIALS: usize = 10;
/// How long the broker may take to show its certificate, and then to accept the connection.
const HANDSHAKE: Duration = Duration::from_secs(6);
const ACCEPTANCE: Duration = Duration::from_secs(15);
/// How long a name that could not be looked up is left alone.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(60);
/// Addresses of one name that are dialled.
const ADDRESSES: usize = 8;

/// A new connection that has taken the old one's place.
pub(crate) struct Taken {
    pub client: AsyncClient,
    pub poll: EventLoop,
    pub ack: ConnAck,
    /// Each of its round trips took so long at most.
    pub round_trip: Duration,
}

pub(crate) struct Second {
    options: Options,
    tls: Arc<Spoken>,
    hints: Arc<Hints>,
    silence: Silence,
    /// Whether an answer is awaited.
    answer: bool,
    /// Where the broker is: looked up while there is a connection, since without one nothing is.
    addresses: Vec<SocketAddr>,
    lookup: Option<Lookup>,
    look_up_at: Instant,
    /// Its turn in its fleet, 0..1.
    place: f64,
    turn: usize,
    dials: JoinSet<(SocketAddr, io::Result<()>)>,
    /// The link is back: when the new connection is to be made.
    make_at: Option<Instant>,
    making: Option<Making>,
}

struct Lookup(JoinHandle<Vec<SocketAddr>>);

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What makes it, and says how that ended.
type Attempt = Pin<Box<dyn Future<Output = (EventLoop, Result<ConnAck, String>)> + Send>>;

/// A connection that is being made.
struct Making {
    client: AsyncClient,
    attempt: Attempt,
    since: Instant,
    /// Whether the broker has shown a certificate that is believed: what comes next is CONNECT.
    believed: Arc<AtomicBool>,
}

impl Second {
    /// Beside a connection that is there since now, where a second one makes sense. `round_trip`: each took so
    /// long at most.
    pub fn beside(
        options: &Options,
        tls: Option<&Arc<Spoken>>,
        hints: &Arc<Hints>,
        round_trip: Duration,
    ) -> Option<Self> {
        let tls = tls.filter(|_| options.second)?;
        let mut second = Self {
            options: options.clone(),
            tls: tls.clone(),
            hints: hints.clone(),
            silence: Silence::new(Instant::now(), round_trip),
            answer: false,
            addresses: Vec::new(),
            lookup: None,
            look_up_at: Instant::now(),
            place: rand::rng().random(),
            turn: 0,
            dials: JoinSet::new(),
            make_at: None,
            making: None,
        };
        second.look_up();
        Some(second)
    }

    /// An address needs no looking up; a name has a thread of the program's looking for it.
    fn look_up(&mut self) {
        let (host, port) = (self.options.broker.host().to_owned(), self.options.broker.port());
        if let Ok(address) = host.parse::<IpAddr>() {
            self.addresses = vec![(address, port).into()];
            return;
        }
        self.lookup = Some(Lookup(tokio::spawn(async move {
            let found = lookup_host((host, port)).await;
            found.map(|found| found.take(ADDRESSES).collect()).unwrap_or_default()
        })));
    }

    /// What was learned beside the connection whose place this one has taken.
    pub fn in_place_of(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before {
            self.silence = self.silence.in_place_of(&before.silence);
        }
        self
    }

    /// Whether an answer is awaited on the old connection; whether blocks are is hinted.
    pub fn awaits(&mut self, answer: bool) {
        self.answer = answer;
        self.look();
    }

    fn look(&mut self) {
        let awaited = match (self.hints.awaited(), self.answer) {
            (true, _) => Some(Awaited::Blocks),
            (false, true) => Some(Awaited::Answer),
            (false, false) => None,
        };
        self.silence.among(self.hints.fleet(), self.place);
        self.silence.awaits(awaited, Instant::now());
    }

    /// The old connection speaks: it is kept, unless its place is taken already.
    pub fn heard(&mut self, message: bool) {
        self.silence.heard(message, Instant::now());
        self.make_at = None;
        if !self.dials.is_empty() {
            self.dials = JoinSet::new();
        }
        if self.making.is_some() && !self.is_taking() {
            tracing::debug!("the connection to the broker speaks again: the second one is dropped");
            self.making = None;
        }
    }

    /// Whether there is to be a new connection: what becomes of the old one matters less.
    pub fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// Whether the old connection's place is being taken: it is about to be closed by the broker.
    pub fn is_taking(&self) -> bool {
        self.making.as_ref().is_some_and(|making| making.believed.load(Ordering::Relaxed))
    }

    /// Does what there is to do, until there is a new connection. May be dropped and called again.
    pub async fn taken(&mut self) -> Taken {
        loop {
            if self.making.is_some() {
                match self.made().await {
                    Some(taken) => return taken,
                    None => self.silence.in_vain(rand::rng().random(), Instant::now()),
                }
            } else if let Some(at) = self.make_at {
                sleep_until(at).await;
                self.make_at = None;
                self.make();
            } else {
                self.dial().await;
            }
        }
    }

    /// Waits for the new connection that is being made; `None`: there will be none.
    pub async fn made(&mut self) -> Option<Taken> {
        let making = self.making.as_mut()?;
        let (shown, accepted) = (making.since + HANDSHAKE, making.since + HANDSHAKE + ACCEPTANCE);
        let made = match timeout_at(shown, &mut making.attempt).await {
            Err(_) if making.believed.load(Ordering::Relaxed) => {
                timeout_at(accepted, &mut making.attempt).await
            }
            made => made,
        };
        let making = self.making.take()?;
        match made {
            Ok((poll, Ok(ack))) => {
                let round_trip = making.since.elapsed() / 3;
                return Some(Taken { client: making.client, poll, ack, round_trip });
            }
            Ok((_, Err(why))) => tracing::info!(why, "no second connection to the broker"),
            Err(_) => tracing::info!("no second connection to the broker: it took too long"),
        }
        None
    }

    /// Dials when it is time, and judges what comes of it.
    async fn dial(&mut self) {
        let at = self.silence.dial_at().filter(|_| !self.addresses.is_empty() || self.lookup.is_none());
        let at = at.map(|at| if self.addresses.is_empty() { at.max(self.look_up_at) } else { at });
        tokio::select! {
            Some(dialled) = self.dials.join_next(), if !self.dials.is_empty() => {
                // A refusal is no answer: whoever refuses may be anybody, and the broker it is not.
                if let Ok((address, Ok(()))) = dialled {
                    self.answered(address);
                }
            }
            addresses = found(&mut self.lookup), if self.lookup.is_some() => {
                self.lookup = None;
                self.addresses = addresses;
                self.look_up_at = Instant::now() + LOOK_UP_AGAIN;
            }
            () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {
                // What was awaited may have been given up meanwhile.
                self.look();
                if self.silence.dial_at().is_some_and(|at| at <= Instant::now()) {
                    match self.addresses.is_empty() {
                        true => self.look_up(),
                        false => self.dial_one(),
                    }
                }
            }
            else => std::future::pending().await,
        }
    }

    fn dial_one(&mut self) {
        let address = self.addresses[self.turn % self.addresses.len()];
        self.turn += 1;
        self.silence.dialled(address, self.hints.fleet(), rand::rng().random(), Instant::now());
        if self.dials.len() < DIALS {
            self.dials.spawn(async move {
                let dialled = timeout(DIAL, TcpStream::connect(address)).await;
                (address, dialled.unwrap_or_else(|late| Err(late.into())).map(drop))
            });
        }
    }

    fn answered(&mut self, address: SocketAddr) {
        let now = Instant::now();
        let verdict = self.silence.answered(address, rand::rng().random(), now);
        tracing::debug!(%address, ?verdict, "the broker was dialled since its connection is silent");
        self.dials = JoinSet::new();
        if verdict == Verdict::Back {
            self.make_at = Some(now + spread(self.hints.fleet(), rand::rng().random()));
        }
    }

    fn make(&mut self) {
        tracing::info!("the link to the broker is back and the connection silent: making a new one");
        let believed = Arc::new(AtomicBool::new(false));
        let config = self.tls.reporting(believed.clone());
        let options = setup::mqtt_options(&self.options, Some(&config), Start::InPlace);
        let (client, mut poll) = AsyncClient::new(options, setup::HANDED_OVER);
        let attempt = Box::pin(async move {
            let accepted = match contained(poll.poll()).await {
                Ok(Ok(Event::Incoming(Packet::ConnAck(ack)))) => Ok(ack),
                Ok(Ok(other)) => Err(format!("{other:?} comes first")),
                Ok(Err(error)) => Err(crate::refusal::judge(&error).0),
                Err(panic) => Err(format!("the MQTT client panicked: {panic}")),
            };
            (poll, accepted)
        });
        self.making = Some(Making { client, attempt, since: Instant::now(), believed });
    }
}

async fn found(lookup: &mut Option<Lookup>) -> Vec<SocketAddr> {
    match lookup {
        Some(lookup) => (&mut lookup.0).await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}
