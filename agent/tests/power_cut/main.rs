//! The store through power cuts: a first install is cut at every operation that changes the disk,
//! before, in the middle and after, with three ways of forgetting what was not synced. Afterwards
//! everything that was promised is there, nothing half-written is visible, and the install goes on
//! to its end.
#![allow(clippy::unwrap_used)]

#[path = "../control_socket/mod.rs"]
mod control_socket;
mod device;
mod disk;
mod driver;
mod host;
mod large;
mod trust;
#[path = "../world/mod.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use disk::{CutDisk, Loss, Moment};
use selvedge_agent::store::{Disk, Key, Put, Replaces, Row, Store, StoreError};
use selvedge_deployment::{Event, Release, Rules, Stage, State, StateRecord, step, stored};
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::chunks::{ChunkIndex, Indexed};
use selvedge_package::{Digest, Manifest};

const ROOT: &str = "/agent";
const CHUNK: usize = 65536;

struct Package {
    built: Built,
    /// Every blob that has to come over the link, with its index.
    blobs: Vec<(Digest, ChunkIndex, Vec<u8>)>,
}

fn package() -> Package {
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "format": 1, "name": "p", "version": "1.0.0", "release": 1,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
    }))
    .unwrap();
    let model: Vec<u8> = (0..2 * CHUNK + 1000).map(|n| (n * 31 + n / 977) as u8).collect();
    let case = b"{}".to_vec();
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), &model).unwrap();
    builder.bytes("c.json".parse().unwrap(), &case).unwrap();
    let built = builder.build().unwrap();
    let mut blobs: Vec<_> =
        [built.manifest.clone(), case].into_iter().chain(built.blobs.iter().map(|b| b.1.clone())).collect();
    blobs.push(model);
    let blobs = blobs
        .into_iter()
        .map(|bytes| {
            let indexed = Indexed::of(&bytes);
            let index = match indexed.indexes.first() {
                Some((_, index)) => ChunkIndex::parse(index, indexed.size).unwrap(),
                None => ChunkIndex::without_index(indexed.digest, indexed.size).unwrap(),
            };
            (indexed.digest, index, bytes)
        })
        .collect();
    Package { built, blobs }
}

/// What the store has promised: every call that returned.
#[derive(Default)]
struct Promises {
    state: Option<State>,
    blobs: BTreeSet<Digest>,
    laid_out: bool,
    rows: BTreeSet<u64>,
    finished: bool,
}

fn stored_state(store: &Store) -> Result<State, StoreError> {
    Ok(store.database().read::<StateRecord>(Key::Deployment)?.map(State::from).unwrap_or_default())
}

/// Takes a device from whatever it has to the committed release, noting what was promised.
fn install(disk: &CutDisk, package: &Package, promises: &mut Promises) -> Result<(), StoreError> {
    let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT))?;
    let digest = package.built.bundle.digest();
    let name = package.built.bundle.manifest().name.clone();
    let mut state = stored_state(&store)?;
    let mut apply = |event: Event, promises: &mut Promises| -> Result<State, StoreError> {
        if let Ok(next) = step(&state, event) {
            store.database().write(|t| t.put(Key::Deployment, &StateRecord::from(next.state.clone())))?;
            state = next.state.clone();
            promises.state = Some(next.state);
        }
        Ok(state.clone())
    };
    let release = Release {
        digest,
        length: package.built.bundle.length(),
        release: 1,
        min_release: 0,
        settings: Default::default(),
    };
    apply(Event::Restarted, promises)?;
    apply(Event::desired(1, vec![(name.clone(), release)]), promises)?;
    let row = Row { epoch: 1, sequence: 1, signed: vec![1; 300] };
    store.database().write(|t| t.push_row(&row, Replaces::Nothing))?;
    promises.rows.insert(1);

    for (digest, index, bytes) in &package.blobs {
        if store.has(digest)? {
            continue;
        }
        let mut partial = store.partial(*digest, index.clone())?;
        for n in (0..index.len()).filter(|n| !partial.have(*n)).collect::<Vec<_>>() {
            let chunk = index.chunk(n).unwrap();
            let from = chunk.offset as usize;
            let wrong = partial.put(n, b"not this one")?;
            assert_eq!(wrong, Put::Spoiled);
            let put = partial.put(n, &bytes[from..from + chunk.length as usize])?;
            assert_eq!(put, Put::Kept);
            partial.checkpoint()?;
        }
        partial.finish()?;
        promises.blobs.insert(*digest);
    }
    let bundle = store.bundle(&digest)?.unwrap().unwrap();
    store.lay_out(&bundle)?;
    promises.laid_out = true;
    apply(Event::Fetched { package: name.clone(), digest, rules: Rules::default() }, promises)?;
    apply(Event::Begin { package: name.clone() }, promises)?;
    apply(Event::Accepted { package: name.clone(), digest, cases: 1 }, promises)?;
    let end = apply(Event::Activated { package: name, digest, now_ms: 1 }, promises)?;
    // From here on either is right, until the call returns.
    promises.rows.remove(&1);
    store.database().write(|t| t.drop_rows(&[(1, 1)]))?;
    promises.finished = true;
    store.collect(&stored(&end))?;
    Ok(())
}

