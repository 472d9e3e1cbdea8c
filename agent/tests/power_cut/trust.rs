//! What a device trusts, through power cuts: an enrolment and a file for the device, cut at every operation.
//! Trust state and deployment are of one moment whatever happens, a credential is there as it was promised,
//! and the same file ends well afterwards.

use std::path::Path;
use std::sync::Arc;

use selvedge_agent::credential::{Credential, Kept, KeptRecord, Origin, request};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::identity::Identity;
use selvedge_agent::import::import_into;
use selvedge_agent::store::{Key, Store};
use selvedge_deployment::{State, StateRecord};
use selvedge_package::trust::TrustState;
use serde_json::json;

use crate::disk::{CutDisk, Loss, Moment};
use crate::world::{DEVICE, World, package};

const ROOT: &str = "/agent";

/// What is kept of credentials, one after the other.
fn credentials() -> Vec<Kept> {
    let request = request::make(&DEVICE.parse().unwrap()).unwrap();
    let credential = |origin| Credential {
        chain: vec![serde_bytes::ByteBuf::from(vec![7; 700])],
        key: request.key.clone(),
        not_before: "2026-11-27T00:00:00Z".parse().unwrap(),
        not_after: "2027-11-27T00:00:00Z".parse().unwrap(),
        origin,
    };
    let (old, new) = (Some(credential(Origin::Enrolment)), Some(credential(Origin::Issued)));
    vec![
        Kept { proven: old.clone(), next: None, request: None },
        Kept { proven: old.clone(), next: None, request: Some(request.clone()) },
        Kept { proven: old, next: new.clone(), request: None },
        Kept { proven: new, next: None, request: None },
    ]
}

#[derive(Default)]
struct Promised {
    enrolled: bool,
    /// How many of the credentials' states were written.
    kept: usize,
    imported: bool,
}

type Failure = Box<dyn std::error::Error>;

fn live(
    disk: &CutDisk,
    enrolment: &Enrolment,
    steps: &[Kept],
    file: &[u8],
    promised: &mut Promised,
) -> Result<(), Failure> {
    let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT))?;
    Identity::establish(&store, Some(enrolment))?;
    promised.enrolled = true;
    for (n, kept) in steps.iter().enumerate() {
        let record = KeptRecord::from(kept.clone());
        store.database().write(|transaction| transaction.put(Key::Credentials, &record))?;
        promised.kept = n + 1;
    }
    import_into(file, &store)?;
    promised.imported = true;
    Ok(())
}

fn holds(disk: &CutDisk, steps: &[Kept], promised: &Promised, what: &str) {
    let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT)).unwrap();
    let database = store.database();
    let identity = Identity::read(database).unwrap();
    let trust: Option<TrustState> = database.read(Key::Trust).unwrap();
    assert_eq!(identity.is_some(), trust.is_some(), "{what}: enrolled by half");
    assert!(trust.is_some() || !promised.enrolled, "{what}: the enrolment was promised");
    let record: Option<StateRecord> = database.read(Key::Deployment).unwrap();
    let state = record.map(State::from).unwrap_or_default();
    let sequence = trust.map_or(0, |trust| trust.sequence());
    assert_eq!(sequence, state.desired, "{what}: trust and deployment are of two moments");
    assert!(sequence == 1 || !promised.imported, "{what}: the acceptance was promised");
    let kept: Option<KeptRecord> = database.read(Key::Credentials).unwrap();
    if promised.kept > 0 {
        let kept = Kept::from(kept.unwrap());
        // The step after the last promised one may have been made durable without returning.
        let near = &steps[promised.kept - 1..(promised.kept + 1).min(steps.len())];
        assert!(near.contains(&kept), "{what}: {kept:?} after {} steps", promised.kept);
    }
}

#[test]
fn trust_and_credentials_cut_at_every_operation() {
    let world = World::new(vec![package("p", 1, json!({}))]);
    let enrolment: Enrolment = serde_json::from_value(world.enrolment()).unwrap();
    let file = world.file(&world.bundle(1, DEVICE, &[0]), Some(DEVICE), &[0]);
    let steps = credentials();
    let mut points = 0;
    for (moment, loss) in [
        (Moment::Before, Loss::Everything),
        (Moment::Middle, Loss::Some(7)),
        (Moment::After, Loss::Everything),
    ] {
        for operation in 0.. {
            let disk = CutDisk::new();
            disk.cut_at(operation, moment);
            let mut promised = Promised::default();
            let result = live(&disk, &enrolment, &steps, &file, &mut promised);
            if !disk.is_dead() {
                result.unwrap();
                break;
            }
            points += 1;
            let what = format!("operation {operation}, {moment:?}, {loss:?}");
            let disk = disk.restart(loss);
            holds(&disk, &steps, &promised, &what);
            let mut after = Promised::default();
            live(&disk, &enrolment, &steps, &file, &mut after).unwrap_or_else(|e| panic!("{what}: {e}"));
            holds(&disk, &steps, &after, &what);
        }
    }
    crate::driver::say(&format!("enrolment, credentials and a file: {points} cut points, none skipped"));
    assert!(points > 150, "only {points} cut points");
}
