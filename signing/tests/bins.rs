//! A repository that grows: it is split, every file stays small, and what is listed is never lost.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::trust::{ImageCustom, ImageFiles, bins, verify_image};
use selvedge_signing::image::ImageTarget;
use selvedge_signing::metadata::head;
use selvedge_signing::online::sign_image_snapshot;
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::tree::{Renewal, add_release, renew_files};
use selvedge_signing::{Signer, SigningError, SigningKey};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn expires() -> Timestamp {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

/// Two of three people release.
struct People {
    keys: [SigningKey; 3],
    root: Vec<u8>,
}

impl People {
    fn new() -> Self {
        let keys = [(); 3].map(|()| SigningKey::generate().unwrap());
        let other = SigningKey::generate().unwrap();
        let single = || RoleKeys::single(other.public_key());
        let spec = RootSpec {
            version: 1,
            expires: expires(),
            root: single(),
            targets: RoleKeys { keys: keys.iter().map(Signer::public_key).collect(), threshold: 2 },
            snapshot: single(),
            timestamp: single(),
        };
        Self { root: sign_root(&spec, &[&other]).unwrap(), keys }
    }

    fn signers(&self) -> [&dyn Signer; 2] {
        [&self.keys[2], &self.keys[0]]
    }

    fn add(&self, files: Option<&ImageFiles>, number: u64) -> ImageFiles {
        let changed = add_release(&self.root, files, &target(number), expires(), &self.signers()).unwrap();
        changed.on(files)
    }
}

fn target(number: u64) -> ImageTarget {
    ImageTarget {
        digest: Digest::of(&number.to_le_bytes()),
        length: 10,
        custom: ImageCustom {
            package: format!("package-{}", number % 100).parse().unwrap(),
            version: format!("1.{number}.0").parse().unwrap(),
            release: number,
            min_release: 0,
            architectures: vec![],
        },
    }
}

#[test]
fn a_repository_is_split_when_it_must_be_and_lists_all_it_ever_listed() {
    let people = People::new();
    let mut files: Option<ImageFiles> = None;
    for number in 1..=300 {
        let before = files.clone();
        let next = people.add(files.as_ref(), number);
        if number % 37 == 0 || number.abs_diff(bins::LARGEST_BIN as u64) < 3 {
            let read = verify_image(&people.root, &next, now()).unwrap();
            assert_eq!(read.releases.len() as u64, number);
            assert!(read.releases.iter().any(|listed| listed.custom.release == number));
        }
        assert_eq!(next.bins.is_empty(), number <= bins::LARGEST_BIN as u64);
        if let Some(before) = before {
            let changed: BTreeSet<&str> = next
                .roles()
                .filter(|(role, file)| !before.roles().any(|(held, old)| held == *role && old == *file))
                .map(|(role, _)| role)
                .collect();
            assert!(changed.len() <= 18, "{changed:?}");
            if number > bins::LARGEST_BIN as u64 + 1 {
                assert!(!changed.contains("targets"), "only the branch changes");
            }
            for (role, file) in before.roles() {
                let now = next.roles().find(|(held, _)| *held == role).unwrap().1;
                let versions = (head(file).unwrap().version, head(now).unwrap().version);
                assert!(versions.1 == versions.0 + u64::from(changed.contains(role)), "{role} {versions:?}");
            }
        }
        files = Some(next);
    }
    let files = files.unwrap();
    for (role, file) in files.roles() {
        assert!(file.len() < 64 << 10, "{role} has {} bytes", file.len());
    }
    // The counter is looked for in every bin.
    let again = add_release(&people.root, Some(&files), &target(300), expires(), &people.signers());
    assert!(matches!(again, Err(SigningError::Released { .. })));
    let mut lower = target(150);
    lower.custom.version = "9.0.0".parse().unwrap();
    let lower = add_release(&people.root, Some(&files), &lower, expires(), &people.signers());
    assert!(matches!(lower, Err(SigningError::ReleaseNotAbove { last: 250, .. })), "{lower:?}");
}

#[test]
fn everything_is_signed_again_by_other_keys() {
    let (people, others) = (People::new(), People::new());
    let mut files = people.add(None, 1);
    for number in 2..=80 {
        files = people.add(Some(&files), number);
    }
    let renewal = Renewal { root: &others.root, expires: expires(), least: 7 };
    let renewed = renew_files(&files, renewal, &others.signers(), |_, _| true).unwrap();
    assert_eq!(renewed.0.len(), files.roles().count());
    let renewed = renewed.on(Some(&files));
    let (was, is) = (
        verify_image(&people.root, &files, now()).unwrap(),
        verify_image(&others.root, &renewed, now()).unwrap(),
    );
    assert_eq!(was.releases, is.releases);
    assert!(is.roles.iter().all(|(role, version)| *version > was.roles[role] && *version >= 7));
    assert!(verify_image(&people.root, &renewed, now()).is_err());
    // One of two is not enough, and a part that was not signed again is noticed.
    let alone = renew_files(&files, renewal, &others.signers()[..1], |_, _| true).unwrap().on(Some(&files));
    assert!(verify_image(&others.root, &alone, now()).is_err());
    let part = renew_files(&files, renewal, &others.signers(), |role, _| role != "bin-3").unwrap();
    assert!(verify_image(&others.root, &part.on(Some(&files)), now()).is_err());
}

#[test]
fn a_snapshot_pins_bins_by_their_version() {
    let people = People::new();
    let mut files = people.add(None, 1);
    for number in 2..=80 {
        files = people.add(Some(&files), number);
    }
    let key = SigningKey::generate().unwrap();
    let snapshot = sign_image_snapshot(3, &files, expires(), &key).unwrap();
    let read: serde_json::Value = serde_json::from_slice(&snapshot).unwrap();
    let meta = read["signed"]["meta"].as_object().unwrap();
    assert_eq!(meta.len(), 1 + files.bins.len());
    assert_eq!(meta["targets.json"]["length"], files.targets.len());
    for (role, file) in &files.bins {
        let pin = &meta[&format!("{role}.json")];
        assert_eq!(pin["version"], head(file).unwrap().version);
        assert_eq!(pin.as_object().unwrap().len(), 1, "{pin}");
    }
}
