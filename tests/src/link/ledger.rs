//! A relay between registry and broker that spoils nothing and counts the blocks that the registry
//! sends: how many, and how many of them for the second time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use selvedge_protocol::block::Frame;
use selvedge_protocol::envelope::{Body, Envelope};

use super::packets;

/// The ledger. It lives as long as the process.
#[derive(Clone)]
pub struct Ledger {
    /// Where the registry finds its broker.
    pub address: String,
    book: Arc<Mutex<Book>>,
}

/// What was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Blobs of which at least one block was sent, counted per device.
    pub transfers: usize,
    /// Blocks.
    pub blocks: u64,
    /// Of those, blocks that had been sent to the same device before.
    pub again: u64,
}

#[derive(Default)]
struct Book {
    /// Which blob a device means by the number of a transfer, and in blocks of which size.
    transfers: BTreeMap<(String, u32), (String, u32)>,
    /// Where blocks began that were sent: device, blob, offset.
    seen: BTreeSet<(String, String, u64)>,
    blocks: u64,
    again: u64,
}

impl Ledger {
    /// A ledger before `broker`.
    pub fn before(broker: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port is free");
        let address = listener.local_addr().expect("a bound socket has an address").to_string();
        let ledger = Self { address, book: Arc::default() };
        let (book, broker) = (ledger.book.clone(), broker.to_owned());
        thread::spawn(move || {
            for registry in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&broker) else { continue };
                let (Ok(down), Ok(up)) = (registry.try_clone(), upstream.try_clone()) else { continue };
                for (from, to) in [(registry, up), (upstream, down)] {
                    let book = book.clone();
                    thread::spawn(move || carry(&from, &to, &book));
                }
            }
        });
        ledger
    }

    /// What was sent so far.
    pub fn sent(&self) -> Sent {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let blobs: BTreeSet<_> = book.seen.iter().map(|(device, digest, _)| (device, digest)).collect();
        Sent { transfers: blobs.len(), blocks: book.blocks, again: book.again }
    }
}

fn carry(mut from: &TcpStream, mut to: &TcpStream, book: &Mutex<Book>) {
    let _ = to.set_nodelay(true);
    while let Ok(packet) = packets::next(&mut from) {
        if let Some(publish) = packets::publish(&packet) {
            let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
            book.note(publish.topic, publish.payload);
        }
        if to.write_all(&packet).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Book {
    fn note(&mut self, topic: &str, payload: &[u8]) {
        let Some(device) = topic.split('/').nth(3).map(str::to_owned) else { return };
        if topic.ends_with("/up/need") {
            if let Ok(Envelope { body: Body::Need(need), .. }) = Envelope::decode(payload) {
                self.transfers.insert((device, need.transfer), (need.digest.hex(), need.block));
            }
        } else if topic.ends_with("/dn/blk")
            && let Ok(Frame::Block { transfer, number, .. }) = Frame::decode(payload)
            && let Some((digest, size)) = self.transfers.get(&(device.clone(), transfer))
        {
            self.blocks += 1;
            let offset = u64::from(number) * u64::from(*size);
            if !self.seen.insert((device, digest.clone(), offset)) {
                self.again += 1;
            }
        }
    }
}
