//! `selvedge push` and `selvedge target enrol --offline`: a released package to a device through any
//! broker, without a registry. This is the command line of it; `crate::push` does the work.

use std::path::{Path, PathBuf};

use selvedge_mqtt::BrokerAddress;
use selvedge_package::DeviceId;
use selvedge_signing::PublicKey;

use crate::ceremony::passphrase::PassphraseArgs;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::reference::Pair;

/// Serve a package to one device through a broker, without a registry.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    selvedge target enrol edge-1 --offline --keys keys --broker mqtt://127.0.0.1:1883 --out edge-1.json\n  \
    selvedge push file-type.pkg --keys keys --broker mqtt://127.0.0.1:1883 --target edge-1\n  \
    selvedge push file-type.pkg --keys keys --broker mqtt://127.0.0.1:1883 --target edge-1 --set threshold=0.7\n  \
    selvedge push file-type.pkg --keys keys --broker mqtts://broker:8883 --broker-ca ca.pem \\\n    \
        --broker-cert me.pem --broker-key me.key --target edge-1")]
pub struct Args {
    /// A package that `selvedge package` made
    #[arg(value_name = "PACKAGE")]
    pub package: PathBuf,
    /// Directory of the keys that sign the release and the assignment
    #[arg(long, value_name = "DIR")]
    pub keys: PathBuf,
    /// The broker that the device is connected to
    #[arg(long, value_name = "URL")]
    pub broker: BrokerAddress,
    /// How the broker is believed and believes this program.
    #[command(flatten)]
    pub tls: Tls,
    /// The device
    #[arg(long, value_name = "NAME")]
    pub target: DeviceId,
    /// A setting of the package; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<Pair>,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    /// What was pushed before, to which devices; must not be lost [default: `push` in the directory
    /// of the keys]
    #[arg(long, value_name = "DIR")]
    pub repository: Option<PathBuf>,
    /// Let the device run this package alone; others that were pushed to it are uninstalled
    #[arg(long)]
    pub only: bool,
    /// Direct a device that a registry (or another repository) directs: what that assigned is
    /// replaced, and it cannot direct the device any more
    #[arg(long)]
    pub take_over: bool,
    /// Public key of a device that was enrolled by a registry, 64 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub device_key: Option<PublicKey>,
    /// Where passphrases come from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// Options for a broker that speaks TLS (`mqtts://`).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Tls {
    /// The authority that signed the certificate of an mqtts broker, as PEM
    #[arg(long, value_name = "FILE")]
    pub broker_ca: Option<PathBuf>,
    /// A client certificate that lets this program read `up/#` and write `dn/#` of the device, as PEM
    #[arg(long, value_name = "FILE", requires_all = ["broker_ca", "broker_key"])]
    pub broker_cert: Option<PathBuf>,
    /// Its key, as PEM
    #[arg(long, value_name = "FILE", requires = "broker_cert")]
    pub broker_key: Option<PathBuf>,
    /// The name in the broker's certificate, where it is not the one in its address
    #[arg(long, value_name = "NAME", requires = "broker_ca")]
    pub broker_name: Option<String>,
    /// The MQTT client id, where the broker wants the one that is in the certificate
    #[arg(long, value_name = "ID")]
    pub broker_client_id: Option<String>,
}

/// Signs, publishes, serves blocks, and stays until the device serves the package.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    crate::push::run(around, args).await
}

/// `target enrol --offline`: what it needs besides the target's name and the file.
#[derive(Debug)]
pub struct Offline<'a> {
    /// Name of the target.
    pub name: &'a DeviceId,
    /// Where to write the enrolment.
    pub out: &'a PathBuf,
    /// Directory of the keys whose roots the device shall trust.
    pub keys: &'a PathBuf,
    /// The broker as the device reaches it.
    pub broker: &'a BrokerAddress,
    /// See [`Args::repository`].
    pub repository: Option<&'a PathBuf>,
    /// What the device needs for a broker that speaks TLS.
    pub tls: OfflineTls<'a>,
}

/// Files for a broker that speaks TLS.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfflineTls<'a> {
    /// The broker's authority.
    pub broker_ca: Option<&'a Path>,
    /// The device's certificate and its key.
    pub credential: Option<(&'a Path, &'a Path)>,
}

/// Makes an enrolment file without a registry.
pub async fn enrol_offline(around: &Surroundings<'_>, offline: &Offline<'_>) -> Result<(), Failure> {
    crate::push::enrol(around, offline).await
}
