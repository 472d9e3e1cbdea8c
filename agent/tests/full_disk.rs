//! A disk that fills up: the database goes on by its reserve, what is on its way is given up, nothing
//! ends, and what was put off is done when there is room, without a restart.
#![allow(clippy::unwrap_used)]

mod hostless;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hostless::driver;
use redb::StorageBackend;
use selvedge_agent::activate::Activation;
use selvedge_agent::store::disk::{Disk, DiskFile};
use selvedge_agent::store::{Key, MARGIN, RealDisk, Replaces, Row, Store, StoreError};
use selvedge_agent::supervise::Fate;
use selvedge_agent::{clock, identity};
use selvedge_deployment::StateRecord;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::chunks::ChunkIndex;
use selvedge_package::trust::{Assignment, Desired, TrustState};
use selvedge_package::{Digest, Manifest};
use serde_json::json;

/// What a write into the database needs free, as on a file system that never writes in place.
const SPARE: u64 = 4096;

/// A real directory that holds so many bytes and no more.
#[derive(Debug, Clone)]
struct SmallDisk {
    root: PathBuf,
    limit: Arc<AtomicU64>,
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

fn bytes_under(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let size = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => bytes_under(&entry.path()),
        false => entry.metadata().unwrap().len(),
    };
    entries.map(size).sum()
}

impl SmallDisk {
    fn new(root: &Path, limit: u64) -> Self {
        Self { root: root.to_owned(), limit: Arc::new(AtomicU64::new(limit)) }
    }

    fn left(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(bytes_under(&self.root))
    }

    /// Leaves so many bytes free from now on.
    fn leave(&self, bytes: u64) {
        self.limit.store(bytes_under(&self.root).saturating_add(bytes), Ordering::Relaxed);
    }

    fn need(&self, bytes: u64) -> io::Result<()> {
        if bytes > self.left() { Err(full()) } else { Ok(()) }
    }

    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(SmallFile { disk: self.clone(), file })
    }
}

#[derive(Debug)]
struct SmallFile {
    disk: SmallDisk,
    file: Box<dyn DiskFile>,
}

impl DiskFile for SmallFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.need((offset + bytes.len() as u64).saturating_sub(self.file.size()?))?;
        self.file.write_at(offset, bytes)
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[derive(Debug)]
struct SmallBackend {
    disk: SmallDisk,
    file: Box<dyn StorageBackend>,
}

impl StorageBackend for SmallBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.need(len.saturating_sub(self.file.len()?))?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.need(SPARE)?;
        self.file.write(offset, data)
    }
}

impl Disk for SmallDisk {
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(SmallBackend { disk: self.clone(), file: RealDisk.database(path)? }))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(RealDisk.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(RealDisk.open_or_create(path)?))
    }
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_directory(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.hard_link(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }
    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_tree(path)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_directory(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }
    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        RealDisk.size(path)
    }
    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(self.left())
    }
}

fn small() -> (tempfile::TempDir, SmallDisk, Store) {
    let place = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(place.path(), u64::MAX);
    let store = Store::open(Arc::new(disk.clone()), place.path()).unwrap();
    (place, disk, store)
}

fn push(store: &Store, sequence: u64) -> Result<(), StoreError> {
    let row = Row { epoch: 1, sequence, signed: vec![sequence as u8; 30_000] };
    store.database().write(|t| t.push_row(&row, Replaces::Nothing))
}

