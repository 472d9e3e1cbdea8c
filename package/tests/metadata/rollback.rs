//! Old metadata offered again. The attacker gets a refusal, however valid the signatures are.

use crate::fixture::{World, check_refused, target};

#[test]
fn every_role_refuses_to_go_back() {
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    let old = world.offer("edge-1", &[&first]);
    world.release(&target("file-type", "1.1.0", 2));
    let new = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &new).unwrap().state;

    check_refused(world.accept(&held, &old), "rollback", "timestamp would go back from version 2 to 1");
    let mut offer = new.clone();
    offer.director = old.director.clone();
    offer.assignment = old.assignment.clone();
    check_refused(world.accept(&held, &offer), "rollback", "Director repository's timestamp");
}

#[test]
fn a_new_timestamp_cannot_bring_an_old_snapshot_back() {
    // The thief has the timestamp key alone.
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    let old = world.offer("edge-1", &[&first]);
    world.release(&target("file-type", "1.1.0", 2));
    let new = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &new).unwrap().state;

    let mut offer = new;
    offer.image.snapshot = old.image.snapshot;
    offer.image.targets = old.image.targets;
    offer.image.timestamp = selvedge_signing::online::sign_timestamp(
        77,
        &offer.image.snapshot,
        world.now + crate::fixture::DAY,
        &world.image.timestamp,
    )
    .unwrap();
    check_refused(world.accept(&held, &offer), "rollback", "snapshot (via timestamp)");
}

#[test]
fn a_new_snapshot_cannot_bring_old_targets_back() {
    // The thief has the registry's online keys, not those of the people who release.
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    let old_targets = world.image_targets.clone();
    world.release(&target("file-type", "1.1.0", 2));
    let new = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &new).unwrap().state;

    world.image_targets = old_targets;
    world.image_version += 1;
    let offer = world.offer("edge-1", &[&first]);
    check_refused(world.accept(&held, &offer), "rollback", "targets.json (via snapshot)");
}

#[test]
fn the_sequence_never_goes_back_and_never_means_two_things() {
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    world.sequence = 4;
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &offer).unwrap().state;
    assert_eq!(held.sequence(), 5);

    world.sequence = 2;
    let lower = world.offer("edge-1", &[&first]);
    check_refused(world.accept(&held, &lower), "rollback", "sequence would go back from 5 to 3");

    world.sequence = 4;
    let other = world.offer("edge-1", &[]);
    check_refused(world.accept(&held, &other), "bad-assignment", "sequence 5 was accepted");

    // The same thing signed again, with a new nonce, is no change.
    world.sequence = 5;
    let mut assignment = world.assignment("edge-1", &[&first]);
    assignment.nonce = vec![9; 16];
    let renewed = world.offer_of(&assignment);
    assert_eq!(world.accept(&held, &renewed).unwrap().desired.nonce, [9; 16]);
}

#[test]
fn versions_are_floors_even_where_the_held_metadata_has_expired() {
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    world.image_version = 8;
    world.director_version = 8;
    // `targets.json` must fit its pin, so sign one with version 1 under snapshot 8.
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &offer).unwrap().state;
    world.now += crate::fixture::DAY * 60;
    world.image_version = 7;
    let offer = world.offer("edge-1", &[&first]);
    check_refused(world.accept(&held, &offer), "rollback", "from version 8 to 7");
}