/// Everything promised is there, and what is there is right.
fn holds(disk: &CutDisk, package: &Package, promises: &Promises, what: &str) {
    let store =
        Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let state = stored_state(&store).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    if let Some(promised) = &promises.state {
        // The step after the last promised one may have been made durable without returning.
        let beyond = rank(&state) >= rank(promised);
        assert!(beyond, "{what}: promised {promised:?}, found {state:?}");
    }
    for name in disk.list(&Path::new(ROOT).join("blobs/sha256")).unwrap() {
        if let Ok(digest) = Digest::from_hex(&name) {
            store.check_blob(&digest).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    for digest in &promises.blobs {
        assert!(store.has(digest).unwrap(), "{what}: blob {digest} was promised");
    }
    let place = store.package_path(&package.built.bundle.digest());
    let there = disk.size(&place).unwrap().is_some();
    assert!(there || !promises.laid_out, "{what}: the layout was promised");
    if there {
        for file in package.built.bundle.files() {
            let size = disk.size(&place.join(file.path.as_str())).unwrap();
            assert_eq!(size, Some(file.size), "{what}: a visible layout is whole");
        }
    }
    let rows = store.database().oldest_rows(usize::MAX).unwrap();
    for row in &promises.rows {
        assert!(rows.iter().any(|found| found.sequence == *row), "{what}: row {row} was promised");
    }
    assert!(!promises.finished || rows.is_empty(), "{what}: an acknowledged row came back");
}

fn rank(state: &State) -> (u64, u64, u32, u32) {
    let Some(slot) = state.slots.values().next() else { return (state.desired, 0, 0, 0) };
    let (stage, attempt) = match &slot.stage {
        Stage::Idle if slot.committed.is_some() => (9, 0),
        Stage::Idle => (0, 0),
        Stage::Fetching(_) => (1, 0),
        Stage::Staged { attempts, .. } => (2, *attempts * 4),
        Stage::Trial { attempt, phase, .. } => {
            (2, *attempt * 4 + u32::from(*phase != selvedge_deployment::Phase::Loading) - 1)
        }
    };
    (state.desired, stage, attempt, 0)
}

#[test]
fn a_first_install_cut_at_every_operation() {
    let package = package();
    let mut points = 0;
    for moment in [Moment::Before, Moment::Middle, Moment::After] {
        for loss in [Loss::Everything, Loss::Some(7)] {
            for operation in 0.. {
                let disk = CutDisk::new();
                disk.cut_at(operation, moment);
                let mut promises = Promises::default();
                let result = install(&disk, &package, &mut promises);
                if !disk.is_dead() {
                    result.unwrap();
                    break;
                }
                // Closing the database after all is done writes, too, and has nobody to tell.
                assert!(result.is_err() || promises.finished, "the power went, and nobody noticed");
                points += 1;
                let what = format!("operation {operation}, {moment:?}, {loss:?}");
                let disk = disk.restart(loss);
                holds(&disk, &package, &promises, &what);
                let mut after = Promises::default();
                install(&disk, &package, &mut after).unwrap_or_else(|e| panic!("{what}: {e:?}"));
                holds(&disk, &package, &after, &what);
                assert_eq!(after.state.unwrap().generation, 1, "{what}");
            }
        }
    }
    driver::say(&format!("store alone, first install: {points} cut points, none skipped"));
    assert!(points > 250, "only {points} cut points");
}

#[test]
fn a_kill_costs_no_chunk_and_a_power_cut_at_most_those_after_the_checkpoint() {
    let package = package();
    let (digest, index, bytes) = package.blobs.last().unwrap();
    let disk = CutDisk::new();
    let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap();
    let mut partial = store.partial(*digest, index.clone()).unwrap();
    partial.put(0, &bytes[..CHUNK]).unwrap();
    partial.checkpoint().unwrap();
    partial.put(1, &bytes[CHUNK..2 * CHUNK]).unwrap();
    drop((partial, store));

    let disk = disk.restart(Loss::Nothing);
    let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap();
    let partial = store.partial(*digest, index.clone()).unwrap();
    assert!(partial.have(0) && partial.have(1) && !partial.have(2));
    drop((partial, store));
    // The names in `partial` were never synced by themselves: a bitmap without its file is no chunk.
    let disk = disk.restart(Loss::Nothing);
    disk.flip(&Path::new(ROOT).join("partial").join(digest.hex()), 100);
    let store = Store::open(Arc::new(disk), Path::new(ROOT)).unwrap();
    let mut partial = store.partial(*digest, index.clone()).unwrap();
    for n in (0..index.len()).filter(|n| !partial.have(*n)).collect::<Vec<_>>() {
        let from = n as usize * CHUNK;
        partial.put(n, &bytes[from..(from + CHUNK).min(bytes.len())]).unwrap();
    }
    assert!(matches!(partial.finish(), Err(StoreError::Damaged { .. })), "the bitmap believed chunk 0");
    let mut partial = store.partial(*digest, index.clone()).unwrap();
    assert!(!partial.have(0) && partial.have(1) && partial.have(2), "only the damaged one is missing");
    partial.put(0, &bytes[..CHUNK]).unwrap();
    partial.finish().unwrap();
    store.check_blob(digest).unwrap();
}

#[test]
fn a_byte_changed_on_disk_is_found_before_use() {
    let package = package();
    for (digest, _, bytes) in package.blobs.iter().filter(|(_, _, bytes)| !bytes.is_empty()) {
        for offset in [0, bytes.len() / 2, bytes.len() - 1] {
            let disk = CutDisk::new();
            install(&disk, &package, &mut Promises::default()).unwrap();
            disk.flip(&Path::new(ROOT).join("blobs/sha256").join(digest.hex()), offset);
            let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap();
            let small = store.read_small(digest, 1 << 20);
            assert!(matches!(small, Err(StoreError::Damaged { .. })), "{small:?}");
            assert!(!store.has(digest).unwrap(), "a damaged blob is not kept");
            drop(store);
            install(&disk, &package, &mut Promises::default()).unwrap();
        }
    }
}

#[test]
fn a_changed_byte_in_the_database_is_no_other_state() {
    let package = package();
    let disk = CutDisk::new();
    install(&disk, &package, &mut Promises::default()).unwrap();
    let path = Path::new(ROOT).join("agent.redb");
    let size = disk.size(&path).unwrap().unwrap() as usize;
    let good = stored_state(&Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap()).unwrap();
    let mut noticed = 0;
    for offset in (0..size).step_by(size / 300) {
        let copy = disk.copy();
        copy.flip(&path, offset);
        match Store::open(Arc::new(copy.clone()), Path::new(ROOT)).and_then(|store| stored_state(&store)) {
            Ok(state) => assert_eq!(state, good, "byte {offset} gave another state"),
            Err(_) => noticed += 1,
        }
    }
    println!("{noticed} of 300 changes were in use, and noticed");
}
