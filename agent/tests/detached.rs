//! A device that is given up by its registry, and one whose trust record is damaged: what is committed goes
//! on, nothing is accepted, and a new enrolment begins anew above the floors that were.
#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;

use selvedge_agent::identity::{Identity, IdentityError};
use selvedge_agent::import::import;
use selvedge_agent::store::{Key, RealDisk, Replaces, Row, Store};
use selvedge_deployment::{Event, Rules, State, StateRecord, step};
use selvedge_package::trust::TrustState;
use serde_json::json;
use world::{DEVICE, World, package};

fn state(store: &Store) -> State {
    let record: Option<StateRecord> = store.database().read(Key::Deployment).unwrap();
    record.map(State::from).unwrap_or_default()
}

/// A device that has committed its one package.
fn committed(world: &World) -> std::path::PathBuf {
    let data = world.place.path().join("data");
    drop(world.enrol(&data));
    let file = world.place.path().join("file");
    std::fs::write(&file, world.file(&world.bundle(1, DEVICE, &[0]), Some(DEVICE), &[0])).unwrap();
    assert!(import(&file, &data).unwrap().accepted);
    let store = Store::open(Arc::new(RealDisk), &data).unwrap();
    let bundle = &world.packages[0].built.bundle;
    let (package, digest) = (bundle.manifest().name.clone(), bundle.digest());
    let mut state = state(&store);
    for event in [
        Event::Fetched { package: package.clone(), digest, rules: Rules::default() },
        Event::Begin { package: package.clone() },
        Event::Accepted { package: package.clone(), digest, cases: 1 },
        Event::Activated { package, digest, now_ms: 1 },
    ] {
        state = step(&state, event).unwrap().state;
    }
    let record = StateRecord::from(state);
    store.database().write(|transaction| transaction.put(Key::Deployment, &record)).unwrap();
    data
}

#[test]
fn what_runs_stays_and_a_new_registry_begins_anew() {
    let world = World::new(vec![package("p", 5, json!({ "min-release": 4 }))]);
    let data = committed(&world);
    let store = Store::open(Arc::new(RealDisk), &data).unwrap();
    let mut identity = Identity::read(store.database()).unwrap().unwrap();
    let old = identity.key(&store).unwrap().public();
    let row = Row { epoch: 1, sequence: 1, signed: vec![1] };
    store.database().write(|transaction| transaction.push_row(&row, Replaces::Nothing)).unwrap();
    Identity::detach(&store).unwrap();
    assert!(store.database().read::<TrustState>(Key::Trust).unwrap().is_none());
    assert_eq!(store.database().rows_waiting().unwrap(), 0);
    assert!(!data.join("device.key").exists());
    let left = state(&store);
    let slot = left.slots.values().next().unwrap();
    assert_eq!(slot.committed.as_ref().unwrap().release.release, 5);
    assert_eq!((left.desired, left.floors.values().copied().collect::<Vec<_>>()), (0, vec![4]));
    let established = Identity::establish(&store, None).unwrap();
    assert!(established.identity.detached && established.trust.is_none());

    let other = World::new(vec![package("p", 1, json!({}))]);
    let enrolment = serde_json::from_value(other.enrolment()).unwrap();
    let mut established = Identity::establish(&store, Some(&enrolment)).unwrap();
    assert!(!established.identity.detached && established.trust.is_some());
    assert_ne!(established.identity.key(&store).unwrap().public(), old);
    drop(store);
    let file = other.place.path().join("file");
    std::fs::write(&file, other.file(&other.bundle(1, DEVICE, &[0]), Some(DEVICE), &[0])).unwrap();
    assert!(import(&file, &data).unwrap().accepted);
    let store = Store::open(Arc::new(RealDisk), &data).unwrap();
    let after = state(&store);
    let slot = after.slots.values().next().unwrap();
    assert_eq!(slot.failure.as_ref().unwrap().reason, "below-floor", "it outlives the registry");
    assert_eq!(slot.committed.as_ref().unwrap().release.release, 5);
}

#[test]
fn a_damaged_trust_record_is_named_and_nothing_is_accepted() {
    let world = World::new(vec![package("p", 5, json!({}))]);
    let data = committed(&world);
    let store = Store::open(Arc::new(RealDisk), &data).unwrap();
    // A record of another kind has a right check sum and is no trust state.
    store.database().write(|transaction| transaction.put(Key::Trust, &"nothing")).unwrap();
    let established = Identity::establish(&store, None).unwrap();
    assert!(established.trust.is_none());
    let why = established.distrust.unwrap();
    assert!(why.contains("`trust` is damaged") && why.contains("detach"), "{why}");
    drop(store);
    let file = world.place.path().join("file");
    let error = import(&file, &data).unwrap_err().to_string();
    assert!(error.contains("store-fault"), "{error}");
    let store = Store::open(Arc::new(RealDisk), &data).unwrap();
    assert_eq!(state(&store).slots.len(), 1, "what is committed stays");
    store.database().write(|transaction| transaction.remove(Key::Trust)).unwrap();
    assert!(matches!(Identity::establish(&store, None), Err(IdentityError::NoTrust)));
    Identity::detach(&store).unwrap();
}
