//! Roots: revoked keys that come back, and signatures that are too few.

use serde_json::json;

use crate::field::Field;
use crate::forge;
use crate::row::Gain::{Choice, Nothing};
use crate::world::{Repository, World, identity};

/// The repository, by name.
type Which = (&'static str, fn(&mut World) -> &mut Repository);

const BOTH: [Which; 2] = [("Image", |world| &mut world.image), ("Director", |world| &mut world.director)];

#[test]
fn hidden_rotation() {
    let mut field = Field::start();
    for (name, of) in BOTH {
        field.row(
            "hidden root rotation",
            &format!("revoked {name} keys under the factory root"),
            Nothing,
            |field| {
                let mut evil = field.world.clone();
                let repository = of(&mut field.world);
                repository.targets_keys = forge::keys(repository.targets_threshold);
                repository.snapshot_key = forge::keys(1);
                repository.timestamp_key = forge::keys(1);
                repository.rotate();
                let rotated = repository.roots.len();
                if name == "Director" {
                    field.registry.shared.lock().unwrap().key = Some(repository.targets_keys[0].clone());
                }
                field.takes_next();
                let version = if name == "Image" { "image_root" } else { "director_root" };
                assert_eq!(field.status()[version], rotated);
                // The thief of all the old keys signs far ahead, and leaves the new root out.
                let theirs = of(&mut evil);
                theirs.timestamp_version += 100;
                theirs.snapshot_version += 100;
                theirs.targets_version += 100;
                theirs.publish();
                evil.sequence += 100;
                let factory = of(&mut evil).roots[0].clone();
                let mut offer = |field: &mut Field, roots: Vec<Vec<u8>>| {
                    let (mut bundle, honest) = (evil.next(), field.world.next());
                    // Of the other repository he has what everybody has.
                    if name == "Image" {
                        bundle.image.roots = roots;
                        bundle.director = honest.director;
                        bundle.assignment = honest.assignment;
                    } else {
                        bundle.director.roots = roots;
                        bundle.image = honest.image;
                    }
                    field.refuses(&bundle, &["not trusted"]);
                };
                offer(field, Vec::new());
                offer(field, vec![factory.clone()]);
                field.restart_agent();
                assert_eq!(field.status()[version], rotated, "the newest root outlives the agent");
                offer(field, vec![factory]);
            },
        );
    }
    field.done();
}

#[test]
fn below_the_threshold() {
    let mut field = Field::start();
    for (name, of) in BOTH {
        field.row(
            "threshold",
            &format!("one of three {name} root keys signs the next root"),
            Nothing,
            |field| {
                let mut evil = field.world.clone();
                let theirs = of(&mut evil);
                theirs.targets_keys = forge::keys(theirs.targets_threshold);
                theirs.roots.push(forge::sign(&theirs.root(), &theirs.root_keys[..1]));
                theirs.publish();
                let bundle = evil.next();
                field.refuses(&bundle, &["not trusted"]);
            },
        );
        field.row("threshold", &format!("one {name} root key signs the next root twice"), Nothing, |field| {
            let mut evil = field.world.clone();
            let theirs = of(&mut evil);
            let twice = [theirs.root_keys[0].clone(), theirs.root_keys[0].clone()];
            theirs.roots.push(forge::sign(&theirs.root(), &twice));
            theirs.publish();
            let bundle = evil.next();
            field.refuses(&bundle, &["not trusted"]);
        });
        field.row("threshold", &format!("a {name} root signed by the new keys alone"), Nothing, |field| {
            let mut evil = field.world.clone();
            let theirs = of(&mut evil);
            theirs.root_keys = forge::keys(3);
            theirs.rotate();
            let bundle = evil.next();
            field.refuses(&bundle, &["not trusted"]);
        });
        field.row("threshold", &format!("a {name} root signed by the old keys alone"), Nothing, |field| {
            let mut evil = field.world.clone();
            let theirs = of(&mut evil);
            let old = theirs.root_keys.clone();
            theirs.root_keys = forge::keys(3);
            theirs.roots.push(forge::sign(&theirs.root(), &old));
            theirs.publish();
            let bundle = evil.next();
            field.refuses(&bundle, &["not trusted"]);
        });
        field.row("threshold", &format!("a {name} root that skips a version"), Nothing, |field| {
            let mut evil = field.world.clone();
            let theirs = of(&mut evil);
            let mut root = theirs.root();
            root["version"] = (theirs.roots.len() + 2).into();
            theirs.roots.push(forge::sign(&root, &theirs.root_keys));
            let bundle = evil.next();
            field.refuses(&bundle, &["not trusted"]);
        });
    }
    let second = identity("identity", 2, json!({}));
    for (name, keys) in [("one of two targets keys signs", 0..1), ("one targets key signs twice", 0..2)] {
        field.row("threshold", &format!("{name} a release"), Nothing, |field| {
            let mut evil = field.world.clone();
            let first = evil.image.targets_keys[0].clone();
            evil.image.targets_keys = keys.map(|_| first.clone()).collect();
            evil.release(&second);
            let bundle = evil.assign(vec![second.assigned()]);
            field.publish_bytes(&second);
            field.refuses(&bundle, &["not trusted"]);
        });
    }
    field.done();
}

#[test]
fn versions_at_the_end() {
    let mut field = Field::start();
    let gain = Choice("delay until the keys are changed");
    field.row("fast forward", "a stolen Director drives its versions to the end", gain, |field| {
        let mut evil = field.world.clone();
        evil.director.timestamp_version = u64::MAX / 4;
        evil.director.snapshot_version = u64::MAX / 4;
        evil.director.targets_version = u64::MAX / 4;
        evil.sequence = u64::MAX / 4;
        let bundle = evil.next();
        field.offer(&bundle);
        field.wait_status("the thief's sequence to be accepted", |status| {
            status["state"]["desired"] == evil.sequence
        });
        // The honest side is shut out until it changes the keys, and begins again at small numbers.
        let director = &mut field.world.director;
        director.targets_keys = forge::keys(1);
        director.snapshot_key = forge::keys(1);
        director.timestamp_key = forge::keys(1);
        director.rotate();
        field.registry.shared.lock().unwrap().key = Some(director.targets_keys[0].clone());
        field.takes_next();
        assert_eq!(field.committed("identity"), Some(1));
    });
    field.done();
}
