//! Rotation and revocation of keys, and a root that is kept from the device.

use selvedge_package::trust::{Client, ImageFiles, TrustError, TrustState, adopt_roots, verify_image};
use selvedge_signing::image::renew;
use selvedge_signing::lifetimes::{IMAGE_TARGETS, ROOT, expiry};
use selvedge_signing::roots::{RoleKeys, countersign, sign_root};
use selvedge_signing::{Signer, SigningKey};

use crate::fixture::{Keys, World, check_refused, refusal, target};
use crate::hand;

/// Root 2 replaces every key of the Image repository.
fn rotate_image(world: &mut World) -> Keys {
    let new = Keys::new();
    let spec = new.spec(2, expiry(world.now, ROOT));
    let root = sign_root(&spec, &[&world.image.root, &new.root]).unwrap();
    world.image_roots.push(root);
    let old = std::mem::replace(&mut world.image, new);
    let expires = expiry(world.now, IMAGE_TARGETS);
    world.image_targets = renew(&world.image_targets, expires, &[&world.image.targets]).unwrap();
    world.image_version += 1;
    old
}

#[test]
fn new_keys_are_followed_and_old_ones_are_dead() {
    let mut world = World::new();
    let first = target("file-type", "1.0.0", 1);
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    let old = rotate_image(&mut world);
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&held, &offer).unwrap().state;
    assert_eq!(held.image_root_version().unwrap(), 2);

    // Hidden rotation: metadata by the revoked keys, with the old root, with none, or with both.
    let new = std::mem::replace(&mut world.image, old);
    world.image_targets =
        renew(&world.image_targets, expiry(world.now, IMAGE_TARGETS), &[&world.image.targets]).unwrap();
    world.image_version += 1;
    let mut offer = world.offer("edge-1", &[&first]);
    let both = offer.image.roots.clone();
    for roots in [vec![both[0].clone()], vec![], both] {
        offer.image.roots = roots;
        check_refused(world.accept(&held, &offer), "not-trusted", "threshold not met");
    }
    drop(new);
}

#[test]
fn a_rotation_needs_the_old_keys_and_the_new_ones() {
    let mut world = World::new();
    let state = world.enrol();
    let new = Keys::new();
    let spec = new.spec(2, expiry(world.now, ROOT));
    let Keys { root: old, targets: other, .. } = &world.image;
    let signed = |signers: &[&dyn Signer]| sign_root(&spec, signers).unwrap();
    let roots = [
        ("old keys missing", signed(&[&new.root])),
        ("new keys missing", signed(&[old])),
        ("a key of another role", signed(&[other, &new.root])),
    ];
    for (what, root) in roots {
        let mut offer = world.offer("edge-1", &[]);
        offer.image.roots.push(root);
        assert_eq!(refusal(world.accept(&state, &offer)).0, "not-trusted", "{what}");
    }
    // A version that is left out breaks the chain.
    let skipped = sign_root(&new.spec(3, expiry(world.now, ROOT)), &[&world.image.root, &new.root]);
    let mut offer = world.offer("edge-1", &[]);
    offer.image.roots.push(skipped.unwrap());
    check_refused(world.accept(&state, &offer), "not-trusted", "increment by one");
}

#[test]
fn two_of_three_root_keys() {
    let mut world = World::new();
    let people = [(); 3].map(|()| SigningKey::generate().unwrap());
    let mut spec = world.image.spec(2, expiry(world.now, ROOT));
    spec.root = RoleKeys { keys: people.iter().map(SigningKey::public_key).collect(), threshold: 2 };
    let alone = sign_root(&spec, &[&world.image.root, &people[0]]).unwrap();
    let mut offer = world.offer("edge-1", &[]);
    offer.image.roots.push(alone.clone());
    check_refused(world.accept(&world.enrol(), &offer), "not-trusted", "1/2 valid");
    // The second person signs the file on another machine; signing twice does not count twice.
    let twice = countersign(&alone, &[&people[0]]).unwrap();
    assert_eq!(twice, alone);
    let joined = countersign(&alone, &[&people[2]]).unwrap();
    *offer.image.roots.last_mut().unwrap() = joined;
    assert_eq!(world.accept(&world.enrol(), &offer).unwrap().state.image_root_version().unwrap(), 2);
}

#[test]
fn a_verified_root_is_kept_even_if_the_rest_of_the_offer_is_bad() {
    let mut world = World::new();
    let first = target("file-type", "1.0.0", 1);
    let before = world.offer("edge-1", &[&first]);
    let held = world.accept(&world.enrol(), &before).unwrap().state;
    rotate_image(&mut world);
    let mut bad = world.offer("edge-1", &[&first]);
    bad.assignment.clear();
    assert!(world.accept(&held, &bad).is_err());
    let adopted = adopt_roots(&held, &bad).unwrap().unwrap();
    assert_eq!(adopted.image_root_version().unwrap(), 2);
    assert_eq!(adopt_roots(&adopted, &bad).unwrap(), None);
    // From now on the revoked keys say nothing, though the device never saw good metadata since.
    check_refused(world.accept(&adopted, &before), "not-trusted", "threshold not met");
}

