//! Packages from a file: what is released or assigned is stored and accepted, everything else is refused
//! and leaves nothing behind; with and without a running agent.
#![allow(clippy::unwrap_used)]

mod played;
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use played::{Agent, Connection, Heard};
use selvedge_agent::import::{ImportFailure, Imported, import};
use selvedge_agent::store::{Key, Store};
use selvedge_deployment::{Stage, State, StateRecord};
use selvedge_package::archive::MetadataFiles;
use selvedge_package::trust::{MetadataBundle, TrustState};
use serde_json::json;
use tokio::net::TcpListener;
use world::{DEVICE, World, package};

fn two() -> World {
    World::new(vec![package("p", 1, json!({})), package("q", 3, json!({ "min-release": 2 }))])
}

/// Every blob and partial blob.
fn content(data: &Path) -> BTreeSet<PathBuf> {
    let names = |place: &str| std::fs::read_dir(data.join(place)).unwrap().map(|entry| entry.unwrap().path());
    names("blobs/sha256").chain(names("partial")).collect()
}

fn put(world: &World, bytes: &[u8]) -> PathBuf {
    let path = world.place.path().join("stick.svpkg");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn take(world: &World, data: &Path, bytes: &[u8]) -> Result<Imported, ImportFailure> {
    import(&put(world, bytes), data)
}

fn trust(store: &Store) -> TrustState {
    store.database().read(Key::Trust).unwrap().unwrap()
}

fn state(store: &Store) -> State {
    let record: Option<StateRecord> = store.database().read(Key::Deployment).unwrap();
    record.map(State::from).unwrap_or_default()
}

fn open(data: &Path) -> Store {
    Store::open(std::sync::Arc::new(selvedge_agent::store::RealDisk), data).unwrap()
}

#[test]
fn released_packages_are_kept_for_a_later_assignment() {
    let world = two();
    let data = world.place.path().join("data");
    drop(world.enrol(&data));
    let before = trust(&open(&data));
    let imported = take(&world, &data, &world.image_file(&[0, 1])).unwrap();
    assert_eq!(imported.packages, ["p 1.0.0 (release 1)", "q 3.0.0 (release 3)"]);
    assert!(!imported.accepted && imported.blobs > 6 && imported.bytes > 400_000, "{imported:?}");
    let store = open(&data);
    for blob in world.packages.iter().flat_map(|package| &package.blobs) {
        store.check_blob(&selvedge_package::Digest::of(blob)).unwrap();
    }
    assert_eq!(trust(&store), before, "nothing was accepted");
    assert!(state(&store).slots.is_empty());
    assert_eq!(store.prefetched().unwrap().len(), 2);
    drop(store);
    let again = take(&world, &data, &world.image_file(&[0])).unwrap();
    assert_eq!((again.blobs, again.bytes), (0, 0), "it is there");
}

#[test]
fn a_file_for_this_device_is_accepted_like_an_offer() {
    let world = two();
    let data = world.place.path().join("data");
    drop(world.enrol(&data));
    let bundle = world.bundle(1, DEVICE, &[0, 1]);
    assert!(take(&world, &data, &world.file(&bundle, Some(DEVICE), &[0, 1])).unwrap().accepted);
    let store = open(&data);
    assert_eq!((trust(&store).sequence(), state(&store).desired, state(&store).slots.len()), (1, 1, 2));
    assert!(state(&store).slots.values().all(|slot| matches!(slot.stage, Stage::Fetching(_))));
    assert!(store.prefetched().unwrap().is_empty(), "they have found their assignment");
    drop(store);

    // Another one with a package less; the older one again.
    let newer = world.bundle(2, DEVICE, &[1]);
    assert!(take(&world, &data, &world.file(&newer, Some(DEVICE), &[1])).unwrap().accepted);
    let error = take(&world, &data, &world.file(&bundle, Some(DEVICE), &[0, 1])).unwrap_err();
    assert!(error.to_string().contains("rollback"), "{error}");
    let store = open(&data);
    assert_eq!((trust(&store).sequence(), state(&store).slots.len()), (2, 1));
}

#[test]
fn everything_else_is_refused_and_leaves_nothing_behind() {
    let (world, strangers) = (two(), two());
    let data = world.place.path().join("data");
    drop(world.enrol(&data));
    let empty = content(&data);
    assert!(empty.is_empty());
    let mine = world.bundle(1, DEVICE, &[0]);
    let good = world.file(&mine, Some(DEVICE), &[0]);
    let no_metadata = world.archive(&MetadataFiles::default(), &[0], &[]);
    let image = MetadataBundle { image: world.image(), ..MetadataBundle::default() };
    let metadata = MetadataFiles::of(&image, None).unwrap();
    let extra = world.archive(&metadata, &[0], &[b"what nobody released"]);
    let mut replayed = world.bundle(1, "edge-2", &[0]);
    let others = world.file(&replayed, Some("edge-2"), &[0]);
    // Under this device's name, with the other's state in it.
    replayed.director.roots.clear();
    let disguised = world.file(&replayed, Some(DEVICE), &[0]);
    let not_assigned = world.file(&mine, Some(DEVICE), &[0, 1]);
    let lacking = world.archive(
        &MetadataFiles::of(&world.bundle(1, DEVICE, &[0, 1]), Some(&DEVICE.parse().unwrap())).unwrap(),
        &[0],
        &[],
    );
    for (what, bytes, word) in [
        ("another device's", others, "wrong-device"),
        ("another device's under this name", disguised, "wrong-device"),
        ("by strangers", strangers.image_file(&[0]), "not-trusted"),
        (
            "by strangers, for this device",
            strangers.file(&strangers.bundle(1, DEVICE, &[0]), Some(DEVICE), &[0]),
            "not-trusted",
        ),
        ("without metadata", no_metadata, "no-metadata"),
        ("with a blob of nobody", extra, "belongs to no package"),
        ("with a package that is not assigned", not_assigned, "not assigned"),
        ("without a package that is", lacking, "neither the file nor the device"),
        ("no archive", vec![7; 4096], "refused"),
        ("empty", Vec::new(), "refused"),
    ] {
        let error = take(&world, &data, &bytes).expect_err(what);
        let error = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(error.contains(word), "{what}: {error}");
        assert_eq!(content(&data), empty, "{what} left something");
    }

    // Cut anywhere, and every part changed: a byte in each header, name, metadata file and blob.
    let reference = world.place.path().join("reference");
    drop(world.enrol(&reference));
    take(&world, &reference, &good).unwrap();
    let accepted = trust(&open(&reference));
    let (mut refused, mut same) = (0, 0);
    for at in (0..good.len() - 1024).step_by(good.len() / 24) {
        let error = take(&world, &data, &good[..at]).expect_err("it is cut");
        assert!(error.to_string().len() > 10);
        assert_eq!(content(&data), empty, "cut at {at}");
        let mut changed = good.clone();
        changed[at] ^= 0x20;
        let other = world.place.path().join(format!("data-{at}"));
        drop(world.enrol(&other));
        if take(&world, &other, &changed).is_err() {
            refused += 1;
            assert!(content(&other).is_empty(), "changed at {at}");
        } else {
            // What fills a block up says nothing, nor does a root that is known: all else is as it was.
            same += 1;
            assert_eq!(trust(&open(&other)), accepted, "changed at {at}");
        }
    }
    println!("{refused} refused, {same} without a difference");
    assert!(refused > 16 && same < 8, "{refused} refused, {same} the same");
    let store = open(&data);
    assert_eq!((trust(&store).sequence(), state(&store).desired), (0, 0));
    assert!(store.prefetched().unwrap().is_empty());
    drop(store);
    assert!(take(&world, &data, &good).unwrap().accepted, "and the good one is still good");
}

#[test]
fn a_file_without_end_ends_at_its_bounds() {
    let world = two();
    let data = world.place.path().join("data");
    drop(world.enrol(&data));
    let error = import(Path::new("/dev/zero"), &data).unwrap_err();
    assert!(matches!(error, ImportFailure::Import(_)), "{error}");
    assert!(matches!(
        import(Path::new("/dev/null"), world.place.path()),
        Err(ImportFailure::NoDevice { .. })
    ));
}

fn run(agent: &Agent, arguments: &[&str]) -> Output {
    let data = agent.place.path().join("data");
    Command::new(env!("CARGO_BIN_EXE_selvedge-agent"))
        .args(arguments)
        .arg("--data")
        .arg(data)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn through_a_running_agent_and_what_it_says_of_it() {
    let world = two();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut enrolment = world.enrolment();
    enrolment["broker"] = format!("mqtt://127.0.0.1:{}", listener.local_addr().unwrap().port()).into();
    let mut agent = Agent::enrolled(enrolment);
    let _broker = Connection::accept(&listener, &Heard::default()).await;
    agent.status().await;
    let data = agent.place.path().join("data");

    let image = put(&world, &world.image_file(&[1]));
    let shown = said(&run(&agent, &["trust", "show", "--offer", image.to_str().unwrap()]));
    for word in [
        "its agent runs",
        "root is signed by 1 of 1",
        "never goes back",
        "q 3.0.0 (release 3): yes",
        "older copy",
    ] {
        assert!(shown.contains(word), "{word} is missing from:\\n{shown}");
    }
    let output = run(&agent, &["import", image.to_str().unwrap()]);
    assert!(output.status.success() && said(&output).contains("later assignment"), "{}", said(&output));

    // Tampered: the last byte of the last blob. Nothing of it stays, what was there does.
    let before = content(&data);
    let mut changed = world.image_file(&[0]);
    let at = changed.len() - 1024 - 512;
    changed[at] ^= 1;
    let output = run(&agent, &["import", put(&world, &changed).to_str().unwrap()]);
    assert!(!output.status.success(), "{}", said(&output));
    assert_eq!(content(&data), before, "{}", said(&output));

    let wrong = put(&world, &world.file(&world.bundle(1, "edge-2", &[0]), Some("edge-2"), &[0]));
    let output = run(&agent, &["import", wrong.to_str().unwrap()]);
    assert!(said(&output).contains("wrong-device"), "{}", said(&output));
    let shown = said(&run(&agent, &["trust", "show", "--offer", wrong.to_str().unwrap()]));
    assert!(shown.contains("REFUSED (wrong-device)"), "{shown}");

    let mine = put(&world, &world.file(&world.bundle(1, DEVICE, &[0, 1]), Some(DEVICE), &[0, 1]));
    let shown = said(&run(&agent, &["trust", "show", "--offer", mine.to_str().unwrap()]));
    assert!(shown.contains("would be accepted") && shown.contains("sequence 1"), "{shown}");
    let output = run(&agent, &["import", mine.to_str().unwrap()]);
    assert!(said(&output).contains("accepted as what"), "{}", said(&output));
    let status = agent.status().await;
    assert_eq!((status.state.desired, status.state.packages.len()), (1, 2));
    assert_eq!(status.state.fresh, Some(false), "a file proves no freshness");
    for package in &status.state.packages {
        assert_eq!(package.pending.as_ref().unwrap().stage, "staged", "no transfer: all of it is there");
    }
    assert_eq!(status.chunks, 0);
}
