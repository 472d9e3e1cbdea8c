//! A cable that is long, thin, or bad: it carries bytes and knows nothing of what they mean.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Chance;
use crate::clock;

/// Bytes that are moved at a time, and how many such pieces may be under way: a bounded queue.
const PIECE: usize = 4 * 1024;
const PIECES: usize = 64;

/// What the cable is like. The default is a good one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// Time that a byte takes, each way.
    pub delay: Duration,
    /// Bytes a second, each way; 0: as many as come.
    pub rate: u64,
    /// The connection is cut about every so many bytes; 0: never.
    pub cut_every: u64,
    /// So long after a cut nobody is let in.
    pub away: Duration,
    /// About every so many bytes one way falls silent, while the other goes on and nobody is told;
    /// that connection never recovers. 0: never.
    pub silent_every: u64,
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the agent.
    Up,
    /// To the agent.
    Down,
}

/// The cable. It lives as long as the process.
#[derive(Clone)]
pub struct Cable {
    /// Where the agent connects.
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    weather: Mutex<Weather>,
    chance: Chance,
    /// Bytes until the next cut and the next silence.
    cut_in: AtomicU64,
    silent_in: AtomicU64,
    away_until: Mutex<Option<Instant>>,
    unplugged: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
    cuts: AtomicU64,
    silences: AtomicU64,
}

struct Connection {
    ends: [TcpStream; 2],
    silent: [AtomicBool; 2],
}

impl Connection {
    fn end(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Cable {
    /// A cable to `broker`.
    pub fn to(broker: &str, weather: Weather, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let chance = Chance::new(seed);
        let (cut_in, silent_in) = (chance.around(weather.cut_every), chance.around(weather.silent_every));
        let shared = Arc::new(Shared {
            weather: Mutex::new(weather),
            chance,
            cut_in: AtomicU64::new(cut_in),
            silent_in: AtomicU64::new(silent_in),
            away_until: Mutex::default(),
            unplugged: AtomicBool::new(false),
            connections: Mutex::default(),
            cuts: AtomicU64::new(0),
            silences: AtomicU64::new(0),
        });
        let (cable, broker) = (Self { address, shared: shared.clone() }, broker.to_owned());
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                if !shared.is_away() {
                    shared.connect(agent, &broker);
                }
            }
        });
        cable
    }

    /// From now on it is like this.
    pub fn set(&self, weather: Weather) {
        let shared = &self.shared;
        *lock(&shared.weather) = weather;
        shared.cut_in.store(shared.chance.around(weather.cut_every), Ordering::SeqCst);
        shared.silent_in.store(shared.chance.around(weather.silent_every), Ordering::SeqCst);
    }

    /// Cuts every connection and lets nobody in until [`Cable::plug_in`].
    pub fn unplug(&self) {
        self.shared.unplugged.store(true, Ordering::SeqCst);
        self.shared.cut();
    }

    /// Lets everyone in again.
    pub fn plug_in(&self) {
        self.shared.unplugged.store(false, Ordering::SeqCst);
    }

    /// Cuts every connection; who comes back is let in.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// One way of every connection that there is falls silent, for good; new ones are good.
    pub fn silence(&self, way: Way) {
        for connection in &*lock(&self.shared.connections) {
            connection.silent[way as usize].store(true, Ordering::SeqCst);
        }
        self.shared.silences.fetch_add(1, Ordering::SeqCst);
    }

    /// How often it was cut, and how often it fell silent.
    pub fn faults(&self) -> (u64, u64) {
        (self.shared.cuts.load(Ordering::SeqCst), self.shared.silences.load(Ordering::SeqCst))
    }
}

impl Shared {
    fn is_away(&self) -> bool {
        let until = *lock(&self.away_until);
        self.unplugged.load(Ordering::SeqCst) || until.is_some_and(|until| clock::now() < until)
    }

    fn connect(self: &Arc<Self>, agent: TcpStream, broker: &str) {
        let Ok(upstream) = TcpStream::connect(broker) else { return };
        let (Ok(agent_too), Ok(upstream_too)) = (agent.try_clone(), upstream.try_clone()) else { return };
        let connection = Arc::new(Connection { ends: [agent_too, upstream_too], silent: Default::default() });
        {
            let mut all = lock(&self.connections);
            all.retain(|one| Arc::strong_count(one) > 1);
            all.push(connection.clone());
        }
        let (Ok(to_agent), Ok(to_broker)) = (agent.try_clone(), upstream.try_clone()) else { return };
        for (from, to, way) in [(agent, to_broker, Way::Up), (upstream, to_agent, Way::Down)] {
            let _ = to.set_nodelay(true);
            let (sender, receiver) = sync_channel(PIECES);
            let (shared, one) = (self.clone(), connection.clone());
            thread::spawn(move || shared.take(from, &sender, &one, way));
            let (shared, one) = (self.clone(), connection.clone());
            thread::spawn(move || shared.give(to, &receiver, &one));
        }
    }

    fn take(
        &self,
        mut from: TcpStream,
        to: &SyncSender<(Instant, Vec<u8>)>,
        connection: &Connection,
        way: Way,
    ) {
        let mut piece = vec![0; PIECE];
        let mut free_at = clock::now();
        while let Ok(read @ 1..) = from.read(&mut piece) {
            let weather = *lock(&self.weather);
            self.spoil(&weather, connection, way, read as u64);
            if connection.silent[way as usize].load(Ordering::SeqCst) {
                continue;
            }
            if weather.rate > 0 {
                let takes = Duration::from_secs_f64(read as f64 / weather.rate as f64);
                free_at = free_at.max(clock::now()) + takes;
            } else {
                free_at = clock::now();
            }
            if to.send((free_at + weather.delay, piece[..read].to_vec())).is_err() {
                break;
            }
        }
    }

    fn give(&self, mut to: TcpStream, from: &Receiver<(Instant, Vec<u8>)>, connection: &Connection) {
        for (due, piece) in from {
            thread::sleep(due.saturating_duration_since(clock::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        connection.end();
    }

    /// The faults that these bytes bring about.
    fn spoil(&self, weather: &Weather, connection: &Connection, way: Way, bytes: u64) {
        if weather.cut_every > 0 && used_up(&self.cut_in, bytes) {
            self.cut_in.store(self.chance.around(weather.cut_every), Ordering::SeqCst);
            *lock(&self.away_until) = Some(clock::now() + weather.away);
            self.cut();
        }
        if weather.silent_every > 0 && used_up(&self.silent_in, bytes) {
            self.silent_in.store(self.chance.around(weather.silent_every), Ordering::SeqCst);
            // Either way: the one that spoke just now, or the other.
            let which = if self.chance.per_mille(500) { way as usize } else { 1 - way as usize };
            connection.silent[which].store(true, Ordering::SeqCst);
            self.silences.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        for connection in lock(&self.connections).drain(..) {
            connection.end();
        }
    }
}

/// Takes `bytes` off; true where that leaves nothing.
fn used_up(left: &AtomicU64, bytes: u64) -> bool {
    let take = |left: u64| Some(left.saturating_sub(bytes));
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok_and(|before| before <= bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