#[test]
fn the_database_takes_the_reserve_then_refuses_then_goes_on() {
    let (place, disk, store) = small();
    assert!(store.keep_reserve().unwrap());
    let reserve = place.path().join("reserve");
    assert_eq!(std::fs::metadata(&reserve).unwrap().len(), 1 << 20);
    disk.leave(SPARE);
    let mut kept = 0;
    let error = loop {
        match push(&store, kept + 1) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 256, "it never fills");
    };
    assert!(error.is_full(), "{error:?}");
    assert!(!reserve.exists(), "it was given up first");
    assert!(store.database().found_full() && !store.database().found_full());
    assert!(!store.keep_reserve().unwrap(), "it would take what is left");
    // Nothing is lost, nothing half there, and reading goes on.
    let rows = store.database().oldest_rows(usize::MAX).unwrap();
    assert_eq!(rows.len() as u64, kept);
    assert!(push(&store, kept + 1).unwrap_err().is_full());
    // Room comes: the same store goes on.
    disk.leave(64 << 20);
    push(&store, kept + 1).unwrap();
    assert_eq!(store.database().oldest_rows(usize::MAX).unwrap().len() as u64, kept + 1);
    assert!(store.keep_reserve().unwrap());
}

#[test]
fn a_start_on_a_full_disk_gives_up_what_was_on_its_way_and_nothing_else() {
    let (place, disk, store) = small();
    let blob = store.put_blob(b"committed").unwrap();
    push(&store, 1).unwrap();
    assert!(store.keep_reserve().unwrap());
    let bytes = vec![7; 40_000];
    let index = ChunkIndex::without_index(Digest::of(&bytes), bytes.len() as u64).unwrap();
    store.partial(Digest::of(&bytes), index).unwrap().put(0, &bytes).unwrap();
    drop(store);
    disk.leave(0);
    let store = Store::open(Arc::new(disk.clone()), place.path()).unwrap();
    assert_eq!(store.partial_bytes(&Digest::of(&bytes)), 0);
    assert!(store.has(&blob).unwrap());
    assert_eq!(store.database().rows_waiting().unwrap(), 1);
    identity::next_epoch(store.database(), 5).unwrap();
}

fn package(requires: serde_json::Value) -> Built {
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1, "name": "p", "version": "1.0.0", "release": 1,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
        "requires": requires,
    }))
    .unwrap();
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), &[5; 50_000]).unwrap();
    builder.bytes("c.json".parse().unwrap(), b"{}").unwrap();
    builder.build().unwrap()
}

fn trust() -> TrustState {
    let keys = tempfile::tempdir().unwrap();
    let now = "2026-11-27T00:00:00Z".parse().unwrap();
    let roots = selvedge_signing::keyring::init(&keys.path().join("keys"), now).unwrap();
    TrustState::enrol(&roots.image, &roots.director, now).unwrap()
}

fn desired(built: &Built) -> Desired {
    let manifest = built.bundle.manifest();
    let assignment = Assignment {
        package: manifest.name.clone(),
        digest: built.bundle.digest(),
        length: built.bundle.length(),
        version: manifest.version.clone(),
        release: manifest.release,
        min_release: 0,
        target: String::new(),
        architectures: Vec::new(),
        settings: Default::default(),
    };
    let issued_at = "2026-11-27T00:00:00Z".parse().unwrap();
    Desired { sequence: 1, issued_at, nonce: Vec::new(), assignments: vec![assignment] }
}

/// Stores the package's manifests; its files are lacking.
fn put_manifests(store: &Store, built: &Built) {
    store.put_blob(&built.manifest).unwrap();
    for (_, bytes) in &built.blobs {
        store.put_blob(bytes).unwrap();
    }
}

async fn wait_and_tick(activation: &mut Activation) {
    let wait = activation.wake_at().unwrap().saturating_sub(clock::since_boot());
    tokio::time::sleep(wait).await;
    activation.tick().unwrap();
}

