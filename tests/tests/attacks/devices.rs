//! What was signed for one device, given to another.

use serde_json::{Map, json};

use crate::field::Field;
use crate::forge;
use crate::row::Gain::Nothing;

#[test]
fn replay_of_another_devices_state() {
    let mut field = Field::start();
    // Its registry has signed much more for it, so that its versions are far ahead.
    let mut other = field.world.clone();
    other.device = "edge-2".parse().unwrap();
    other.sequence = 90;
    other.director.timestamp_version = 900;
    other.director.snapshot_version = 900;
    other.director.targets_version = 900;
    let theirs = other.next();
    field.row("other device", "its whole state, with versions far ahead", Nothing, |field| {
        field.refuses(&theirs, &["is for the device `edge-2`"]);
    });
    field.row("other device", "its Director repository with our assignment", Nothing, |field| {
        let mut bundle = field.world.next();
        bundle.director = theirs.director.clone();
        field.refuses(&bundle, &["edge-2", "not what the Director signed for"]);
    });
    field.row("other device", "its assignment in our Director repository", Nothing, |field| {
        let mut bundle = field.world.next();
        bundle.assignment = theirs.assignment.clone();
        field.refuses(&bundle, &["edge-2"]);
    });
    field.row("other device", "its assignment, signed under our name", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.next();
        evil.assignment = theirs.assignment.clone();
        let entry = forge::entry(&evil.assignment, json!({}));
        evil.director.listed = Map::from_iter([("edge-1.json".to_owned(), entry)]);
        evil.director.publish();
        field.refuses(&evil.bundle(), &["edge-2"]);
    });
    field.done();
}
