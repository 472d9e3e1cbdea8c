//! A broker that hands one device what was signed for another. It gets a refusal, and no floor moves.

use selvedge_package::trust::accept;

use crate::fixture::{World, check_refused, device, target};

#[test]
fn another_devices_state_is_refused_and_leaves_no_floor() {
    let mut world = World::new();
    let state = world.enrol();
    let package = target("file-type", "1.0.0", 1);
    let mine = world.offer("edge-1", &[&package]);
    // The other device's repository is far ahead in versions and sequence.
    world.director_version = 900;
    world.sequence = 900;
    let theirs = world.offer("edge-2", &[&package]);
    assert!(accept(&state, &theirs, &device("edge-2"), Some(world.now)).is_ok());
    check_refused(world.accept(&state, &theirs), "wrong-device", "`edge-2`, not for `edge-1`");
    assert_eq!(world.accept(&state, &mine).unwrap().desired.sequence, 1);
}

#[test]
fn my_assignment_under_another_devices_signatures_is_refused() {
    let mut world = World::new();
    let state = world.enrol();
    let package = target("file-type", "1.0.0", 1);
    let mine = world.offer("edge-1", &[&package]);
    let mut mixed = world.offer("edge-2", &[&package]);
    mixed.assignment = mine.assignment;
    check_refused(world.accept(&state, &mixed), "wrong-device", "edge-2");
}
