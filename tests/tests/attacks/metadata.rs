//! Metadata that was changed, cut, swollen or mixed on its way.

use selvedge_package::trust::{MetadataBundle, RepositoryMetadata};
use selvedge_protocol::envelope::{Body, to_cbor};
use selvedge_protocol::message::Want;
use selvedge_protocol::topic::Kind;

use crate::field::Field;
use crate::row::Gain::Nothing;

/// Every file of a bundle, by name.
type File = (&'static str, fn(&mut MetadataBundle) -> &mut Vec<u8>);

const FILES: [File; 7] = [
    ("the Image timestamp", |bundle| &mut bundle.image.timestamp),
    ("the Image snapshot", |bundle| &mut bundle.image.snapshot),
    ("the Image targets", |bundle| &mut bundle.image.targets),
    ("the Director timestamp", |bundle| &mut bundle.director.timestamp),
    ("the Director snapshot", |bundle| &mut bundle.director.snapshot),
    ("the Director targets", |bundle| &mut bundle.director.targets),
    ("the assignment", |bundle| &mut bundle.assignment),
];

const NOT_TAKEN: [&str; 9] = [
    "not trusted",
    "not what the Director signed for",
    "not what this program reads",
    "cannot be read",
    "is for the device",
    "expired",
    "too-large",
    "unreadable",
    "incomplete",
];

/// The next offer, with every file of it new: one that the device holds already it does not read.
fn renewed(field: &mut Field) -> MetadataBundle {
    field.world.image.publish();
    field.world.next()
}

#[test]
fn tampered() {
    let mut field = Field::start();
    for (name, file) in FILES {
        field.row("tampered", &format!("one byte of {name}, at ten places"), Nothing, |field| {
            for part in 0..10 {
                let mut bundle = renewed(field);
                let bytes = file(&mut bundle);
                let place = bytes.len() * part / 10;
                bytes[place] ^= 1;
                field.refuses(&bundle, &NOT_TAKEN);
            }
        });
    }
    field.row("tampered", "a signature of nothing by the right key", Nothing, |field| {
        let mut bundle = renewed(field);
        let mut timestamp: serde_json::Value = serde_json::from_slice(&bundle.image.timestamp).unwrap();
        timestamp["signatures"][0]["sig"] = hex::encode([0; 64]).into();
        bundle.image.timestamp = serde_json::to_vec(&timestamp).unwrap();
        field.refuses(&bundle, &NOT_TAKEN);
    });
    field.done();
}

#[test]
fn truncated() {
    let mut field = Field::start();
    for (name, file) in FILES {
        field.row("truncated", &format!("{name}, to nothing, to a half, by one byte"), Nothing, |field| {
            for keep in [|_| 0, |length| length / 2, |length: usize| length - 1] {
                let mut bundle = renewed(field);
                let bytes = file(&mut bundle);
                bytes.truncate(keep(bytes.len()));
                field.refuses(&bundle, &NOT_TAKEN);
            }
        });
    }
    field.row("truncated", "the bundle itself, at twenty places", Nothing, |field| {
        for part in 0..20 {
            let bytes = to_cbor(&renewed(field)).unwrap();
            field.refuses_bytes(bytes[..bytes.len() * part / 20].to_vec(), &NOT_TAKEN);
        }
    });
    field.done();
}

#[test]
fn endless() {
    let mut field = Field::start();
    let padded = |bytes: &[u8], size: usize| {
        let mut padded = bytes.to_vec();
        padded.resize(size, b' ');
        padded
    };
    for (name, file) in FILES {
        field.row("endless", &format!("{name}, padded to 96 KiB"), Nothing, |field| {
            let mut bundle = renewed(field);
            *file(&mut bundle) = padded(file(&mut bundle), 96 << 10);
            field.refuses(&bundle, &NOT_TAKEN);
        });
    }
    field.row("endless", "a chain of 100 roots", Nothing, |field| {
        let mut bundle = renewed(field);
        bundle.image.roots = vec![b"{}".to_vec(); 100];
        field.refuses(&bundle, &["too-large", "roots"]);
    });
    field.row("endless", "a root of 96 KiB", Nothing, |field| {
        let mut bundle = renewed(field);
        bundle.director.roots = vec![padded(&field.world.director.roots[0], 96 << 10)];
        field.refuses(&bundle, &["too-large", "a root"]);
    });
    field.row("endless", "a desired state of 4 GiB to be pulled", Nothing, |field| {
        let digest = selvedge_package::Digest::of(b"endless");
        field.registry.say(Kind::Want, Body::Want(Want::Pull { digest, size: 4 << 30 }));
        field.takes_next();
    });
    field.row("endless", "a desired state to be pulled that never comes", Nothing, |field| {
        let digest = selvedge_package::Digest::of(b"never");
        field.registry.say(Kind::Want, Body::Want(Want::Pull { digest, size: 100_000 }));
        field.takes_next();
    });
    field.row("endless", "nesting of 100 000 levels", Nothing, |field| {
        field.refuses_bytes(vec![0x81; 100_000], &NOT_TAKEN);
    });
    field.done();
}

#[test]
fn mixed() {
    let mut field = Field::start();
    type Part = (&'static str, fn(&mut RepositoryMetadata, &RepositoryMetadata));
    const PARTS: [Part; 3] = [
        ("timestamp", |to, from| to.timestamp = from.timestamp.clone()),
        ("snapshot", |to, from| to.snapshot = from.snapshot.clone()),
        ("targets", |to, from| to.targets = from.targets.clone()),
    ];
    for (part, put) in PARTS {
        field.row(
            "mixed",
            &format!("an Image {part} of one time with the rest of another"),
            Nothing,
            |field| {
                let early = field.world.next();
                field.world.image.publish();
                let mut late = field.world.next();
                put(&mut late.image, &early.image);
                field.refuses(&late, &NOT_TAKEN);
            },
        );
        field.row(
            "mixed",
            &format!("a Director {part} of one time with the rest of another"),
            Nothing,
            |field| {
                let early = field.world.next();
                let mut late = field.world.next();
                put(&mut late.director, &early.director);
                field.refuses(&late, &NOT_TAKEN);
            },
        );
        field.row("mixed", &format!("the Image {part} in the Director's place"), Nothing, |field| {
            let mut bundle = field.world.next();
            put(&mut bundle.director, &bundle.image.clone());
            field.refuses(&bundle, &NOT_TAKEN);
        });
    }
    field.row("mixed", "an assignment of one time with the metadata of another", Nothing, |field| {
        let early = field.world.next();
        let mut late = field.world.next();
        late.assignment = early.assignment;
        field.refuses(&late, &NOT_TAKEN);
    });
    field.row("mixed", "both repositories exchanged", Nothing, |field| {
        let bundle = field.world.next();
        let swapped = MetadataBundle {
            image: bundle.director.clone(),
            director: bundle.image.clone(),
            assignment: bundle.assignment.clone(),
        };
        field.refuses(&swapped, &NOT_TAKEN);
    });
    field.done();
}
