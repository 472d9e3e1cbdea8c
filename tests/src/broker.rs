//! The brokers that a stack can run over: the embedded one and Debian's Mosquitto, each with
//! certificates as in production, and without, for stories that must see or forge what is sent.

use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::programs::program;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    /// `selvedge-registry broker --pki`: TLS, and nobody without a certificate.
    EmbeddedTls,
    /// `selvedge-registry broker --anonymous`.
    Embedded,
    /// Debian's Mosquitto as `selvedge-registry pki mosquitto` sets it up, and these lines besides.
    MosquittoTls(&'static str),
    /// Debian's Mosquitto with `listener` and `allow_anonymous true`, and these lines besides.
    Mosquitto(&'static str),
}

impl Broker {
    /// Starts it on `address`, which was free a moment ago, with its files below `folder`. Its
    /// certificates are those of the registry whose data are in `registry` there.
    pub fn start(self, address: &str, folder: &Path) -> Process {
        let log = folder.join("broker.log");
        let (host, port) = address.rsplit_once(':').expect("an address has a port");
        match self {
            Self::EmbeddedTls | Self::Embedded => {
                let mut command = Command::new(program("selvedge-registry"));
                command.args(["broker", "--listen", address, "--data"]).arg(folder.join("broker"));
                match self {
                    Self::EmbeddedTls => command.arg("--pki").arg(folder.join("registry/pki")),
                    _ => command.arg("--anonymous"),
                };
                Process::start("broker", &mut command, &log)
            }
            Self::MosquittoTls(more) => {
                let out = folder.join("mosquitto");
                let config = out.join("mosquitto.conf");
                // Started again, it keeps its certificate and the list of revoked ones.
                if !config.exists() {
                    let mut command = Command::new(program("selvedge-registry"));
                    command.args(["pki", "mosquitto", "--name", host, "--address", host, "--port", port]);
                    command.arg("--data").arg(folder.join("registry")).arg("--out").arg(&out);
                    assert!(command.status().expect("selvedge-registry starts").success());
                    let text = std::fs::read_to_string(&config).expect("a configuration was written");
                    // Its files belong to whoever runs the story.
                    std::fs::write(&config, format!("{text}user root\n{more}\n"))
                        .expect("it can be added to");
                }
                let mut command = Command::new(mosquitto());
                Process::start("mosquitto", command.arg("-c").arg(&config), &log)
            }
            Self::Mosquitto(more) => {
                let config = folder.join("mosquitto.conf");
                let text = format!("listener {port} {host}\nallow_anonymous true\n{more}\n");
                std::fs::write(&config, text).expect("a configuration can be written");
                let mut command = Command::new(mosquitto());
                Process::start("mosquitto", command.arg("-c").arg(&config), &log)
            }
        }
    }

    /// Whether clients need certificates.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::EmbeddedTls | Self::MosquittoTls(_))
    }

    /// The URL of this broker at `address`.
    pub fn url(self, address: &str) -> String {
        format!("{}://{address}", if self.is_tls() { "mqtts" } else { "mqtt" })
    }

    /// After a revocation: what a person does who runs Mosquitto (docs/brokers.md). The embedded broker
    /// looks by itself.
    pub fn publish_revocations(self, broker: &Process, folder: &Path) {
        if let Self::MosquittoTls(_) = self {
            std::fs::copy(folder.join("registry/pki/crl.pem"), folder.join("mosquitto/crl.pem"))
                .expect("the list of revoked certificates can be copied");
            crate::process::send(broker.id(), rustix::process::Signal::HUP);
        }
    }
}

/// Debian puts it where a person's `PATH` does not look.
fn mosquitto() -> &'static str {
    ["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("mosquitto is installed: run `cargo xtask test`, which does it")
}
