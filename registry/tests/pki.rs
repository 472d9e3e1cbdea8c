//! The registry's authority: what it makes is what openssl verifies, what devices ask for is judged,
//! and a power cut half-way leaves nothing that cannot be finished.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};
use selvedge_registry::error::Error;
use selvedge_registry::pki::{Authority, DEVICE_LIFETIME, RequestError, Revoked, Server};

fn now() -> Timestamp {
    selvedge_registry::clock::now()
}

fn authority(folder: &Path) -> Authority {
    Authority::open_or_create(folder, now()).unwrap()
}

fn request(params: CertificateParams, key: &KeyPair) -> Vec<u8> {
    params.serialize_request(key).unwrap().der().to_vec()
}

fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

fn openssl(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn at(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

fn verify(folder: &Path, certificate: &str, purpose: &str) -> (bool, String) {
    let (ca, crl) = (at(folder, "ca.pem"), at(folder, "crl.pem"));
    let file = at(folder, certificate);
    openssl(&[
        "verify",
        "-x509_strict",
        "-crl_check",
        "-CAfile",
        &ca,
        "-CRLfile",
        &crl,
        "-purpose",
        purpose,
        &file,
    ])
}

#[test]
fn openssl_believes_what_is_issued_until_it_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority(folder.path());
    let device = "edge-1".parse().unwrap();
    let asked = request(CertificateParams::default(), &p256());
    let issued = authority.issue_device(&asked, &device, now(), DEVICE_LIFETIME).unwrap().unwrap();
    std::fs::write(folder.path().join("device.pem"), issued.pem()).unwrap();
    let bootstrap = authority.bootstrap(&device, now()).unwrap();
    std::fs::write(folder.path().join("bootstrap.pem"), &bootstrap.certificate_pem).unwrap();
    let server = authority.server(&["broker.example".into(), "192.0.2.7".into()], now()).unwrap();
    std::fs::write(folder.path().join("server.pem"), &server.certificate_pem).unwrap();
    for (file, purpose, other) in [
        ("device.pem", "sslclient", "sslserver"),
        ("bootstrap.pem", "sslclient", "sslserver"),
        ("registry.pem", "sslclient", "sslserver"),
        ("server.pem", "sslserver", "sslclient"),
    ] {
        let (good, said) = verify(folder.path(), file, purpose);
        assert!(good, "{file}: {said}");
        assert!(!verify(folder.path(), file, other).0, "{file} is good for {other}");
    }
    let (_, said) =
        openssl(&["x509", "-noout", "-subject", "-serial", "-in", &at(folder.path(), "device.pem")]);
    assert!(said.contains("CN = edge-1") && said.to_lowercase().contains(&issued.serial), "{said}");
    for name in ["broker.example", "192.0.2.7"] {
        let flag = if name.starts_with('b') { "-verify_hostname" } else { "-verify_ip" };
        let (ca, file) = (at(folder.path(), "ca.pem"), at(folder.path(), "server.pem"));
        assert!(openssl(&["verify", "-CAfile", &ca, flag, name, &file]).0, "{name}");
    }
    assert!(issued.not_after > now().checked_add(Duration::from_secs(364 * 86_400)).unwrap());
    assert_ne!(issued.serial, bootstrap.issued.serial);

    authority.write_crl(&[Revoked { serial: issued.serial, at: now() }], now()).unwrap();
    let (good, said) = verify(folder.path(), "device.pem", "sslclient");
    assert!(!good && said.contains("revoked"), "{said}");
    assert!(verify(folder.path(), "bootstrap.pem", "sslclient").0, "another certificate stays good");
    assert!(matches!(
        authority.write_crl(&[Revoked { serial: "xyz".into(), at: now() }], now()),
        Err(Error::Corrupt { .. })
    ));
}

#[test]
fn a_request_gives_its_key_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority(folder.path());
    let mut greedy = CertificateParams::default();
    greedy.distinguished_name.push(DnType::CommonName, "registry");
    greedy.subject_alt_names.push(SanType::DnsName("broker.example".try_into().unwrap()));
    greedy.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    greedy.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![4, 1, 0]));
    for key in [p256(), KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap()] {
        let asked = request(greedy.clone(), &key);
        let issued = authority
            .issue_device(&asked, &"edge-1".parse().unwrap(), now(), DEVICE_LIFETIME)
            .unwrap()
            .unwrap();
        let path = folder.path().join("greedy.pem");
        std::fs::write(&path, issued.pem()).unwrap();
        let (_, text) = openssl(&["x509", "-noout", "-text", "-in", &path.display().to_string()]);
        assert!(text.contains("Subject: CN = edge-1\n"), "{text}");
        assert!(text.contains("CA:FALSE") && !text.contains("broker.example"), "{text}");
        assert!(!text.contains("1.2.3.4") && text.contains("TLS Web Client Authentication"), "{text}");
    }
    let asked = request(greedy, &p256());
    let refused = authority.issue_device(&asked, &"registry".parse().unwrap(), now(), DEVICE_LIFETIME);
    assert!(matches!(refused, Err(Error::Pki { .. })), "a device would be the registry");
    assert!(authority.bootstrap(&"registry".parse().unwrap(), now()).is_err());
}

