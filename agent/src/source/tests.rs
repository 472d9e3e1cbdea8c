//! Blobs from a real web server on loopback that behaves as it should, and as it should not, into the
//! device's own store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use selvedge_mqtt::TlsTime;
use selvedge_package::Origin;
use selvedge_package::chunks::{ChunkIndex, Indexed};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::web::{Manner, Web};
use super::*;
use crate::clock;
use crate::store::{Partial, RealDisk, Store};

pub(super) const HASTE: Patience = Patience {
    connect: Duration::from_secs(5),
    answer: Duration::from_millis(400),
    silence: Duration::from_millis(400),
    block: Duration::from_millis(800),
    idle: Duration::from_millis(300),
    pace: Duration::from_millis(900),
    lowest: 100 * 1024,
};

/// For servers of which nothing slow is wanted, whatever else the machine does.
pub(super) const CALM: Patience = Patience {
    connect: LONG,
    answer: LONG,
    silence: LONG,
    block: LONG,
    idle: HASTE.idle,
    pace: LONG,
    lowest: HASTE.lowest,
};
const LONG: Duration = Duration::from_secs(60);

pub(super) fn bytes(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn index(bytes: &[u8]) -> ChunkIndex {
    let indexed = Indexed::of(bytes);
    match indexed.indexes.first() {
        None => ChunkIndex::without_index(indexed.digest, indexed.size).unwrap(),
        Some((_, index)) => ChunkIndex::parse(index, indexed.size).unwrap(),
    }
}

pub(super) struct Bench {
    pub(super) place: tempfile::TempDir,
    pub(super) store: Store,
    pub(super) sources: Sources<Partial>,
    events: mpsc::UnboundedReceiver<Event>,
    pub(super) origins: Vec<Origin>,
    pub(super) told: Vec<String>,
}

/// How a transfer ended.
#[expect(clippy::large_enum_variant, reason = "there are few")]
enum End {
    Done(Digest),
    Fallen(Digest, Partial),
}

impl Bench {
    pub(super) fn new(origins: &[String]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(Arc::new(RealDisk), &place.path().join("device")).unwrap();
        std::fs::create_dir_all(place.path().join("web/blobs/sha256")).unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let say: Say = Arc::new(move |event| drop(sender.send(event)));
        let sources = Sources::new(1, say);
        let origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
        let mut bench = Self { place, store, sources, events, origins, told: Vec::new() };
        bench.patience(CALM);
        bench
    }

    pub(super) fn patience(&mut self, patience: Patience) {
        let now = || TlsTime { at: SystemTime::UNIX_EPOCH, synchronised: false };
        let file = Some(self.place.path().join("ca.pem"));
        self.sources.allow(Authorities { file, now: Arc::new(now) }, patience);
    }

    /// A bench with one good server.
    pub(super) fn with_web() -> (Self, Web) {
        let mut bench = Self::new(&[]);
        let web = bench.web();
        bench.origins = vec![web.source().parse().unwrap()];
        (bench, web)
    }

    pub(super) fn web(&self) -> Web {
        Web::serve(&self.place.path().join("web"))
    }

    pub(super) fn publish(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        std::fs::write(self.place.path().join("web/blobs/sha256").join(digest.hex()), bytes).unwrap();
        digest
    }

    pub(super) fn partial(&self, bytes: &[u8]) -> Partial {
        self.store.partial(Digest::of(bytes), index(bytes)).unwrap()
    }

    pub(super) fn start(&mut self, partial: Partial) {
        let digest = partial.digest();
        let mut known = std::mem::take(&mut self.sources.known);
        known.insert(digest, self.origins.clone());
        self.sources.wanted(known);
        assert!(self.sources.carries(&digest, clock::since_boot()));
        assert!(self.sources.add(clock::since_boot(), digest, partial).is_empty());
    }

    /// Runs until a transfer has ended.
    async fn end(&mut self) -> End {
        let run = async {
            loop {
                let now = clock::since_boot();
                let wake = self.sources.wake_at().map_or(Duration::from_secs(9), |at| at.saturating_sub(now));
                let (actions, fallen) = match timeout(wake, self.events.recv()).await {
                    Ok(event) => {
                        let outcome = self.sources.take(event.unwrap(), clock::since_boot(), 0.0);
                        self.told.extend(outcome.told);
                        (outcome.actions, outcome.fallen)
                    }
                    Err(_) => {
                        self.sources.over(clock::since_boot());
                        (self.sources.tick(clock::since_boot()), Vec::new())
                    }
                };
                if let Some((digest, partial)) = fallen.into_iter().next() {
                    return End::Fallen(digest, partial);
                }
                if let Some(Action::Done { digest, target }) = actions.into_iter().next() {
                    target.finish().unwrap();
                    return End::Done(digest);
                }
            }
        };
        timeout(Duration::from_secs(60), run).await.expect("a transfer ends")
    }

    /// Runs until so many bytes of a blob are kept.
    pub(super) async fn until(&mut self, digest: Digest, bytes: u64) {
        let has = |bench: &Self| {
            bench.sources.transfers().progress().any(|p| p.digest == digest && p.bytes >= bytes)
        };
        while !has(self) {
            let event = self.events.recv().await.unwrap();
            let outcome = self.sources.take(event, clock::since_boot(), 0.0);
            assert!(outcome.fallen.is_empty());
        }
    }

    pub(super) async fn comes(&mut self, bytes: &[u8]) {
        match self.end().await {
            End::Done(digest) => {
                assert_eq!(digest, Digest::of(bytes));
                assert_eq!(self.store.read_small(&digest, 1 << 30).unwrap(), bytes);
            }
            End::Fallen(digest, _) => panic!("{digest} fell: {:?}", self.told),
        }
    }

    /// Runs until all of these have come, in whatever order.
    pub(super) async fn all_come(&mut self, blobs: &[Vec<u8>]) {
        let mut wanted: BTreeSet<Digest> = blobs.iter().map(|blob| Digest::of(blob)).collect();
        while !wanted.is_empty() {
            match self.end().await {
                End::Done(digest) => assert!(wanted.remove(&digest)),
                End::Fallen(digest, _) => panic!("{digest} fell: {:?}", self.told),
            }
        }
    }

    pub(super) async fn falls(&mut self, why: &str) -> Partial {
        match self.end().await {
            End::Fallen(_, partial) => {
                assert!(self.told.iter().any(|told| told.contains(why)), "{why}: {:?}", self.told);
                partial
            }
            End::Done(_) => panic!("it came although {why}"),
        }
    }
}

#[tokio::test]
async fn a_blob_comes_in_ranges_over_one_connection_and_none_is_sent_twice() {
    let (mut bench, web) = Bench::with_web();
    let large = bytes(9_300_000);
    bench.publish(&large);
    bench.start(bench.partial(&large));
    bench.comes(&large).await;
    let heads = web.heads();
    let ranges: Vec<_> =
        heads.iter().filter_map(|head| head.split("range: bytes=").nth(1)?.lines().next()).collect();
    assert_eq!(ranges, ["0-4194303", "4194304-8388607", "8388608-9299999"], "{heads:?}");
    assert!(heads.iter().all(|head| head.contains("accept-encoding: identity")), "{heads:?}");
    assert_eq!((web.given(), web.connections()), (9_300_000, (1, 1)));
    let received = bench.sources.take_received();
    assert!((9_300_001..9_301_000).contains(&received), "{received} bytes counted");
    assert_eq!(bench.sources.take_received(), 0);
}

#[tokio::test]
async fn only_what_is_lacking_is_asked_for_and_small_blobs_share_a_connection() {
    let (mut bench, web) = Bench::with_web();
    let large = bytes(1_000_000);
    bench.publish(&large);
    let mut partial = bench.partial(&large);
    for chunk in [0, 1, 5, 6, 15] {
        let start = chunk as usize * 65_536;
        partial.put(chunk, &large[start..(start + 65_536).min(large.len())]).unwrap();
    }
    bench.start(partial);
    bench.comes(&large).await;
    let lacking = 1_000_000 - 4 * 65_536 - (1_000_000 - 15 * 65_536);
    assert_eq!((web.given(), web.heads().len()), (lacking, 2));
    for size in [1, 100, 65_536, 65_537] {
        let small = bytes(size);
        bench.publish(&small);
        bench.start(bench.partial(&small));
        bench.comes(&small).await;
    }
    assert_eq!(web.connections(), (1, 1));
}

#[tokio::test]
async fn several_at_once_use_two_connections_at_most() {
    let (mut bench, web) = Bench::with_web();
    let blobs: Vec<Vec<u8>> = (0..5).map(|n| bytes(700_000 + n)).collect();
    for blob in &blobs {
        bench.publish(blob);
        bench.start(bench.partial(blob));
    }
    let port = format!(":{:04X} 01 ", web.address.rsplit(':').next().unwrap().parse::<u16>().unwrap());
    // Ends of ours that are connected, as the kernel counts them.
    let mut at_once = BTreeSet::new();
    while !blobs.iter().all(|blob| bench.store.has(&Digest::of(blob)).unwrap()) {
        let event = bench.events.recv().await.unwrap();
        let outcome = bench.sources.take(event, clock::since_boot(), 0.0);
        assert!(outcome.fallen.is_empty());
        for action in outcome.actions {
            let Action::Done { target, .. } = action else { panic!("a transfer failed") };
            target.finish().unwrap();
        }
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        // It is read in pieces, and lines come again where it changes: told apart by our end's address.
        let ours = table.lines().filter(|line| line.contains(&port));
        let ends: BTreeSet<String> =
            ours.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect();
        if ends.len() > at_once.len() {
            at_once = ends;
        }
    }
    assert_eq!(at_once.len(), 2, "connections at a time: {at_once:?}; {} in all", web.connections().0);
}

#[tokio::test]
async fn a_server_without_ranges_gives_the_whole_once_and_is_not_asked_for_a_late_rest() {
    let (mut bench, web) = Bench::with_web();
    web.set(Manner::NoRanges);
    let large = bytes(6_000_000);
    bench.publish(&large);
    bench.start(bench.partial(&large));
    bench.comes(&large).await;
    assert_eq!((web.given(), web.heads().len()), (6_000_000, 1));
    // The beginning is here: a little is read for nothing, most of a blob is not.
    let other = bytes(7_000_000);
    bench.publish(&other);
    let mut partial = bench.partial(&other);
    for chunk in 0..20 {
        partial.put(chunk, &other[chunk as usize * 65_536..][..65_536]).unwrap();
    }
    bench.start(partial);
    bench.comes(&other).await;
    assert_eq!(web.given(), 13_000_000);
    let third = bytes(8_000_000);
    bench.publish(&third);
    let mut partial = bench.partial(&third);
    for chunk in 0..100 {
        partial.put(chunk, &third[chunk as usize * 65_536..][..65_536]).unwrap();
    }
    bench.start(partial);
    let kept = bench.falls("no ranges").await;
    assert_eq!(kept.bytes(), 100 * 65_536);
}

#[tokio::test]
async fn redirections_are_followed_and_remembered() {
    let (mut bench, first) = Bench::with_web();
    let second = bench.web();
    first.set(Manner::Elsewhere(format!("http://{}", second.address)));
    let blob = bytes(9_000_000);
    bench.publish(&blob);
    bench.start(bench.partial(&blob));
    bench.comes(&blob).await;
    assert_eq!((first.heads().len(), second.heads().len(), second.given()), (1, 3, 9_000_000));
}

/// How many bytes a request asks for.
fn ranged(head: &str) -> u64 {
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let (first, last) = range.and_then(|range| range.split_once('-')).unwrap_or_else(|| panic!("{head}"));
    last.parse::<u64>().unwrap() + 1 - first.parse::<u64>().unwrap()
}

#[tokio::test]
async fn what_is_given_up_says_nothing_any_more_and_keeps_what_came() {
    let (mut bench, web) = Bench::with_web();
    let blob = bytes(3_000_000);
    let digest = bench.publish(&blob);
    bench.start(bench.partial(&blob));
    bench.until(digest, 600_000).await;
    let (partial, actions) = bench.sources.cancel(clock::since_boot(), &digest);
    let kept = partial.unwrap().bytes();
    assert!(actions.is_empty() && kept >= 600_000, "{kept} bytes");
    // Frames that were on their way belong to nothing.
    while let Ok(event) = bench.events.try_recv() {
        let outcome = bench.sources.take(event, clock::since_boot(), 0.0);
        assert!(outcome.actions.is_empty() && outcome.fallen.is_empty());
    }
    // What the server still had on its way to nobody does not count.
    let asked = web.heads().len();
    bench.start(bench.partial(&blob));
    bench.comes(&blob).await;
    let again: u64 = web.heads()[asked..].iter().map(|head| ranged(head)).sum();
    assert!((1..=3_000_000 - kept).contains(&again), "{again} bytes were asked for again, {kept} kept");
}

#[tokio::test]
async fn a_server_is_asked_for_no_more_than_a_budget_holds() {
    let (mut bench, web) = Bench::with_web();
    let blob = bytes(3_000_000);
    let digest = bench.publish(&blob);
    assert!(bench.sources.hold_to(clock::since_boot(), Some(600_000)).is_empty());
    bench.start(bench.partial(&blob));
    // What was asked for still comes; then the connection is given up.
    let (mut left, wait) = (600_000u64, HASTE.idle * 4);
    while let Ok(event) = timeout(wait, bench.events.recv()).await {
        left = left.saturating_sub(bench.sources.take_received());
        assert!(bench.sources.hold_to(clock::since_boot(), Some(left)).is_empty());
        bench.sources.take(event.unwrap(), clock::since_boot(), 0.0);
    }
    let kept = bench.sources.transfers().progress().find(|p| p.digest == digest).unwrap().bytes;
    assert!(web.given() <= 600_000 && kept > 300_000, "{} bytes given, {kept} kept", web.given());
    let asked = web.heads().len();
    assert!(bench.sources.hold_to(clock::since_boot(), None).is_empty());
    bench.comes(&blob).await;
    assert!(web.heads().len() > asked && bench.told.is_empty(), "{:?}", bench.told);
    assert!(web.given() < 3_300_000, "{} bytes", web.given());
}

#[tokio::test]
async fn a_server_with_an_ipv6_address_is_reached() {
    let (mut bench, _) = Bench::with_web();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("this machine has no IPv6 loopback: nothing is tested");
        return;
    }
    let web = Web::serve_on(&bench.place.path().join("web"), "[::1]:0");
    bench.origins = vec![web.source().parse().unwrap()];
    let blob = bytes(70_000);
    bench.publish(&blob);
    bench.start(bench.partial(&blob));
    bench.comes(&blob).await;
    assert!(web.heads()[0].contains(&format!("host: {}\r\n", web.address)), "{:?}", web.heads());
}

#[tokio::test]
async fn nothing_is_asked_where_the_owner_wants_none() {
    let (mut bench, web) = Bench::with_web();
    bench.sources.shared = None;
    let digest = bench.publish(b"x");
    bench.sources.wanted(BTreeMap::from([(digest, bench.origins.clone())]));
    assert!(!bench.sources.carries(&digest, clock::since_boot()));
    assert!(web.heads().is_empty());
}