#[test]
fn a_thief_who_ran_the_versions_up_is_recovered_from_by_new_keys() {
    // He had all of the Director's online keys and signed versions and a sequence near the end.
    let mut world = World::new();
    let first = target("file-type", "1.0.0", 1);
    world.director_version = u64::MAX >> 2;
    world.sequence = u64::MAX >> 2;
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;

    let mut new = Keys::new();
    new.root = std::mem::replace(&mut world.director.root, SigningKey::generate().unwrap());
    let root = sign_root(&new.spec(2, expiry(world.now, ROOT)), &[&new.root]).unwrap();
    world.director_roots.push(root);
    world.director = new;
    world.director_version = 0;
    world.sequence = 0;
    let offer = world.offer("edge-1", &[&first]);
    let accepted = world.accept(&held, &offer).unwrap();
    assert_eq!(accepted.desired.sequence, 1);
    // The same in two steps, as an agent does it.
    let adopted = adopt_roots(&held, &offer).unwrap().unwrap();
    assert_eq!(adopted.director_keys().unwrap(), [*world.director.targets.public_key().as_bytes()]);
    assert_eq!(world.accept(&adopted, &offer).unwrap().state, accepted.state);
}

#[test]
fn a_chain_without_end_is_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let mut offer = world.offer("edge-1", &[]);
    offer.image.roots = vec![offer.image.roots[0].clone(); 33];
    check_refused(world.accept(&state, &offer), "too-large", "33 roots");
}

#[test]
fn the_registry_verifies_uploaded_targets() {
    let world = World::new();
    let root = &world.image_roots[0];
    let files = |world: &World| ImageFiles::unsplit(world.image_targets.clone());
    let read = verify_image(root, &files(&world), world.now).unwrap();
    assert_eq!((read.version, read.releases.len()), (1, 1));
    assert_eq!(read.releases[0].target, "file-type-1.0.0.pkg.json");
    let other = World::new();
    assert!(verify_image(root, &files(&other), world.now).is_err());
    assert!(verify_image(root, &files(&world), world.now + crate::fixture::DAY * 400).is_err());
}

/// The same people sign for both repositories, so a root of one would pass for the next of the other.
#[test]
fn a_root_that_names_the_other_repository_is_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let read: serde_json::Value = serde_json::from_slice(&world.image_roots[0]).unwrap();
    let mut signed = read["signed"].clone();
    signed["version"] = 2.into();
    for (named, taken) in [("director", false), ("image", true)] {
        signed["x-selvedge-repository"] = named.into();
        let root = crate::hand::sign(&signed, &[&world.image.root]);
        let mut offer = world.offer("edge-1", &[]);
        offer.image.roots.push(root.clone());
        match taken {
            true => assert_eq!(world.accept(&state, &offer).unwrap().state.image_root_version().unwrap(), 2),
            false => check_refused(world.accept(&state, &offer), "not-trusted", "another repository"),
        }
        let enrolled = selvedge_package::trust::TrustState::enrol(&root, &world.director_roots[0], world.now);
        assert_eq!(enrolled.is_ok(), taken);
    }
}

/// A root in which one person has two key ids, and so two of the signatures that are asked for.
#[test]
fn one_key_under_two_ids_does_not_make_two_signers() {
    let mut world = World::new();
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    for role in ["root", "targets", "snapshot", "timestamp"] {
        let root = sign_root(&world.image.spec(2, expiry(world.now, ROOT)), &[&world.image.root]).unwrap();
        let mut signed = serde_json::from_slice::<serde_json::Value>(&root).unwrap()["signed"].take();
        let id = signed["roles"][role]["keyids"][0].as_str().unwrap().to_owned();
        let twin = signed["keys"][&id].clone();
        signed["keys"]["twin"] = twin;
        signed["roles"][role]["keyids"] = serde_json::json!([id, "twin"]);
        let root = hand::sign(&signed, &[&world.image.root]);
        let mut offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
        offer.image.roots.push(root.clone());
        check_refused(world.accept(&held, &offer), "not-trusted", "would count twice");
        assert!(adopt_roots(&held, &offer).is_err(), "{role}");
        assert!(TrustState::enrol(&root, &world.director_roots[0], world.now).is_err(), "{role}");
        let files = ImageFiles::unsplit(world.image_targets.clone());
        let error = verify_image(&root, &files, world.now).unwrap_err();
        assert!(matches!(error, TrustError::Role { .. }), "{role}: {error}");
        // A client of any repository counts ids, as the specification does.
        assert!(Client::from_root(&root).is_ok(), "{role}");
    }
}
