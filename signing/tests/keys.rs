//! Key files: what openssl reads, who may read them, what is refused.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use selvedge_signing::key::{Passphrase, Passphrases};
use selvedge_signing::keyring::{self, Keyring, OnlineKeys, RootFiles};
use selvedge_signing::roots::{RoleKeys, RootSpec, unsigned_root};
use selvedge_signing::{PublicKey, Signer, SigningError, SigningKey};

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

/// Runs openssl in a directory.
fn openssl(dir: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let output =
        Command::new("openssl").args(arguments).current_dir(dir).output().expect("the tests need openssl");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(error) }
}

struct Knows(&'static str);

impl Passphrases for Knows {
    fn passphrase(&self, _: &Path) -> Result<Passphrase, SigningError> {
        Passphrase::new(self.0)
    }
}

#[test]
fn encrypted_keys_go_both_ways_through_openssl() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pem");
    let key = SigningKey::generate().unwrap();
    key.save_encrypted(&path, &Passphrase::new("correct horse").unwrap()).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert!(SigningKey::is_encrypted(&path).unwrap());
    assert_eq!(SigningKey::load_with(&path, &Knows("correct horse")).unwrap().public_key(), key.public_key());
    let wrong = SigningKey::load_with(&path, &Knows("correct hearse")).unwrap_err();
    assert!(matches!(wrong, SigningError::WrongPassphrase { .. }), "{wrong}");
    assert!(matches!(SigningKey::load(&path).unwrap_err(), SigningError::Encrypted { .. }));
    let again = key.save_encrypted(&path, &Passphrase::new("correct horse").unwrap());
    assert!(matches!(again, Err(SigningError::Exists { .. })));

    let read = ["pkey", "-in", "a.pem", "-passin", "pass:correct horse", "-pubout", "-outform", "DER"];
    let public = openssl(dir.path(), &read).unwrap();
    assert_eq!(public[public.len() - 32..], *key.public_key().as_bytes());
    assert!(openssl(dir.path(), &["pkey", "-in", "a.pem", "-passin", "pass:x", "-noout"]).is_err());

    // Theirs: PBKDF2 by `genpkey`, scrypt and PBKDF2-SHA256 by `pkcs8`.
    openssl(dir.path(), &["genpkey", "-algorithm", "ed25519", "-out", "plain.pem"]).unwrap();
    let der = openssl(dir.path(), &["pkey", "-in", "plain.pem", "-pubout", "-outform", "DER"]).unwrap();
    for (name, how) in [
        ("scrypt.pem", &["-scrypt"][..]),
        ("pbkdf2.pem", &["-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA256"]),
        ("usual.pem", &[]),
    ] {
        let mut arguments = vec!["pkcs8", "-topk8", "-in", "plain.pem", "-out", name, "-passout", "pass:hi"];
        arguments.extend(how);
        openssl(dir.path(), &arguments).unwrap();
        let path = dir.path().join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let theirs = SigningKey::load_with(&path, &Knows("hi")).unwrap();
        assert_eq!(der[der.len() - 32..], *theirs.public_key().as_bytes(), "{name}");
        assert!(SigningKey::load_with(&path, &Knows("ho")).is_err());
    }
}

/// A file says itself how much work it costs: the work is bounded before it begins.
#[test]
fn a_key_file_that_would_cost_hours_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pem");
    SigningKey::generate()
        .unwrap()
        .save_encrypted(&path, &Passphrase::new("correct horse").unwrap())
        .unwrap();
    let mut block = pem::parse(fs::read(&path).unwrap()).unwrap().into_contents();
    // N = 2^14 as a DER integer, then r = 8 and p = 5.
    let cost = [0x02, 0x02, 0x40, 0x00, 0x02, 0x01, 0x08, 0x02, 0x01, 0x05];
    let at = block.windows(cost.len()).position(|window| window == cost).unwrap();
    for n in [[0x7f, 0xff], [0x00, 0x00], [0x00, 0x01], [0x40, 0x00]] {
        block[at + 2..at + 4].copy_from_slice(&n);
        block[at + 6] = if n == [0x40, 0x00] { 0x7f } else { 8 };
        block[at + 9] = if n == [0x40, 0x00] { 0x7f } else { 5 };
        fs::write(&path, pem::encode(&pem::Pem::new("ENCRYPTED PRIVATE KEY", block.clone()))).unwrap();
        let error = SigningKey::load_with(&path, &Knows("correct horse")).unwrap_err();
        assert!(matches!(error, SigningError::KeyFormat { .. }), "{error}");
    }
}

#[test]
fn public_keys_are_files_that_openssl_writes_too() {
    let dir = tempfile::tempdir().unwrap();
    let (path, public) = (dir.path().join("a.pem"), dir.path().join("a.pub"));
    let key = SigningKey::generate().unwrap();
    key.save(&path).unwrap();
    key.public_key().save(&public).unwrap();
    assert_eq!(PublicKey::load(&public).unwrap(), key.public_key());
    openssl(dir.path(), &["pkey", "-in", "a.pem", "-pubout", "-out", "b.pub"]).unwrap();
    assert_eq!(fs::read(&public).unwrap(), fs::read(dir.path().join("b.pub")).unwrap());
    let error = PublicKey::load(&path).unwrap_err();
    assert!(error.to_string().contains("PRIVATE"), "{error}");
    openssl(dir.path(), &["genpkey", "-algorithm", "x25519", "-out", "x.pem"]).unwrap();
    openssl(dir.path(), &["pkey", "-in", "x.pem", "-pubout", "-out", "x.pub"]).unwrap();
    assert!(PublicKey::load(&dir.path().join("x.pub")).is_err());
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
    check(b"-----BEGIN PUBLIC KEY-----\nMTIz\n-----END PUBLIC KEY-----\n", "the public key");
    let broken = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMTIz\n-----END ENCRYPTED PRIVATE KEY-----\n";
    check(broken, "not encrypted PKCS#8");
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

#[test]
fn of_several_online_keys_the_one_is_taken_that_the_root_names() {
    let dir = tempfile::tempdir().unwrap();
    let ring = dir.path().join("keys");
    let mut roots = keyring::init(&ring, now()).unwrap();
    let online = ring.join("online");
    let first = OnlineKeys::load(&online).unwrap();
    let next = SigningKey::generate().unwrap();
    SigningKey::generate().unwrap().save(&online.join("director-targets.2.pem")).unwrap();
    next.save(&online.join("director-targets.3.pem")).unwrap();
    let taken =
        |roots: &RootFiles| OnlineKeys::for_roots(&online, roots).unwrap().director_targets.public_key();
    assert_eq!(taken(&roots), first.director_targets.public_key());
    let mut spec = RootSpec::read(&roots.director).unwrap();
    spec.targets = RoleKeys::single(next.public_key());
    roots.director = unsigned_root("director", &spec).unwrap();
    assert_eq!(taken(&roots), next.public_key());
    // The old one may be taken away, then.
    fs::remove_file(online.join("director-targets.pem")).unwrap();
    assert_eq!(taken(&roots), next.public_key());
    spec.targets = RoleKeys::single(SigningKey::generate().unwrap().public_key());
    roots.director = unsigned_root("director", &spec).unwrap();
    assert!(OnlineKeys::for_roots(&online, &roots).is_err());
}
