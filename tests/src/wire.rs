//! A wire between agent and broker that counts the bytes which each side sends through it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The wire. It lives as long as the process.
pub struct Wire {
    /// Where the agent connects.
    pub address: String,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
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
        self.up.load(Ordering::SeqCst)
    }

    /// Bytes that it was sent.
    pub fn down(&self) -> u64 {
        self.down.load(Ordering::SeqCst)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        count.fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
