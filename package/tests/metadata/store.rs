//! The record on the device's disk: torn, zeroed, changed, exchanged. Damage is said, never taken
//! for a device that has accepted nothing yet.

use selvedge_package::trust::{MetadataBundle, TrustError, TrustState};

use crate::fixture::{World, check_refused, device, target};

#[test]
fn a_damaged_record_is_damage() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    let bytes = held.encode().unwrap();
    assert_eq!(TrustState::decode(&bytes).unwrap(), held);
    for torn in [&bytes[..0], &bytes[..1], &bytes[..bytes.len() / 2], &bytes[..bytes.len() - 1]] {
        assert!(TrustState::decode(torn).is_err());
    }
    assert!(TrustState::decode(&vec![0; bytes.len()]).is_err());
    let text = String::from_utf8(bytes).unwrap();
    assert!(TrustState::decode(text.replacen("\"format\":2", "\"format\":3", 1).as_bytes()).is_err());

    // Readable, but not what was signed: the verifier says so, whichever part it is.
    for (from, to) in [("timestamp", "timestamq"), ("snapshot", "snapshos"), ("file-type", "file-typo")] {
        let changed =
            TrustState::decode(text.replace(&format!("\\\"{from}"), &format!("\\\"{to}")).as_bytes())
                .unwrap();
        check_refused(world.accept(&changed, &offer), "damaged-state", "damaged");
        assert!(matches!(changed.desired(&device("edge-1")), Err(TrustError::Damaged { .. })));
    }
}

#[test]
fn a_record_with_a_part_missing_is_damage() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    for part in ["timestamp", "snapshot"] {
        let mut value: serde_json::Value = serde_json::from_slice(&held.encode().unwrap()).unwrap();
        value["director"][part] = serde_json::Value::Null;
        let torn = TrustState::decode(value.to_string().as_bytes()).unwrap();
        check_refused(world.accept(&torn, &offer), "damaged-state", "missing");
    }
}

#[test]
fn an_assignment_that_was_changed_or_lost_on_disk_is_damage() {
    let mut world = World::new();
    world.sequence = 6;
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    let good: serde_json::Value = serde_json::from_slice(&held.encode().unwrap()).unwrap();
    let lower = good["assignment"].as_str().unwrap().replace("\"sequence\":7", "\"sequence\":1");
    for assignment in [serde_json::Value::from(lower), "".into(), serde_json::Value::Null] {
        let mut value = good.clone();
        value["assignment"] = assignment;
        let changed = TrustState::decode(value.to_string().as_bytes()).unwrap();
        check_refused(world.accept(&changed, &offer), "damaged-state", "assignment");
    }
}

#[test]
fn a_bundle_reads_back_from_json() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let json = serde_json::to_vec(&offer).unwrap();
    assert_eq!(serde_json::from_slice::<MetadataBundle>(&json).unwrap(), offer);
}

#[test]
fn on_the_wire_a_bundle_is_hardly_larger_than_its_parts() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let mut cbor = Vec::new();
    ciborium::into_writer(&offer, &mut cbor).unwrap();
    let read: MetadataBundle = ciborium::from_reader(cbor.as_slice()).unwrap();
    assert_eq!(read, offer);
    let parts = |part: &selvedge_package::trust::RepositoryMetadata| {
        let roots: usize = part.roots.iter().map(Vec::len).sum();
        roots + part.timestamp.len() + part.snapshot.len() + part.targets.len()
    };
    let sum = parts(&offer.image) + parts(&offer.director) + offer.assignment.len();
    assert!(cbor.len() < sum + 200, "{} bytes for {sum}", cbor.len());
    assert!(cbor.len() < 16 << 10, "{} bytes", cbor.len());
}

/// What an agent wrote before there were delegated roles.
#[test]
fn a_record_of_format_1_is_still_read() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    let text = String::from_utf8(held.encode().unwrap()).unwrap();
    assert!(!text.contains("delegated"));
    let old = text.replacen("\"format\":2", "\"format\":1", 1);
    assert_eq!(TrustState::decode(old.as_bytes()).unwrap(), held);
}
