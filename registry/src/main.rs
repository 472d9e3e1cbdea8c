//! `selvedge-registry`: the registry, and the embedded broker for one machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use selvedge_registry::trust::Lifetimes;
use selvedge_registry::{devices, serve};
use tokio::signal::unix::{SignalKind, signal};

/// The registry of compute targets.
#[derive(Debug, Parser)]
#[command(name = "selvedge-registry", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the registry.
    Serve(Serve),
    /// Run the embedded MQTT broker, for one machine.
    #[cfg(feature = "embedded-broker")]
    Broker(Broker),
    /// The certificate authority of devices and brokers.
    #[command(subcommand)]
    Pki(selvedge_registry::pki::Command),
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Directory for the database, blobs, the token and metadata files.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Loopback address of the REST interface; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
    /// The MQTT broker; devices are told the same.
    #[arg(long, value_name = "URL", default_value = "mqtt://127.0.0.1:1883")]
    broker: String,
    /// File with the authorities of an mqtts broker's certificate; by default the registry's own
    /// authority (`selvedge-registry pki`).
    #[arg(long, value_name = "FILE")]
    broker_ca: Option<PathBuf>,
    /// The name in the broker's certificate, where it is not the host in its address.
    #[arg(long, value_name = "NAME")]
    broker_name: Option<String>,
    /// Days that a device's certificate is good for; devices renew it at two thirds.
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    certificate_days: u64,
    /// The same in seconds, for watching a renewal.
    #[arg(long, value_name = "SECONDS", hide = true, conflicts_with = "certificate_days")]
    certificate_seconds: Option<u64>,
    /// MQTT client id, unique on the broker; by default one of its own, kept in the data directory.
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Folder with the online keys (`<keys>/online` of `selvedge keys init`).
    #[arg(long, value_name = "DIR")]
    online_keys: PathBuf,
    /// Folder with the roots of trust (`<keys>/roots` of `selvedge keys init`).
    #[arg(long, value_name = "DIR")]
    roots: PathBuf,
    /// Bytes of blocks a second that one device gets.
    #[arg(long, value_name = "BYTES", default_value_t = devices::Limits::default().device.per_second)]
    device_rate: u64,
    /// Bytes of blocks a second that all devices together get.
    #[arg(long, value_name = "BYTES", default_value_t = devices::Limits::default().all.per_second)]
    total_rate: u64,
    /// How long what the registry signs is good for, as ROLE=TIME,…: image-snapshot, image-timestamp,
    /// director; it signs again at half of that.
    #[arg(
        long,
        value_name = "ROLE=TIME",
        default_value = "image-snapshot=30d,image-timestamp=14d,director=7d"
    )]
    expiry: Lifetimes,
    /// File that gets the REST address once it listens.
    #[arg(long, value_name = "FILE")]
    address_file: Option<PathBuf>,
}

#[cfg(feature = "embedded-broker")]
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("clients").required(true).args(["pki", "anonymous"])))]
struct Broker {
    /// Speak TLS and let in whoever has a certificate of this authority: the folder `pki` of the
    /// registry's data directory, or one that `selvedge-registry pki server` wrote.
    #[arg(long, value_name = "DIR")]
    pki: Option<PathBuf>,
    /// Name or address by which clients reach the broker, for its certificate; may be given several
    /// times. By default those of this machine's loopback.
    #[arg(long = "name", value_name = "HOST", requires = "pki")]
    names: Vec<String>,
    /// Speak in plain text with whoever comes, on a loopback address only.
    #[arg(long)]
    anonymous: bool,
    /// Address to listen on; port 0 picks a free one. By default port 8883 of the loopback with
    /// certificates, port 1883 without.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Directory for sessions and messages.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// File that gets the address once clients can connect.
    #[arg(long, value_name = "FILE")]
    address_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("SELVEDGE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,mqtt5=warn,mqtt5_protocol=warn"));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match start(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("selvedge-registry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anything is opened, so that no signal ends the process half-way.
        let stop = stop_signal()?;
        match command {
            Command::Pki(pki) => print!("{}", pki.run()?),
            Command::Serve(serve) => serve::run(serve.options(), stop).await?,
            #[cfg(feature = "embedded-broker")]
            Command::Broker(broker) => selvedge_registry::broker::run(broker.options(), stop).await?,
        }
        Ok(())
    })
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

impl Serve {
    fn options(self) -> serve::Options {
        serve::Options {
            data: self.data,
            listen: self.listen,
            broker: self.broker,
            broker_ca: self.broker_ca,
            broker_name: self.broker_name,
            certificates: std::time::Duration::from_secs(
                self.certificate_seconds.unwrap_or(self.certificate_days * 24 * 3600),
            ),
            client_id: self.client_id,
            online_keys: self.online_keys,
            roots: self.roots,
            address_file: self.address_file,
            blocks: devices::Limits::of_rates(self.device_rate, self.total_rate),
            lifetimes: self.expiry,
        }
    }
}

#[cfg(feature = "embedded-broker")]
impl Broker {
    fn options(self) -> selvedge_registry::broker::Options {
        use selvedge_registry::broker::{Clients, Options};
        let Self { pki, names, anonymous: _, listen, data, address_file } = self;
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (clients, port) = match pki {
            None => (Clients::Anonymous, 1883),
            Some(pki) => {
                let own = selvedge_registry::pki::LOOPBACK.map(str::to_owned).to_vec();
                (Clients::Certified { pki, names: if names.is_empty() { own } else { names } }, 8883)
            }
        };
        Options { listen: listen.unwrap_or_else(|| loopback(port)), clients, data, address_file }
    }
}
