//! `selvedge-registry pki`: the authority from the command line, for setting up brokers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::DeviceId;
use sha2::{Digest as _, Sha256};

use super::authority::Authority;
use super::server::Server;
use super::{folder, mosquitto};
use crate::clock;
use crate::durable;
use crate::error::Error;

/// The registry's certificate authority.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make the authority, if there is none, and say which it is.
    Init {
        /// The registry's data directory; the authority lies in its folder `pki`.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Make a certificate for a broker, with what it needs to know its clients.
    Server(Broker),
    /// Make a certificate for a device that no registry enrols (docs/push.md). No registry knows of it,
    /// so none can revoke it.
    Device {
        /// The device's name.
        #[arg(value_name = "NAME")]
        device: DeviceId,
        /// The folder whose folder `pki` holds the authority.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Folder for NAME.pem and NAME.key.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// For how many days it is good; nobody renews it.
        #[arg(long, value_name = "DAYS", default_value_t = 3650,
              value_parser = clap::value_parser!(u64).range(1..=3650))]
        days: u64,
    },
    /// Make a certificate, rules and configuration for Mosquitto.
    Mosquitto {
        /// Its certificate.
        #[command(flatten)]
        broker: Broker,
        /// Address that Mosquitto listens on.
        #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
        address: std::net::IpAddr,
        /// Port that Mosquitto listens on.
        #[arg(long, value_name = "PORT", default_value_t = 8883)]
        port: u16,
    },
}

/// A broker's certificate.
#[derive(Debug, clap::Args)]
pub struct Broker {
    /// The registry's data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Host name or IP address by which clients reach the broker; may be given several times.
    #[arg(long = "name", value_name = "HOST", required = true)]
    names: Vec<String>,
    /// Folder for the files, on this machine or to be copied to the broker's.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Command {
    /// Does it; gives what to say.
    pub fn run(self) -> Result<String, Error> {
        match self {
            Self::Init { data } => {
                let authority = open(&data)?;
                Ok(format!(
                    "authority  {}\nfingerprint  {}\n",
                    authority.folder().join("ca.pem").display(),
                    fingerprint(authority.ca_pem())
                ))
            }
            Self::Server(broker) => {
                let (_, server) = broker.write()?;
                Ok(format!("certificate  {}\n", server.certificate.display()))
            }
            Self::Device { device, data, out, days } => {
                let authority = open(&data)?;
                let lifetime = Duration::from_secs(days * 24 * 3600);
                let made = authority.device_with_key(&device, clock::now(), lifetime)?;
                durable::private_directory(&out)?;
                let file = |end: &str| out.join(format!("{device}.{end}"));
                let (certificate, key) = (file("pem"), file("key"));
                authority.write_pair(&made, &certificate, &key)?;
                Ok(format!(
                    "certificate  {}\nkey  {} (a secret)\ngood until  {}\n",
                    certificate.display(),
                    key.display(),
                    made.issued.not_after
                ))
            }
            Self::Mosquitto { broker, address, port } => {
                let (out, server) = broker.write()?;
                mosquitto::write(&out, &server, &address.to_string(), port)?;
                Ok(format!("configuration  {}\n", out.join("mosquitto.conf").display()))
            }
        }
    }
}

impl Broker {
    fn write(&self) -> Result<(PathBuf, Server), Error> {
        let authority = open(&self.data)?;
        durable::private_directory(&self.out)?;
        // Mosquitto's configuration names them from wherever it is started.
        let out = self.out.canonicalize().map_err(Error::file("find", &self.out))?;
        let server = Server::write(&authority, &out, &self.names, clock::now())?;
        Ok((out, server))
    }
}

fn open(data: &Path) -> Result<Authority, Error> {
    Authority::open_or_create(&folder(data), clock::now())
}

/// SHA-256 of the certificate, as `openssl x509 -fingerprint -sha256` shows it.
fn fingerprint(pem: &str) -> String {
    let bytes = pem::parse(pem).map(|block| block.contents().to_vec()).unwrap_or_default();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}
