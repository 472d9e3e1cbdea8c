//! A broker that wants certificates, the authority behind it, and clients of every kind.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use selvedge_mqtt::{Client, ClientCredential, Handle, Inbox, Incoming, Options, Qos, Reason, Tls, TlsTime};
use selvedge_registry::pki::{Authority, Credential, Revoked, folder};

/// Nothing asserts speed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Mosquitto,
    Embedded,
}

pub struct Broker {
    pub kind: Kind,
    pub authority: Authority,
    pub port: u16,
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge-registry"));
    command.args(arguments).stdin(Stdio::null());
    command
}

impl Broker {
    pub async fn start(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("registry");
        let (data_text, out) = (data.to_str().unwrap(), dir.path().join("broker"));
        let (child, port) = match kind {
            Kind::Mosquitto => {
                let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
                let text = port.to_string();
                let status = command(&["pki", "mosquitto", "--data", data_text, "--name", "localhost"])
                    .args(["--name", "127.0.0.1", "--address", "127.0.0.1", "--port", &text, "--out"])
                    .arg(&out)
                    .status()
                    .unwrap();
                assert!(status.success());
                let config = out.join("mosquitto.conf");
                let text = std::fs::read_to_string(&config).unwrap();
                // Its files belong to whoever runs this test.
                std::fs::write(&config, format!("{text}\nuser root\n")).unwrap();
                let child = Command::new("mosquitto").arg("-c").arg(&config).stdin(Stdio::null()).spawn();
                (child.expect("mosquitto must be installed: apt-get install mosquitto"), port)
            }
            Kind::Embedded => {
                let file = dir.path().join("address");
                let child = command(&["broker", "--listen", "127.0.0.1:0", "--pki"])
                    .arg(folder(&data))
                    .arg("--data")
                    .arg(&out)
                    .arg("--address-file")
                    .arg(&file)
                    .spawn()
                    .unwrap();
                let address = wait(async || std::fs::read_to_string(&file).ok()).await;
                (child, address.rsplit_once(':').unwrap().1.parse().unwrap())
            }
        };
        let address = ("127.0.0.1", port);
        wait(async || tokio::net::TcpStream::connect(address).await.ok()).await;
        let authority = Authority::open_or_create(&folder(&data), Timestamp::now()).unwrap();
        Self { kind, authority, port, child, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the list of revoked certificates and makes it known to the broker.
    pub fn revoke(&self, serials: &[&str]) {
        let now = Timestamp::now();
        let revoked: Vec<_> =
            serials.iter().map(|serial| Revoked { serial: (*serial).to_owned(), at: now }).collect();
        self.authority.write_crl(&revoked, now).unwrap();
        self.publish_list();
    }

    fn publish_list(&self) {
        if self.kind == Kind::Mosquitto {
            std::fs::copy(self.authority.folder().join("crl.pem"), self.path("broker/crl.pem")).unwrap();
            let id = self.child.id().to_string();
            assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
        }
    }

    /// A client that believes this authority.
    pub fn tls(&self, client: Option<ClientCredential>) -> Tls {
        Tls { ca: self.authority.ca_pem().as_bytes().to_vec(), name: None, client, now: Arc::new(now) }
    }

    pub fn options(&self, id: &str, tls: Tls) -> Options {
        let mut options = Options::new(format!("mqtts://127.0.0.1:{}", self.port).parse().unwrap(), id);
        options.tls = Some(tls);
        options.subscriptions = vec![(format!("sv/v1/d/{id}/dn/#"), Qos::AtLeastOnce)];
        options
    }

    /// A device with a fresh certificate, connected.
    pub async fn device(&self, name: &str) -> (Handle, Inbox) {
        let tls = self.tls(Some(certified(&self.authority, name)));
        let (handle, mut inbox) = Client::start(self.options(name, tls)).unwrap();
        connected(&mut inbox).await;
        (handle, inbox)
    }

    /// The registry, connected, and hearing everything.
    pub async fn registry(&self) -> (Handle, Inbox) {
        let mut options = self.options("selvedge-registry-1", self.tls(Some(own(&self.authority))));
        options.subscriptions = vec![("sv/v1/#".to_owned(), Qos::AtLeastOnce)];
        let (handle, mut inbox) = Client::start(options).unwrap();
        connected(&mut inbox).await;
        (handle, inbox)
    }
}

pub fn now() -> TlsTime {
    TlsTime { at: SystemTime::now(), synchronised: true }
}

/// The registry's own certificate.
pub fn own(authority: &Authority) -> ClientCredential {
    let read = |name| std::fs::read(authority.folder().join(name)).unwrap();
    ClientCredential { chain: read("registry.pem"), key: read("registry.key") }
}

/// A device's certificate, good now for a day.
pub fn certified(authority: &Authority, name: &str) -> ClientCredential {
    issued(authority, name, Timestamp::now(), Duration::from_secs(86_400)).1
}

/// A device's certificate with its serial number.
pub fn issued(
    authority: &Authority,
    name: &str,
    at: Timestamp,
    lifetime: Duration,
) -> (String, ClientCredential) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let request = CertificateParams::default().serialize_request(&key).unwrap();
    let issued =
        authority.issue_device(request.der(), &name.parse().unwrap(), at, lifetime).unwrap().unwrap();
    let credential =
        ClientCredential { chain: issued.pem().into_bytes(), key: key.serialize_pem().into_bytes() };
    (issued.serial, credential)
}

pub fn credential(made: &Credential) -> ClientCredential {
    ClientCredential {
        chain: made.certificate_pem.clone().into_bytes(),
        key: made.key_pem.clone().into_bytes(),
    }
}

/// Another authority altogether.
pub fn stranger(dir: &Path) -> Authority {
    Authority::open_or_create(dir, Timestamp::now()).unwrap()
}

/// Waits until `ready` gives something.
pub async fn wait<T>(mut ready: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn next(inbox: &mut Inbox) -> Incoming {
    tokio::time::timeout(PATIENCE, inbox.recv()).await.expect("waited in vain").expect("the client goes on")
}

pub async fn connected(inbox: &mut Inbox) {
    loop {
        match next(inbox).await {
            Incoming::Connected { .. } => return,
            Incoming::Disconnected { why, .. } => eprintln!("not yet: {why}"),
            _ => {}
        }
    }
}

/// The next message; a lost connection is a failure.
pub async fn message(inbox: &mut Inbox) -> (String, String) {
    loop {
        match next(inbox).await {
            Incoming::Message { topic, payload } => {
                return (topic, String::from_utf8_lossy(&payload).into_owned());
            }
            Incoming::Disconnected { why, .. } => panic!("thrown out: {why}"),
            _ => {}
        }
    }
}

/// Why the client is not connected: the first reason that is not a broken link, which a refusal may
/// look like when it overtakes its own explanation.
pub async fn refused(inbox: &mut Inbox) -> (Reason, String) {
    judged(inbox).await.expect("it was let in")
}

/// The same, or `None`: it is connected.
pub async fn judged(inbox: &mut Inbox) -> Option<(Reason, String)> {
    loop {
        match next(inbox).await {
            Incoming::Disconnected { reason: Reason::Link, why, .. } => eprintln!("a broken link: {why}"),
            Incoming::Disconnected { reason, why, .. } => return Some((reason, why)),
            Incoming::Connected { .. } => return None,
            _ => {}
        }
    }
}