#[tokio::test]
async fn a_package_without_room_is_reported_and_fetched_when_there_is() {
    let (_place, disk, store) = small();
    let built = package(json!({ "disk-mib": 3 }));
    put_manifests(&store, &built);
    let (mut activation, _outcomes) = driver(&store);
    activation.connected(131_072);
    disk.leave(MARGIN + (3 << 20) + 49_000);
    activation.desire(&trust(), &desired(&built)).unwrap();
    activation.pursue().unwrap();
    let errands = activation.errands();
    assert!(errands.needs.is_empty(), "{:?}", errands.needs);
    assert_eq!(errands.told.iter().map(|told| told.kind).collect::<Vec<_>>(), ["disk-full"]);
    assert!(errands.told[0].what.contains("3 MiB free besides"), "{}", errands.told[0].what);
    assert!(activation.state().slots.values().all(|slot| slot.failure.is_none()), "it is no verdict");

    disk.leave(MARGIN + (3 << 20) + 200_000);
    wait_and_tick(&mut activation).await;
    let errands = activation.errands();
    assert!(!errands.needs.is_empty() && errands.told.is_empty(), "{errands:?}");

    // The disk fills to the last byte under way: the part that came goes, the intent stays.
    activation.make_room(clock::since_boot());
    assert!(store.root().join("partial").read_dir().unwrap().next().is_none());
    activation.errands();
    wait_and_tick(&mut activation).await;
    assert!(!activation.errands().needs.is_empty(), "it is fetched again");
}

#[tokio::test]
async fn what_cannot_be_written_down_changes_nothing_and_is_taken_later() {
    let (_place, disk, store) = small();
    let built = package(json!({}));
    let (mut activation, _outcomes) = driver(&store);
    let before = activation.state().clone();
    let (trust, desired) = (trust(), desired(&built));
    disk.leave(0);
    let error = activation.desire(&trust, &desired).unwrap_err();
    assert!(error.is_full(), "{error:?}");
    assert_eq!(*activation.state(), before);
    // A host that ends is not forgotten, and ends nothing.
    activation.make_room(clock::since_boot() + Duration::from_secs(600));
    activation.host_down(&[], Fate::Orderly).unwrap();
    disk.leave(64 << 20);
    activation.make_room(clock::since_boot());
    activation.desire(&trust, &desired).unwrap();
    activation.pursue().unwrap();
    let stored: Option<StateRecord> = store.database().read(Key::Deployment).unwrap();
    assert_eq!(selvedge_deployment::State::from(stored.unwrap()), *activation.state());
    assert_eq!(activation.state().desired, 1);
}

#[test]
fn a_damaged_database_says_what_can_be_done_and_the_blobs_stay() {
    let (place, _disk, store) = small();
    let blob = store.put_blob(b"a model").unwrap();
    drop(store);
    let path = place.path().join("agent.redb");
    let whole = std::fs::read(&path).unwrap();
    let open = || Store::open(Arc::new(RealDisk), place.path());
    for damage in [0, 9, 200, 4096, whole.len() / 2] {
        let mut bytes = whole.clone();
        for byte in &mut bytes[damage..] {
            *byte ^= 0x5a;
        }
        std::fs::write(&path, &bytes).unwrap();
        let error = open().expect_err("it opens");
        assert!(matches!(error, StoreError::Unusable { .. }), "at {damage}: {error:?}");
        assert!(error.to_string().contains("move it away"), "{error}");
    }
    // Truncated, to nothing or anything, and zeroed, in part or as a whole: never taken for a new one.
    for length in [0, 1, 8, 9, 320, 4096, whole.len() / 3] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = open().expect_err("it opens");
        assert!(matches!(error, StoreError::Unusable { .. }), "cut to {length}: {error:?}");
    }
    for (from, to) in [(0, whole.len()), (0, 9), (0, 320), (0, 4096)] {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0);
        std::fs::write(&path, &bytes).unwrap();
        let error = open().expect_err("it opens");
        assert!(matches!(error, StoreError::Unusable { .. }), "zeroed {from} to {to}: {error:?}");
    }
    std::fs::rename(&path, place.path().join("agent.redb.damaged")).unwrap();
    let store = open().unwrap();
    // Nothing is known to be needed yet: nothing is thrown away.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { driver(&store).0.pursue().unwrap() });
    assert!(store.has(&blob).unwrap());
}
