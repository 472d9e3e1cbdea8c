//! What is never signed: a version twice, a release counter that does not grow, impossible roots.
#![allow(clippy::unwrap_used, missing_docs)]

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_package::trust::ImageCustom;
use selvedge_signing::image::{ImageTarget, add_target, renew};
use selvedge_signing::metadata::head;
use selvedge_signing::online::{sign_snapshot, sign_timestamp};
use selvedge_signing::roots::{RoleKeys, RootSpec, sign_root};
use selvedge_signing::{SigningError, SigningKey};

fn expires() -> Timestamp {
    "2027-01-01T00:00:00.999Z".parse().unwrap()
}

fn target(version: &str, release: u64) -> ImageTarget {
    ImageTarget {
        digest: Digest::of(version.as_bytes()),
        length: 10,
        custom: ImageCustom {
            package: "file-type".parse().unwrap(),
            version: version.parse().unwrap(),
            release,
            min_release: 0,
            architectures: vec![],
        },
    }
}

#[test]
fn releases_only_grow() {
    let key = SigningKey::generate().unwrap();
    let first = add_target(None, &target("1.0.0", 3), expires(), &[&key]).unwrap();
    let add = |target: &ImageTarget| add_target(Some(&first), target, expires(), &[&key]);
    assert!(matches!(add(&target("1.0.0", 4)), Err(SigningError::Released { .. })));
    for release in [0, 2, 3] {
        let error = add(&target("1.1.0", release)).unwrap_err();
        assert!(error.to_string().contains("use `--release 4`"), "{error}");
    }
    let mut high = target("1.1.0", 4);
    high.custom.min_release = 5;
    assert!(matches!(add(&high), Err(SigningError::MinRelease { .. })));
    let second = add(&target("1.1.0-rc.1+build", 4)).unwrap();
    assert_eq!(head(&second).unwrap().version, 2);
    assert_eq!(head(&second).unwrap().expires.to_string(), "2027-01-01T00:00:00Z");
    assert_eq!(head(&renew(&second, expires(), &[&key]).unwrap()).unwrap().version, 3);
    let mut other = target("1.0.0", 1);
    other.custom.package = "other".parse().unwrap();
    add(&other).unwrap();
}

#[test]
fn nothing_is_signed_on_top_of_garbage() {
    let key = SigningKey::generate().unwrap();
    for bytes in [&b""[..], b"{}", b"[]", &b"[".repeat(100_000)] {
        assert!(add_target(Some(bytes), &target("1.0.0", 1), expires(), &[&key]).is_err());
        assert!(sign_snapshot(1, bytes, expires(), &key).is_err());
        assert!(sign_timestamp(1, bytes, expires(), &key).is_err());
    }
    let first = add_target(None, &target("1.0.0", 1), expires(), &[&key]).unwrap();
    assert!(matches!(sign_snapshot(0, &first, expires(), &key), Err(SigningError::Version { .. })));
    assert!(matches!(add_target(None, &target("1.0.0", 1), expires(), &[]), Err(SigningError::NoSigner)));
}

#[test]
fn a_threshold_must_be_possible() {
    let key = SigningKey::generate().unwrap();
    let single = RoleKeys::single(key.public_key());
    let twice = vec![key.public_key(), key.public_key()];
    for (keys, threshold) in
        [(vec![key.public_key()], 0), (vec![key.public_key()], 2), (twice, 2), (vec![], 1)]
    {
        let spec = RootSpec {
            version: 1,
            expires: expires(),
            root: RoleKeys { keys, threshold },
            targets: single.clone(),
            snapshot: single.clone(),
            timestamp: single.clone(),
        };
        assert!(matches!(sign_root(&spec, &[&key]), Err(SigningError::Threshold { .. })));
    }
}

#[test]
fn equal_contents_give_equal_bytes() {
    let key = SigningKey::generate().unwrap();
    let sign = || add_target(None, &target("1.0.0", 1), expires(), &[&key]).unwrap();
    assert_eq!(sign(), sign());
}
