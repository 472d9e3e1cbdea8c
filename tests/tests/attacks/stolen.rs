//! Stolen keys, alone and together: what the design says that each gives.

use jiff::SignedDuration;
use serde_json::json;

use crate::field::Field;
use crate::row::Gain::{Choice, Nothing};
use crate::world::{Package, days, identity};

/// Three releases, the newest committed, with floor 2.
fn field() -> (Field, [Package; 3]) {
    let mut field = Field::start();
    let second = identity("identity", 2, json!({}));
    let third = identity("identity", 3, json!({ "min-release": 2, "settings": { "tone": "dark" } }));
    for package in [&second, &third] {
        field.world.release(package);
        field.publish_bytes(package);
    }
    field.runs(&[&third]);
    let first = field.first.clone();
    (field, [first, second, third])
}

#[test]
fn director_alone() {
    let (mut field, [first, second, third]) = field();
    field.row("stolen Director key", "assigns what was never released", Nothing, |field| {
        let mut evil = field.world.clone();
        let never = identity("identity", 9, json!({}));
        field.publish_bytes(&never);
        let bundle = evil.assign(vec![never.assigned()]);
        field.refuses(&bundle, &["never released"]);
    });
    field.row("stolen Director key", "assigns other bytes under a released name", Nothing, |field| {
        let mut evil = field.world.clone();
        let mut other = identity("identity", 3, json!({ "description": "not what was released" }));
        field.publish_bytes(&other);
        let bundle = evil.assign(vec![other.assigned()]);
        field.refuses(&bundle, &["disagree"]);
        other.manifest.release = 4;
        let bundle = field.world.clone().assign(vec![other.assigned()]);
        field.refuses(&bundle, &["disagree", "never released"]);
    });
    let gain = Choice("a choice among released packages at or above the floor");
    field.row("stolen Director key", "assigns an older release above the floor", gain, |field| {
        field.runs(&[&second]);
        field.runs(&[&third]);
    });
    field.row("stolen Director key", "assigns a release below the floor", Nothing, |field| {
        let bundle = field.world.assign(vec![first.assigned()]);
        field.takes(&bundle);
        field.fails("identity", "below-floor");
        assert_eq!(field.committed("identity"), Some(3));
        field.runs(&[&third]);
    });
    field.row(
        "stolen Director key",
        "takes the package away and assigns one below the floor",
        Nothing,
        |field| {
            // Another package stands in: the prober's must not stop.
            let old = identity("spare", 1, json!({}));
            let new = identity("spare", 2, json!({ "min-release": 2 }));
            field.world.release(&old);
            field.world.release(&new);
            field.runs(&[&third, &new]);
            field.runs(&[&third]);
            field.publish_bytes(&old);
            let bundle = field.world.assign(vec![third.assigned(), old.assigned()]);
            field.takes(&bundle);
            field.fails("spare", "below-floor");
            field.runs(&[&third]);
        },
    );
    field.row("stolen Director key", "sets what the package does not know", Nothing, |field| {
        let mut assigned = third.assigned();
        assigned.settings.insert("command".to_owned(), "rm -rf /".to_owned());
        let bundle = field.world.assign(vec![assigned]);
        field.takes(&bundle);
        selvedge_tests::wait::until("the settings to fail", || match field.failure("identity") {
            failure if failure.is_object() => Ok(()),
            _ => Err(field.status()),
        });
        assert_eq!(field.committed("identity"), Some(3));
        field.runs(&[&third]);
    });
    let gain = Choice("a choice of settings that the package knows");
    field.row("stolen Director key", "sets what the package knows", gain, |field| {
        let mut assigned = third.assigned();
        assigned.settings.insert("tone".to_owned(), "light".to_owned());
        let bundle = field.world.assign(vec![assigned]);
        field.takes(&bundle);
        field.runs(&[&third]);
    });
    field.row("stolen Director key", "settings of 100 KiB", Nothing, |field| {
        let mut assigned = third.assigned();
        assigned.settings.insert("tone".to_owned(), "x".repeat(100 << 10));
        let bundle = field.world.clone().assign(vec![assigned]);
        field.refuses(&bundle, &["bytes", "settings"]);
    });
    field.row("stolen Director key", "drives the device's time two days ahead", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.issued_at = Some(days(2));
        let bundle = evil.next();
        field.refuses(&bundle, &["bad-assignment"]);
    });
    let gain = Choice("to drive the device's time up to a day ahead");
    field.row("stolen Director key", "drives the device's time 20 hours ahead", gain, |field| {
        field.world.issued_at = Some(days(0).checked_add(SignedDuration::from_hours(20)).unwrap());
        field.takes_next();
        field.world.issued_at = None;
        field.takes_next();
    });
    field.row(
        "stolen Director key",
        "drives the time a day ahead, and from there another",
        Nothing,
        |field| {
            // The floor is 20 hours ahead of the clock now: that makes the clock no less believed.
            let mut evil = field.world.clone();
            evil.issued_at = Some(days(0).checked_add(SignedDuration::from_hours(40)).unwrap());
            let bundle = evil.next();
            field.refuses(&bundle, &["bad-assignment"]);
        },
    );
    field.row("stolen Director key", "signs new Image metadata with it", Nothing, |field| {
        let mut evil = field.world.clone();
        let never = identity("identity", 9, json!({}));
        let key = evil.director.targets_keys.clone();
        evil.image.targets_keys = key.clone();
        evil.image.snapshot_key = key.clone();
        evil.image.timestamp_key = key;
        evil.release(&never);
        let bundle = evil.assign(vec![never.assigned()]);
        field.refuses(&bundle, &["not trusted"]);
    });
    field.done();
}

