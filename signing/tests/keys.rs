//! Key files: what openssl reads, who may read them, what is refused.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use selvedge_signing::keyring::{self, Keyring, OnlineKeys, RootFiles};
use selvedge_signing::{Signer, SigningError, SigningKey};

fn now() -> Timestamp {
    "2026-03-01T12:00:00.75Z".parse().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_key_survives_its_file_and_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pem");
    let key = SigningKey::generate().unwrap();
    key.save(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    let read = SigningKey::load(&path).unwrap();
    assert_eq!(read.public_key(), key.public_key());
    assert_eq!(read.key_id().unwrap(), key.key_id().unwrap());
    assert_eq!(read.sign(b"x").unwrap(), key.sign(b"x").unwrap());
    assert!(matches!(key.save(&path), Err(SigningError::Exists { .. })));
    assert!(!format!("{key:?}").contains("PRIVATE"));
}

#[test]
fn openssl_reads_our_keys_and_we_read_its() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pem");
    let key = SigningKey::generate().unwrap();
    key.save(&path).unwrap();
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(dir.path())
            .output()
            .expect("the tests need openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let public = openssl(&["pkey", "-in", "a.pem", "-pubout", "-outform", "DER"]);
    assert_eq!(public[public.len() - 32..], *key.public_key().as_bytes());

    openssl(&["genpkey", "-algorithm", "ed25519", "-out", "b.pem"]);
    let path = dir.path().join("b.pem");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let theirs = SigningKey::load(&path).unwrap();
    let public = openssl(&["pkey", "-in", "b.pem", "-pubout", "-outform", "DER"]);
    assert_eq!(public[public.len() - 32..], *theirs.public_key().as_bytes());
}

#[test]
fn files_that_are_no_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pem");
    let check = |content: &[u8], words: &str| {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = SigningKey::load(&path).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    check(b"", "not PEM");
    check(&[0; 100], "not PEM");
    check(&vec![b'a'; 20 << 10], "too large");
    check(b"-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n", "something else");
    check(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMTIz\n-----END ENCRYPTED PRIVATE KEY-----\n", "encrypted");
    check(b"-----BEGIN PRIVATE KEY-----\nMTIz\n-----END PRIVATE KEY-----\n", "not an ed25519 key");

    fs::remove_file(&path).unwrap();
    assert!(matches!(SigningKey::load(&path), Err(SigningError::File { .. })));
    SigningKey::generate().unwrap().save(&path).unwrap();
    for loose in [0o604, 0o644, 0o620, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(loose)).unwrap();
        let error = SigningKey::load(&path).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}

#[test]
fn a_key_ring_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let ring = dir.path().join("keys");
    let roots = keyring::init(&ring, now()).unwrap();
    let offline = Keyring::load(&ring).unwrap();
    let online = OnlineKeys::load(&ring.join("online")).unwrap();
    assert_eq!(RootFiles::load(&ring.join("roots")).unwrap(), roots);
    let mut public: Vec<_> = keyring::public_keys(&offline, &online).into_iter().map(|k| k.1).collect();
    public.sort();
    public.dedup();
    assert_eq!(public.len(), 8);
    for part in ["offline", "online", "roots"] {
        assert_eq!(mode(&ring.join(part)), 0o700);
    }
    for file in fs::read_dir(ring.join("offline")).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
    assert_eq!(fs::read_dir(&ring).unwrap().count(), 3, "nothing is left aside");
    // python-tuf refuses fractions of seconds.
    let head = selvedge_signing::metadata::head(&roots.image).unwrap();
    assert_eq!((head.role.as_str(), head.version), ("root", 1));
    assert_eq!(head.expires.to_string(), "2028-02-29T12:00:00Z");

    for part in ["online", "roots", "offline"] {
        let error = keyring::init(&ring, now()).unwrap_err();
        assert!(matches!(error, SigningError::Exists { .. }), "{error}");
        fs::remove_dir_all(ring.join(part)).unwrap();
    }
    keyring::init(&ring, now()).unwrap();
}