#[test]
fn a_request_that_was_touched_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority(folder.path());
    let issue =
        |der: &[u8]| authority.issue_device(der, &"edge-1".parse().unwrap(), now(), DEVICE_LIFETIME).unwrap();
    let ask = |der: &[u8]| issue(der).map(drop);
    let key = p256();
    let good = request(CertificateParams::default(), &key);
    assert_eq!(ask(&good), Ok(()));
    // One certificate is issued for what is only written differently: for the same key.
    let harmless = |der: &[u8]| match issue(der) {
        Ok(issued) => issued.chain[0].windows(65).any(|window| window == key.public_key_raw()),
        Err(_) => true,
    };
    for position in 0..good.len() {
        for bit in 0..8 {
            let mut changed = good.clone();
            changed[position] ^= 1 << bit;
            assert!(harmless(&changed), "bit {bit} of byte {position} is not covered");
        }
        assert!(ask(&good[..position]).is_err(), "cut at {position}");
    }
    assert_eq!(ask(&[good.clone(), vec![0]].concat()), Err(RequestError::Form));
    assert_eq!(ask(&[]), Err(RequestError::Length));
    assert_eq!(ask(&vec![0x30; 5000]), Err(RequestError::Length));
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    assert_eq!(ask(&request(CertificateParams::default(), &p384)), Err(RequestError::Key));
}

#[test]
fn what_a_power_cut_leaves_is_finished_and_what_a_thief_leaves_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = authority(folder.path()).ca_pem().to_owned();
    for name in ["ca.key", "registry.key"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(authority(folder.path()).ca_pem(), first, "opening makes nothing new");
    let own = std::fs::read(folder.path().join("registry.pem")).unwrap();
    assert_eq!(std::fs::read(folder.path().join("registry.pem")).unwrap(), own);

    // Each file but the key may be missing, after a cut between two of them.
    for name in ["registry.pem", "registry.key", "crl.pem", "lock"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
        assert_eq!(authority(folder.path()).ca_pem(), first, "{name}");
        assert!(verify(folder.path(), "registry.pem", "sslclient").0, "{name}");
    }
    // A pair of two different times is made again.
    let other = tempfile::tempdir().unwrap();
    let strange = authority(other.path()).ca_pem().to_owned();
    std::fs::copy(other.path().join("registry.key"), folder.path().join("registry.key")).unwrap();
    authority(folder.path());
    assert_ne!(std::fs::read(folder.path().join("registry.pem")).unwrap(), own);

    let open = || Authority::open_or_create(folder.path(), now());
    std::fs::write(folder.path().join("ca.pem"), strange).unwrap();
    assert!(matches!(open(), Err(Error::Keys { .. })), "the certificate of another authority");
    std::fs::write(folder.path().join("ca.pem"), "").unwrap();
    assert!(open().is_err());
    std::fs::write(folder.path().join("ca.pem"), &first).unwrap();
    let key = std::fs::read(folder.path().join("ca.key")).unwrap();
    std::fs::remove_file(folder.path().join("ca.key")).unwrap();
    let said = open().err().expect("the key is missing").chain();
    assert!(said.contains("backup"), "{said}");
    std::fs::write(folder.path().join("ca.key"), &key[..40]).unwrap();
    assert!(open().is_err(), "a torn key");
    std::fs::write(folder.path().join("ca.key"), &key).unwrap();
    // Only the key was written before the cut.
    std::fs::remove_file(folder.path().join("ca.pem")).unwrap();
    authority(folder.path());
    assert!(verify(folder.path(), "registry.pem", "sslclient").0);
}

#[test]
fn a_brokers_certificate_is_kept_until_its_names_change_or_it_grows_old() {
    let folder = tempfile::tempdir().unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let make = |wanted: &[&str], days: u64| {
        let at = now().checked_add(Duration::from_secs(days * 86_400)).unwrap();
        let server = Server::beside_registry(folder.path(), &names(wanted), at).unwrap();
        std::fs::read(server.certificate).unwrap()
    };
    let first = make(&["localhost"], 0);
    assert_eq!(make(&["localhost"], 400), first);
    let renewed = make(&["localhost"], 600);
    assert_ne!(renewed, first);
    assert_ne!(make(&["broker.example"], 600), renewed);
    let authority = authority(folder.path());
    for bad in ["", "a b", "-a", "a..b", "*.x", "broker\n", &"x".repeat(64)] {
        assert!(authority.server(&names(&[bad]), now()).is_err(), "{bad:?}");
    }
    assert!(authority.server(&[], now()).is_err());
}

/// For a device that no registry enrols.
#[test]
fn a_device_gets_a_certificate_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let device = |name: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-registry"));
        command.args(["pki", "device", name, "--data", "data", "--out", "out"]).args(more);
        command.current_dir(dir.path()).output().unwrap()
    };
    let made = device("edge-1", &[]);
    assert!(made.status.success(), "{made:?}");
    let (out, pki) = (dir.path().join("out"), dir.path().join("data/pki"));
    let key = std::fs::metadata(out.join("edge-1.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    std::fs::copy(out.join("edge-1.pem"), pki.join("edge-1.pem")).unwrap();
    let (good, said) = verify(&pki, "edge-1.pem", "sslclient");
    assert!(good, "{said}");
    let (_, subject) = openssl(&["x509", "-noout", "-subject", "-in", &at(&out, "edge-1.pem")]);
    assert!(subject.trim().ends_with("CN = edge-1") || subject.trim().ends_with("CN=edge-1"), "{subject}");
    // Ten years, or what is said: nobody renews it.
    let lasts = |days: u64| {
        let seconds = (days * 24 * 3600).to_string();
        openssl(&["x509", "-noout", "-checkend", &seconds, "-in", &at(&out, "edge-1.pem")]).0
    };
    assert!(lasts(3649) && !lasts(3651));
    assert!(device("edge-1", &["--days", "7"]).status.success());
    assert!(lasts(6) && !lasts(8));

    // It would be the registry to every broker.
    assert!(!device("registry", &[]).status.success());
    assert!(!out.join("registry.pem").exists());
    for bad in [["--days", "0"], ["--days", "3651"]] {
        assert!(!device("edge-2", &bad).status.success());
    }
    assert!(!device("../edge-2", &[]).status.success());
}
