//! Going back: each role, the sequence, and the whole, with what was valid once.

use crate::field::Field;
use crate::row::Gain::Nothing;
use crate::world::{World, identity};
use serde_json::json;

/// A device on which release 2 answers, and the worlds before.
fn field() -> (Field, World) {
    let mut field = Field::start();
    let before = field.world.clone();
    let second = identity("identity", 2, json!({}));
    field.world.release(&second);
    field.runs(&[&second]);
    (field, before)
}

#[test]
fn of_each_role() {
    let (mut field, before) = field();
    let old = before.bundle();
    field.row("rollback", "the whole as it was", Nothing, |field| {
        field.refuses(&old, &["would go back"]);
        assert_eq!(field.committed("identity"), Some(2));
    });
    field.row("rollback", "the whole Image repository", Nothing, |field| {
        let mut bundle = field.world.next();
        bundle.image = old.image.clone();
        field.refuses(&bundle, &["would go back"]);
    });
    field.row("rollback", "the whole Director repository", Nothing, |field| {
        let mut bundle = field.world.next();
        bundle.director = old.director.clone();
        bundle.assignment = old.assignment.clone();
        field.refuses(&bundle, &["would go back"]);
    });
    field.row("rollback", "the timestamp, signed anew with an old version", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.next();
        evil.image.timestamp_version = 0;
        evil.image.stamp();
        field.refuses(&evil.bundle(), &["would go back"]);
    });
    field.row("rollback", "the snapshot, under a new timestamp", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.next();
        evil.image.files.snapshot = before.image.files.snapshot.clone();
        evil.image.stamp();
        field.refuses(&evil.bundle(), &["would go back", "not trusted"]);
    });
    field.row("rollback", "the Image targets, under a new snapshot", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.image.files.targets = before.image.files.targets.clone();
        let bundle = evil.next();
        field.refuses(&bundle, &["would go back", "not trusted"]);
    });
    field.row("rollback", "the Director's versions, signed anew", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.director.timestamp_version = 0;
        evil.director.snapshot_version = 0;
        evil.director.targets_version = 0;
        let bundle = evil.next();
        field.refuses(&bundle, &["would go back"]);
    });
    field.row("rollback", "the sequence, under new Director versions", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.sequence -= 1;
        let bundle = evil.sign();
        field.refuses(&bundle, &["would go back", "sequence"]);
        // The attacker's Director versions count for nothing.
    });
    field.row("rollback", "the same sequence with other assignments", Nothing, |field| {
        let mut evil = field.world.clone();
        evil.assignments.clear();
        let bundle = evil.sign();
        field.refuses(&bundle, &["was accepted with other assignments"]);
    });
    field.row("rollback", "the root of before, said to be the next", Nothing, |field| {
        field.world.image.rotate();
        field.takes_next();
        let mut evil = field.world.clone();
        let mut root = evil.image.root();
        root["version"] = 1.into();
        evil.image.roots.push(crate::forge::sign(&root, &evil.image.root_keys));
        let bundle = evil.next();
        // It is no newer than what is held, and is passed over: nothing comes of it.
        field.offer(&bundle);
        field.takes_next();
        assert_eq!(field.status()["image_root"], 2);
    });
    field.done();
}
