//! A wire between agent and broker that changes one byte in blocks on their way to the device.
//!
//! It changes only PUBLISH packets whose topic ends in `/dn/blk`, so that the connection itself stays
//! sound and what arrives wrong is a block.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::link::packets;

/// The wire. It lives as long as the test's process.
pub struct Tampering {
    /// Where the agent connects.
    pub address: String,
    left: Arc<AtomicU32>,
    seen: Arc<AtomicU32>,
}

impl Tampering {
    /// A wire to `broker` that spoils the first `count` blocks.
    pub fn of_blocks(broker: &str, count: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let (left, seen) = (Arc::new(AtomicU32::new(count)), Arc::new(AtomicU32::new(0)));
        let wire = Self { address, left: left.clone(), seen: seen.clone() };
        let broker = broker.to_owned();
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&broker) else { continue };
                let (Ok(agent_out), Ok(mut upstream_out)) = (agent.try_clone(), upstream.try_clone()) else {
                    continue;
                };
                let (left, seen) = (left.clone(), seen.clone());
                let mut agent_in = agent;
                thread::spawn(move || {
                    let _ = io::copy(&mut agent_in, &mut upstream_out);
                    let _ = upstream_out.shutdown(std::net::Shutdown::Both);
                });
                thread::spawn(move || {
                    let _ = carry(upstream, &agent_out, &left, &seen);
                    let _ = agent_out.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        wire
    }

    /// How many blocks were spoiled, and how many passed in all.
    pub fn counts(&self, spoil: u32) -> (u32, u32) {
        (spoil - self.left.load(Ordering::SeqCst), self.seen.load(Ordering::SeqCst))
    }
}

fn carry(mut from: TcpStream, mut to: &TcpStream, left: &AtomicU32, seen: &AtomicU32) -> io::Result<()> {
    loop {
        let mut packet = packets::next(&mut from)?;
        if packets::publish(&packet).is_some_and(|publish| publish.topic.ends_with("/dn/blk")) {
            seen.fetch_add(1, Ordering::SeqCst);
            let spoil = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
            if spoil && let Some(last) = packet.last_mut() {
                *last ^= 0x40;
            }
        }
        to.write_all(&packet)?;
    }
}
