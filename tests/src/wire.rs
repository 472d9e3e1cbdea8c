//! A wire between agent and broker that counts what each side sends through it: bytes, and about how many
//! TCP segments they travel in.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Bytes of TLS that one TCP segment carries on most links.
const SEGMENT: u64 = 1400;
/// Bytes of a segment beside them: IPv4 and TCP with timestamps. With IPv6 it is 20 more.
const HEADERS: u64 = 52;

/// The wire. It lives as long as the process.
pub struct Wire {
    /// Where the agent connects.
    pub address: String,
    up: Arc<Counts>,
    down: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    /// What was read at once was sent at once, as a rule.
    segments: AtomicU64,
    connections: AtomicU64,
}

impl Wire {
    /// A wire to `broker`.
    pub fn to(broker: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let wire = Self { address, up: Arc::default(), down: Arc::default() };
        let (up, down, broker) = (Arc::clone(&wire.up), Arc::clone(&wire.down), broker.to_owned());
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&broker) else { continue };
                let (Ok(to_agent), Ok(to_broker)) = (agent.try_clone(), upstream.try_clone()) else {
                    continue;
                };
                up.connections.fetch_add(1, Ordering::SeqCst);
                for (from, to, count) in
                    [(agent, to_broker, Arc::clone(&up)), (upstream, to_agent, Arc::clone(&down))]
                {
                    let _ = from.set_nodelay(true);
                    thread::spawn(move || carry(from, to, &count));
                }
            }
        });
        wire
    }

    /// Bytes that the agent has sent.
    pub fn up(&self) -> u64 {
        self.up.bytes.load(Ordering::SeqCst)
    }

    /// Bytes that it was sent.
    pub fn down(&self) -> u64 {
        self.down.bytes.load(Ordering::SeqCst)
    }

    /// How often the agent has sent something.
    pub fn sent(&self) -> u64 {
        self.up.segments.load(Ordering::SeqCst)
    }

    /// How often it has connected.
    pub fn connections(&self) -> u64 {
        self.up.connections.load(Ordering::SeqCst)
    }

    /// What a link is charged with both ways, at most: the bytes, the headers of their segments, and one
    /// acknowledgement without anything else in it for each.
    pub fn charged(&self) -> u64 {
        let count = |count: &Counts| {
            count.bytes.load(Ordering::SeqCst) + 2 * HEADERS * count.segments.load(Ordering::SeqCst)
        };
        count(&self.up) + count(&self.down)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, count: &Counts) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        count.bytes.fetch_add(read as u64, Ordering::SeqCst);
        count.segments.fetch_add((read as u64).div_ceil(SEGMENT), Ordering::SeqCst);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
