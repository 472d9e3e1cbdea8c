//! A relay that reads MQTT and treats messages of QoS 0 as the protocol allows: it loses, doubles and
//! reorders them. All other packets pass in their order, for nothing else would be MQTT.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::{Chance, packets};

/// How many messages of a thousand fare how; the same both ways.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manners {
    /// Lost.
    pub drop: u64,
    /// Sent twice.
    pub double: u64,
    /// Held back until a few later ones have gone.
    pub reorder: u64,
}

/// The relay. It lives as long as the process.
#[derive(Clone)]
pub struct Relay {
    /// Where to connect.
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    manners: Manners,
    chance: Chance,
    dropped: AtomicU64,
    doubled: AtomicU64,
    reordered: AtomicU64,
}

impl Relay {
    /// A relay to `broker`.
    pub fn to(broker: &str, manners: Manners, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let shared = Arc::new(Shared {
            manners,
            chance: Chance::new(seed),
            dropped: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
        });
        let (relay, broker) = (Self { address, shared: shared.clone() }, broker.to_owned());
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&broker) else { continue };
                let (Ok(to_agent), Ok(to_broker)) = (agent.try_clone(), upstream.try_clone()) else {
                    continue;
                };
                for (from, to) in [(agent, to_broker), (upstream, to_agent)] {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.carry(&from, &to);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        relay
    }

    /// Messages that were lost, doubled and held back.
    pub fn faults(&self) -> (u64, u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        (of(&self.shared.dropped), of(&self.shared.doubled), of(&self.shared.reordered))
    }
}

impl Shared {
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let _ = to.set_nodelay(true);
        // What is held back, and after how many more messages it goes.
        let mut held: Option<(u64, Vec<u8>)> = None;
        while let Ok(packet) = packets::next(&mut from) {
            let mut out = Vec::new();
            if packets::publish(&packet).is_some_and(|publish| publish.qos == 0) {
                if self.chance.per_mille(self.manners.drop) {
                    self.dropped.fetch_add(1, Ordering::SeqCst);
                } else if held.is_none() && self.chance.per_mille(self.manners.reorder) {
                    self.reordered.fetch_add(1, Ordering::SeqCst);
                    // Where nothing follows it never goes: one more that is lost.
                    held = Some((1 + self.chance.below(4), packet));
                    continue;
                } else {
                    out.extend(&packet);
                    if self.chance.per_mille(self.manners.double) {
                        self.doubled.fetch_add(1, Ordering::SeqCst);
                        out.extend(&packet);
                    }
                }
            } else {
                out.extend(&packet);
            }
            held = match held {
                Some((0, late)) => {
                    out.extend(&late);
                    None
                }
                Some((after, late)) => Some((after - 1, late)),
                None => None,
            };
            if to.write_all(&out).is_err() {
                break;
            }
        }
    }
}
