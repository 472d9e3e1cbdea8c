//! Somebody on the way, or a broker, or a registry, without the keys: forged, changed and mixed
//! metadata. Nothing is accepted.

use selvedge_package::trust::MetadataBundle;
use selvedge_signing::SigningKey;
use selvedge_signing::image::add_target;
use selvedge_signing::lifetimes::{IMAGE_TARGETS, expiry};
use selvedge_signing::roots::sign_root;

use crate::fixture::{Keys, World, check_refused, target};

#[test]
fn what_is_signed_and_assigned_is_accepted() {
    let mut world = World::new();
    let state = world.enrol();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let accepted = world.accept(&state, &offer).unwrap();
    let assignment = &accepted.desired.assignments[0];
    assert_eq!(accepted.desired.sequence, 1);
    assert_eq!(accepted.desired.nonce, [1, 2, 3]);
    assert_eq!(assignment.package.as_str(), "file-type");
    assert_eq!(assignment.digest, target("file-type", "1.0.0", 1).digest);
    assert_eq!(assignment.settings["threshold"], "0.5");
    // The same offer again changes nothing.
    let again = world.accept(&accepted.state, &offer).unwrap();
    assert_eq!(again.state, accepted.state);
    assert_eq!(again.desired, accepted.desired);
}

#[test]
fn a_package_released_with_an_unknown_key_is_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let stranger = SigningKey::generate().unwrap();
    let evil = target("file-type", "6.6.6", 66);
    let expires = expiry(world.now, IMAGE_TARGETS);
    // The thief has the registry: it signs everything online for him.
    world.image_targets = add_target(Some(&world.image_targets), &evil, expires, &[&stranger]).unwrap();
    world.image_version += 1;
    let offer = world.offer("edge-1", &[&evil]);
    check_refused(world.accept(&state, &offer), "not-trusted", "threshold not met for role targets");
}

#[test]
fn online_roles_signed_by_the_wrong_key_are_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let mut offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let (snapshot, timestamp) = (&world.image.snapshot, &world.image.timestamp);
    offer.image = world.image_metadata_signed_by(timestamp, timestamp);
    check_refused(world.accept(&state, &offer), "not-trusted", "role snapshot");
    offer.image = world.image_metadata_signed_by(snapshot, snapshot);
    check_refused(world.accept(&state, &offer), "not-trusted", "role timestamp");
    // The Director's keys do not speak for the Image repository.
    offer.image = world.image_metadata_signed_by(&world.director.snapshot, &world.director.timestamp);
    check_refused(world.accept(&state, &offer), "not-trusted", "role timestamp");
}

type Part = fn(&mut MetadataBundle) -> &mut Vec<u8>;

const PARTS: [(&str, Part); 7] = [
    ("image timestamp", |offer| &mut offer.image.timestamp),
    ("image snapshot", |offer| &mut offer.image.snapshot),
    ("image targets", |offer| &mut offer.image.targets),
    ("director timestamp", |offer| &mut offer.director.timestamp),
    ("director snapshot", |offer| &mut offer.director.snapshot),
    ("director targets", |offer| &mut offer.director.targets),
    ("assignment", |offer| &mut offer.assignment),
];

#[test]
fn a_byte_changed_anywhere_is_refused_or_means_the_same() {
    let mut world = World::new();
    let state = world.enrol();
    let good = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let accepted = world.accept(&state, &good).unwrap();
    let mut refused = 0;
    for (name, part) in PARTS {
        let length = part(&mut good.clone()).len();
        for at in (0..length).step_by(7).chain([length - 1]) {
            let mut offer = good.clone();
            part(&mut offer)[at] ^= 1;
            match world.accept(&state, &offer) {
                Err(_) => refused += 1,
                // White space of a timestamp is not signed: only the meaning is.
                Ok(other) => {
                    assert!(name.ends_with("timestamp"), "{name} changed at {at}");
                    assert_eq!(other.desired, accepted.desired, "{name} changed at {at}");
                }
            }
        }
    }
    assert!(refused > 400, "{refused}");
}

#[test]
fn cut_or_empty_or_endless_metadata_is_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let good = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    for (name, part) in PARTS {
        for keep in [0, 1, 40] {
            let mut offer = good.clone();
            part(&mut offer).truncate(keep);
            assert!(world.accept(&state, &offer).is_err(), "{name} cut to {keep}");
        }
        let mut offer = good.clone();
        part(&mut offer).resize(5 << 20, b' ');
        check_refused(world.accept(&state, &offer), "too-large", "at most");
        let mut offer = good.clone();
        *part(&mut offer) = "[".repeat(10_000).into_bytes();
        assert!(world.accept(&state, &offer).is_err(), "{name} nested");
    }
}

#[test]
fn parts_of_two_offers_do_not_mix() {
    let mut world = World::new();
    let state = world.enrol();
    let (first, second) = (target("file-type", "1.0.0", 1), target("file-type", "1.1.0", 2));
    let old = world.offer("edge-1", &[&first]);
    world.release(&second);
    let new = world.offer("edge-1", &[&second]);
    for (name, part) in PARTS {
        let mut offer = new.clone();
        *part(&mut offer) = part(&mut old.clone()).clone();
        assert!(world.accept(&state, &offer).is_err(), "old {name} in a new offer");
        let mut offer = old.clone();
        *part(&mut offer) = part(&mut new.clone()).clone();
        assert!(world.accept(&state, &offer).is_err(), "new {name} in an old offer");
    }
}

#[test]
fn the_whole_of_another_registry_is_refused() {
    let world = World::new();
    let state = world.enrol();
    let mut other = World::new();
    let offer = other.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    check_refused(world.accept(&state, &offer), "not-trusted", "timestamp");
    // Nor does a root of his own make it trusted.
    let keys = Keys::new();
    let mut offer = offer;
    let root = sign_root(&keys.spec(2, expiry(world.now, IMAGE_TARGETS)), &[&keys.root]).unwrap();
    offer.image.roots.push(root);
    check_refused(world.accept(&state, &offer), "not-trusted", "root");
}