#[test]
fn releasers_alone() {
    let (mut field, [_, _, third]) = field();
    let evil_release = identity("identity", 4, json!({ "description": "evil" }));
    field.publish_bytes(&evil_release);
    field.row("stolen targets keys", "all of them, without any online key", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.image.snapshot_key = crate::forge::keys(1);
        evil.image.timestamp_key = crate::forge::keys(1);
        evil.release(&evil_release);
        let mut bundle = evil.bundle();
        let honest = field.world.next();
        bundle.director = honest.director.clone();
        bundle.assignment = honest.assignment.clone();
        field.refuses(&bundle, &["not trusted"]);
        // New targets under the honest snapshot, which pins others.
        field.world.image.publish();
        let mut bundle = field.world.next();
        bundle.image.targets = evil.image.files.targets.clone();
        field.refuses(&bundle, &["not trusted", "too-large"]);
    });
    field.row("stolen targets key", "one of two, with every online key", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.image.targets_keys.truncate(1);
        evil.release(&evil_release);
        let bundle = evil.assign(vec![evil_release.assigned()]);
        field.refuses(&bundle, &["not trusted"]);
    });
    let gain = Choice("to have released, which assigns nothing");
    field.row("stolen targets keys", "all of them and the Image online keys", gain, |field| {
        // The thief lists a release; the Director still says what it said.
        field.world.release(&evil_release);
        field.takes_next();
        assert_eq!(field.committed("identity"), Some(3));
        // He lists other bytes under the name that the Director assigns.
        let mut evil = field.world.clone();
        let mut entry = evil_release.entry();
        entry["custom"] = third.entry()["custom"].clone();
        evil.image.listed.insert(third.target(), entry);
        evil.image.publish();
        let bundle = evil.next();
        field.refuses(&bundle, &["disagree"]);
    });
    field.done();
}

#[test]
fn every_online_key() {
    let (mut field, [first, second, third]) = field();
    field.row("every online key", "releases what nobody released", Nothing, |field| {
        let mut evil = field.world.clone();
        let never = identity("identity", 9, json!({}));
        field.publish_bytes(&never);
        evil.image.targets_keys = evil.image.snapshot_key.clone();
        evil.release(&never);
        let bundle = evil.assign(vec![never.assigned()]);
        field.refuses(&bundle, &["not trusted"]);
    });
    field.row("every online key", "takes a release back out of the list", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.image.targets_version -= 1;
        evil.image.listed.remove(&third.target());
        // He has the targets of before, signed by their owners.
        evil.image.publish();
        let bundle = evil.next();
        field.refuses(&bundle, &["would go back", "not trusted", "never released"]);
    });
    let gain = Choice("a choice among released packages at or above the floor");
    field.row("every online key", "assigns an older release, and one below the floor", gain, |field| {
        field.runs(&[&second]);
        let bundle = field.world.assign(vec![first.assigned()]);
        field.takes(&bundle);
        field.fails("identity", "below-floor");
        assert_eq!(field.committed("identity"), Some(2));
        field.runs(&[&third]);
    });
    field.done();
}

#[test]
fn hardware() {
    let (mut field, [_, _, third]) = field();
    field.row("wrong hardware", "a release for another architecture", Nothing, |field| {
        let foreign = identity("foreign", 1, json!({ "requires": { "architectures": ["s390x"] } }));
        let spare = identity("spare", 1, json!({}));
        field.world.release(&foreign);
        field.world.release(&spare);
        field.publish_bytes(&foreign);
        field.publish_bytes(&spare);
        let bundle = field.world.assign(vec![third.assigned(), foreign.assigned(), spare.assigned()]);
        field.takes(&bundle);
        field.fails("foreign", "wrong-hardware");
        selvedge_tests::wait::until("the other package to be committed", || match field.committed("spare") {
            Some(1) => Ok(()),
            other => Err(other),
        });
        assert_eq!(field.committed("foreign"), None);
        let asked = field.data().join("blobs/sha256").join(foreign.digest.hex());
        assert!(!asked.exists(), "it was fetched");
    });
    field.row(
        "wrong hardware",
        "the running package in a release for another architecture",
        Nothing,
        |field| {
            let foreign = identity("identity", 4, json!({ "requires": { "architectures": ["s390x"] } }));
            field.world.release(&foreign);
            field.publish_bytes(&foreign);
            let bundle = field.world.assign(vec![foreign.assigned()]);
            field.takes(&bundle);
            field.fails("identity", "wrong-hardware");
            assert_eq!(field.committed("identity"), Some(3));
        },
    );
    field.done();
}
