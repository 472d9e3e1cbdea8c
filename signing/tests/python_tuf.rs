//! python-tuf, the reference implementation, reads what is signed here: roots with a rotation,
//! both repositories, in the standard file layout.
//!
//! It runs in the Python environment that `cargo xtask setup` makes (`SELVEDGE_PYTHON` names another
//! one); without it the test fails.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::trust::{DirectorAssignment, ImageCustom, ImageFiles};
use selvedge_signing::director::sign_device;
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::keyring::{self, Keyring, OnlineKeys};
use selvedge_signing::metadata::head;
use selvedge_signing::online::{sign_image_snapshot, sign_snapshot, sign_timestamp};
use selvedge_signing::roots::{RoleKeys, RootSpec, countersign, sign_root};
use selvedge_signing::tree::{Renewal, add_release, renew_files};
use selvedge_signing::{Signer, SigningKey};

fn python() -> PathBuf {
    std::env::var_os("SELVEDGE_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/setup/venv/bin/python"),
        PathBuf::from,
    )
}

/// What python-tuf says of `targets` in the repository at `folder`, or its error.
fn read(folder: &Path, root: &Path, targets: &[&str]) -> Result<serde_json::Value, String> {
    let output = Command::new(python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_tuf/read.py"))
        .args([folder, root])
        .args(targets)
        .output()
        .expect("python-tuf is missing: run `cargo xtask setup`");
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn target() -> ImageTarget {
    ImageTarget {
        digest: Digest::of(b"manifest"),
        length: 8,
        custom: ImageCustom {
            package: "file-type".parse().unwrap(),
            version: "1.0.0-rc.1".parse().unwrap(),
            release: 7,
            min_release: 3,
            architectures: vec!["x86_64".into(), "aarch64".into()],
        },
    }
}

#[test]
fn python_tuf_reads_what_we_sign() {
    // python-tuf asks the system's clock, so the metadata must live far beyond any.
    let (now, expires): (Timestamp, Timestamp) =
        ("2026-01-01T00:00:00.5Z".parse().unwrap(), "2900-01-01T00:00:00.25Z".parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let ring = dir.path().join("keys");
    let roots = keyring::init(&ring, now).unwrap();
    let offline = Keyring::load(&ring).unwrap();
    let online = OnlineKeys::load(&ring.join("online")).unwrap();
    let image = dir.path().join("image");
    fs::create_dir(&image).unwrap();
    let put = |folder: &Path, name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();

    // Root 2: two of three people, the timestamp key replaced.
    let people = [(); 3].map(|()| SigningKey::generate().unwrap());
    let timestamp_key = SigningKey::generate().unwrap();
    let single = |key: &SigningKey| RoleKeys::single(key.public_key());
    let spec = RootSpec {
        version: 2,
        expires,
        root: RoleKeys { keys: people.iter().map(Signer::public_key).collect(), threshold: 2 },
        targets: single(&offline.image_targets),
        snapshot: single(&online.image_snapshot),
        timestamp: single(&timestamp_key),
    };
    let root = sign_root(&spec, &[&offline.image_root, &people[0]]).unwrap();
    let root = countersign(&root, &[&people[1]]).unwrap();
    put(&image, "1.root.json", &roots.image);
    put(&image, "2.root.json", &root);
    let targets = add_target(None, &target(), expires, &[&offline.image_targets]).unwrap();
    let snapshot = sign_snapshot(5, &targets, expires, &online.image_snapshot).unwrap();
    put(&image, "1.targets.json", &targets);
    put(&image, "5.snapshot.json", &snapshot);
    put(&image, "timestamp.json", &sign_timestamp(9, &snapshot, expires, &timestamp_key).unwrap());

    let name = target().name();
    let first = ring.join("roots/image.root.json");
    let found = read(&image, &first, &[&name, "absent"]).unwrap();
    assert_eq!(found["absent"], serde_json::Value::Null);
    assert_eq!(found[&name]["length"], 8);
    assert_eq!(found[&name]["sha256"], Digest::of(b"manifest").hex());
    let custom: ImageCustom = serde_json::from_value(found[&name]["custom"].clone()).unwrap();
    assert_eq!(custom, target().custom);

    // It refuses what our own verifier refuses: the revoked timestamp key.
    let stale = sign_timestamp(10, &snapshot, expires, &online.image_timestamp).unwrap();
    put(&image, "timestamp.json", &stale);
    assert!(read(&image, &first, &[&name]).unwrap_err().contains("timestamp was signed by 0/1 keys"));

    let director = dir.path().join("director");
    fs::create_dir(&director).unwrap();
    let assignment = DirectorAssignment {
        format: 1,
        device: "edge-1".parse().unwrap(),
        sequence: 1,
        issued_at: now,
        nonce: vec![0xab; 16],
        assignments: Vec::new(),
    };
    let signed = sign_device(3, &assignment, expires, online.director()).unwrap();
    put(&director, "1.root.json", &roots.director);
    put(&director, "3.targets.json", &signed.targets);
    put(&director, "3.snapshot.json", &signed.snapshot);
    put(&director, "timestamp.json", &signed.timestamp);
    // The root of `init` lives two years from `now`; a longer one stands in for it.
    let spec = RootSpec {
        version: 2,
        expires,
        root: single(&offline.director_root),
        targets: single(&online.director_targets),
        snapshot: single(&online.director_snapshot),
        timestamp: single(&online.director_timestamp),
    };
    put(&director, "2.root.json", &sign_root(&spec, &[&offline.director_root]).unwrap());
    let found = read(&director, &ring.join("roots/director.root.json"), &["edge-1.json"]).unwrap();
    assert_eq!(found["edge-1.json"]["sha256"], Digest::of(&signed.assignment).hex());
}

/// Two of three people release more than one file can list; then one of them is replaced, and with
/// the key everything is signed again.
#[test]
fn python_tuf_follows_bins_thresholds_and_rotation() {
    let expires: Timestamp = "2900-01-01T00:00:00Z".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let key = || SigningKey::generate().unwrap();
    let (mut people, online) = ([key(), key(), key()], key());
    let spec = |version, people: &[SigningKey; 3]| {
        let three = RoleKeys { keys: people.iter().map(Signer::public_key).collect(), threshold: 2 };
        let single = || RoleKeys::single(online.public_key());
        RootSpec {
            version,
            expires,
            root: three.clone(),
            targets: three,
            snapshot: single(),
            timestamp: single(),
        }
    };
    let first = sign_root(&spec(1, &people), &[&people[0], &people[1]]).unwrap();
    let publish = |files: &ImageFiles, version: u64| {
        for (role, file) in files.roles() {
            put(&format!("{}.{role}.json", head(file).unwrap().version), file);
        }
        let snapshot = sign_image_snapshot(version, files, expires, &online).unwrap();
        put(&format!("{version}.snapshot.json"), &snapshot);
        put("timestamp.json", &sign_timestamp(version, &snapshot, expires, &online).unwrap());
    };
    let numbered = |number: u64| {
        let mut target = target();
        target.custom.version = format!("1.{number}.0").parse().unwrap();
        target.custom.release = 100 + number;
        target
    };
    let mut files: Option<ImageFiles> = None;
    for number in 0..200 {
        let signers: [&dyn Signer; 2] = [&people[1], &people[2]];
        let changed = add_release(&first, files.as_ref(), &numbered(number), expires, &signers).unwrap();
        files = Some(changed.on(files.as_ref()));
    }
    let files = files.unwrap();
    assert!(files.bins.len() > 10);
    put("1.root.json", &first);
    publish(&files, 1);
    let names: Vec<String> = [0, 77, 199].map(|number| numbered(number).name()).into();
    let mut asked: Vec<&str> = names.iter().map(String::as_str).collect();
    asked.push("file-type-9.9.9.pkg.json");
    let trusted = dir.path().join("1.root.json");
    let check = || {
        let found = read(dir.path(), &trusted, &asked)?;
        for name in &names {
            assert_eq!(found[name]["length"], 8, "{name}");
        }
        assert_eq!(found["file-type-9.9.9.pkg.json"], serde_json::Value::Null);
        Ok::<_, String>(())
    };
    check().unwrap();

    // Root 2 replaces the third person: the old lists are not hers any more, nor enough by one alone.
    let lost = std::mem::replace(&mut people[2], key());
    let second = sign_root(&spec(2, &people), &[&people[0], &people[1]]).unwrap();
    put("2.root.json", &second);
    let renewal = Renewal { root: &second, expires, least: 0 };
    let sign_again = |signers: &[&dyn Signer], version| {
        let renewed = renew_files(&files, renewal, signers, |_, _| true).unwrap();
        publish(&renewed.on(Some(&files)), version);
        check()
    };
    let alone = sign_again(&[&people[0], &lost], 2).unwrap_err();
    assert!(alone.contains("targets was signed by 1/2 keys"), "{alone}");
    sign_again(&[&people[0], &people[2]], 3).unwrap();
}
