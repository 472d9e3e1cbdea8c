//! A registry or broker that keeps new metadata back, and clocks that are wrong. It gets delay.

use jiff::Timestamp;
use selvedge_package::trust::accept;

use crate::fixture::{DAY, World, check_refused, device, target};

#[test]
fn what_has_expired_is_not_accepted_anew_but_stays_in_force() {
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    let offer = world.offer("edge-1", &[&first]);
    let held = world.accept(&state, &offer).unwrap().state;
    for (days, words) in [
        (8, "Director repository's timestamp expired"),
        (20, "Image repository's timestamp expired"),
        (800, "Image repository's root expired"),
    ] {
        world.now = crate::fixture::start() + DAY * days;
        check_refused(world.accept(&held, &offer), "expired", words);
        check_refused(world.accept(&state, &offer), "expired", "expired");
        let desired = held.desired(&device("edge-1")).unwrap().unwrap();
        assert_eq!(desired.assignments.len(), 1, "what was accepted stays readable");
    }
}

#[test]
fn image_roles_expire_one_by_one() {
    let mut world = World::new();
    let state = world.enrol();
    // The Director is fresh; the Image repository's snapshot is not, under a fresh timestamp.
    let old = world.image_metadata();
    world.now += DAY * 31;
    let mut offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    offer.image.snapshot = old.snapshot.clone();
    offer.image.timestamp =
        selvedge_signing::online::sign_timestamp(2, &old.snapshot, world.now + DAY, &world.image.timestamp)
            .unwrap();
    check_refused(world.accept(&state, &offer), "expired", "Image repository's snapshot");
    world.now += DAY * 340;
    let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
    check_refused(world.accept(&state, &offer), "expired", "Image repository's targets");
}

#[test]
fn a_clock_in_1970_is_raised_to_the_floor() {
    let mut world = World::new();
    let state = world.enrol();
    let first = target("file-type", "1.0.0", 1);
    let offer = world.offer("edge-1", &[&first]);
    let held = accept(&state, &offer, &device("edge-1"), Some(Timestamp::UNIX_EPOCH)).unwrap().state;
    // What the Director dated has surely passed, so the floor followed.
    assert_eq!(held.floor(), world.now);
    assert_eq!(held.now(None), world.now);
    assert_eq!(held.now(Some(Timestamp::UNIX_EPOCH)), world.now);
    // A device whose clock stands still does not take for fresh what expired before the floor.
    world.now += DAY * 30;
    let later = world.offer("edge-1", &[&first]);
    let held = accept(&held, &later, &device("edge-1"), Some(Timestamp::UNIX_EPOCH)).unwrap().state;
    check_refused(
        accept(&held, &offer, &device("edge-1"), Some(Timestamp::UNIX_EPOCH)),
        "expired",
        "timestamp",
    );
    assert_eq!(held.floor(), world.now);
}

#[test]
fn the_director_alone_cannot_push_the_floor_beyond_what_offline_keys_vouch_for() {
    let mut world = World::new();
    let state = world.enrol();
    world.sequence = 1;
    let mut assignment = world.assignment("edge-1", &[&target("file-type", "1.0.0", 1)]);
    assignment.issued_at = "2099-01-01T00:00:00Z".parse().unwrap();
    let offer = world.offer_of(&assignment);
    check_refused(world.accept(&state, &offer), "bad-assignment", "2099");
}

/// A thief of the Director's key dates an assignment ahead, so that the device takes everything that is
/// in force for expired. A clock that is synchronised stops that; without one the offline keys bound it.
#[test]
fn a_synchronised_clock_bounds_what_the_director_dates() {
    let mut world = World::new();
    let state = world.enrol();
    world.sequence = 1;
    let mut dated = |ahead| {
        let mut assignment = world.assignment("edge-1", &[&target("file-type", "1.0.0", 1)]);
        assignment.issued_at += ahead;
        world.offer_of(&assignment)
    };
    let (near, far) = (dated(DAY), dated(DAY * 2));
    let now = crate::fixture::start();
    assert!(accept(&state, &near, &device("edge-1"), Some(now)).is_ok());
    check_refused(accept(&state, &far, &device("edge-1"), Some(now)), "bad-assignment", "after the clock");
    let pushed = accept(&state, &far, &device("edge-1"), None).unwrap().state;
    assert_eq!(pushed.floor(), now + DAY * 2);
    // A clock that says what has surely passed is not believed: the device stays updatable.
    assert!(accept(&state, &near, &device("edge-1"), Some(Timestamp::UNIX_EPOCH)).is_ok());
    assert!(accept(&state, &near, &device("edge-1"), Some(state.floor() - DAY * 3)).is_ok());
}

/// The same thief goes as far as he may, and waits for the clock's next small step back.
#[test]
fn a_clock_that_steps_back_is_no_ratchet() {
    let mut world = World::new();
    let state = world.enrol();
    let now = crate::fixture::start();
    let mut dated = |ahead| {
        world.sequence += 1;
        let mut assignment = world.assignment("edge-1", &[&target("file-type", "1.0.0", 1)]);
        assignment.issued_at += ahead;
        world.offer_of(&assignment)
    };
    let first = dated(DAY);
    let next = dated(jiff::SignedDuration::from_hours(40));
    let held = accept(&state, &first, &device("edge-1"), Some(now)).unwrap().state;
    assert_eq!(held.floor(), now + DAY);
    for back in [0, 60, 20 * 3600] {
        let clock = now - jiff::SignedDuration::from_secs(back);
        check_refused(
            accept(&held, &next, &device("edge-1"), Some(clock)),
            "bad-assignment",
            "after the clock",
        );
        // What was taken once is no news.
        assert!(accept(&held, &first, &device("edge-1"), Some(clock)).is_ok());
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Whatever the thief dates, and however the clock steps, as long as it is never a day or more below the
    /// latest that it has shown: the floor stays within a day of that, and an honest date is always taken.
    #[test]
    fn no_sequence_of_offers_and_steps_is_a_ratchet(
        steps in proptest::collection::vec((-86_399_i64..86_400, 0_i64..4 * 86_400), 1..12),
    ) {
        let mut world = World::new();
        let mut state = world.enrol();
        let mut latest = world.now;
        for (step, ahead) in steps {
            let clock = latest + jiff::SignedDuration::from_secs(step);
            latest = latest.max(clock);
            world.now = clock + jiff::SignedDuration::from_secs(ahead);
            let offer = world.offer("edge-1", &[&target("file-type", "1.0.0", 1)]);
            match accept(&state, &offer, &device("edge-1"), Some(clock)) {
                Ok(accepted) => state = accepted.state,
                Err(error) => assert!(world.now > clock + DAY, "{error}"),
            }
            assert!(state.floor() <= latest + DAY, "{} after {latest}", state.floor());
        }
    }
}
