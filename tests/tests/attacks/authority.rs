//! The registry's certificate authority in the hands of somebody who has its key: the registry's own
//! program makes it, and openssl signs whatever a thief wants.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use selvedge_mqtt::{ClientCredential, Tls, TlsTime};
use selvedge_tests::clock;
use selvedge_tests::programs::program;

/// A folder with `ca.pem` and `ca.key`, and what was signed with them.
pub struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// A new one, where the brokers of `selvedge_tests` look for it.
    pub fn new(dir: &Path) -> Self {
        let data = dir.join("registry");
        let mut command = Command::new(program("selvedge-registry"));
        let output = command.args(["pki", "init", "--data"]).arg(&data).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder: data.join("pki") }
    }

    /// The authority's certificate as PEM.
    pub fn ca(&self) -> String {
        self.text("ca.pem")
    }

    /// The registry's own way to the broker.
    pub fn registry(&self) -> Tls {
        self.tls((self.text("registry.pem"), self.text("registry.key")))
    }

    /// The way of somebody who shows this certificate and key.
    pub fn tls(&self, (certificate, key): (String, String)) -> Tls {
        let client = ClientCredential { chain: certificate.into_bytes(), key: key.into_bytes() };
        let now = || TlsTime { at: SystemTime::from(clock::date()), synchronised: true };
        Tls { ca: self.ca().into_bytes(), name: None, client: Some(client), now: Arc::new(now) }
    }

    /// A client certificate for `name` and its key, as PEM: what the thief of the CA's key makes.
    pub fn certificate(&self, name: &str) -> (String, String) {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name).display().to_string();
        let (key, request, certificate, use_) =
            (file("key"), file("request"), file("certificate"), file("use"));
        std::fs::write(&use_, "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n").unwrap();
        let (ca, ca_key) = (self.path("ca.pem"), self.path("ca.key"));
        let curve = "ec_paramgen_curve:P-256";
        openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", &key]);
        openssl(&["req", "-new", "-key", &key, "-subj", &format!("/CN={name}"), "-out", &request]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-set_serial",
            "0x1234567890",
            "-days",
            "30",
            "-extfile",
            &use_,
            "-out",
            &certificate,
        ]);
        let read = |path: &str| std::fs::read_to_string(path).unwrap();
        (read(&certificate), read(&key))
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap()
    }
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
