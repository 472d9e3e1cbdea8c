//! `selvedge-agent`: reads the command line and hands over to the library. Errors are printed once,
//! here, with all their causes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use selvedge_agent::config::{Choices, Config};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::exit::Exit;
use selvedge_agent::identity::Identity;
use selvedge_agent::lock::Lock;
use selvedge_agent::remote::Logs;
use selvedge_agent::store::{RealDisk, Store};
use selvedge_agent::supervise::{CANNOT, Ended, Launch};
use selvedge_agent::{daemon, import, status, trust_show};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The device's agent: takes signed packages over MQTT, keeps them running, and reports.
#[derive(Debug, Parser)]
#[command(name = "selvedge-agent", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs until SIGTERM. The host goes on serving afterwards unless --no-host-outlive is given.
    Run(Box<Run>),
    /// Says what the device runs. Needs no network, and no running agent.
    Status {
        /// The data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
    },
    /// Says what the device trusts, and what it would say to an offer.
    #[command(subcommand)]
    Trust(Trust),
    /// Takes packages from a file made by `selvedge export`. Needs no network, and no running agent.
    Import {
        /// The file.
        file: PathBuf,
        /// The data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Forgets the registry, its roots and the device's keys. What runs goes on; a new enrolment may follow.
    Detach {
        /// The data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Leaves a note of how the host's service ended, for the agent: `ExecStopPost` of its unit.
    #[command(hide = true)]
    HostEnded {
        /// The data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// The step between the agent and its children; not for people.
    #[command(hide = true)]
    Launch(Launch),
}

#[derive(Debug, Subcommand)]
enum Trust {
    /// Roots, versions, dates, floors, the clock, the certificate. Needs no network, and no running agent.
    Show {
        /// The data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// A file of packages or a metadata bundle: says what would be accepted or refused, and why.
        #[arg(long, value_name = "FILE")]
        offer: Option<PathBuf>,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Everything that the device keeps.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The enrolment file; needed at the first start. Later it may bring a new broker or token.
    #[arg(long, value_name = "FILE")]
    enrolment: Option<PathBuf>,
    /// Configuration file (TOML); flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The host's program; by default `selvedge-host` beside the agent.
    #[arg(long, value_name = "PATH", env = "SELVEDGE_HOST")]
    host_binary: Option<PathBuf>,
    /// Where inference is served; 127.0.0.1:8080 by default, port 0: any free one.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// The control socket of a host that somebody else keeps running, such as systemd: none is started.
    #[arg(long, value_name = "PATH", env = "SELVEDGE_HOST_CONTROL")]
    host_control: Option<PathBuf>,
    /// Built-in modules, for the host.
    #[arg(long, value_name = "DIR", env = "SELVEDGE_MODULES")]
    modules: Option<PathBuf>,
    /// The ONNX Runtime library, for the host.
    #[arg(long, value_name = "PATH", env = "SELVEDGE_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    /// Ends the host with the agent, however the agent ends.
    #[arg(long)]
    no_host_outlive: bool,
    /// Seconds between two signs of life to the registry.
    #[arg(long, value_name = "SECONDS")]
    heartbeat: Option<u64>,
    /// MiB that packages may bring a day, headers included; by default any number.
    #[arg(long, value_name = "MIB")]
    data_budget_mib: Option<u64>,
    /// Span of the day in UTC in which packages are fetched, as 22:00-05:30; may be given several times.
    #[arg(long, value_name = "HH:MM-HH:MM")]
    data_windows: Vec<String>,
}

fn main() -> ExitCode {
    let line = Line::parse();
    match run(line.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("selvedge-agent: {error:#}");
            ExitCode::from(Exit::of(&error).code())
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::HostEnded { data } => {
            Ended::from_environment().note(&data).with_context(|| format!("a note in {}", data.display()))
        }
        Command::Launch(launch) => {
            eprintln!("selvedge-agent: cannot start {:?}: {}", launch.command, launch.become_it());
            std::process::exit(CANNOT);
        }
        Command::Status { data, json } => {
            let status = runtime()?.block_on(status::look(&data))?;
            if json {
                println!("{}", serde_json::to_string_pretty(&status)?);
            } else {
                println!("{}", status::describe(&status));
            }
            Ok(())
        }
        Command::Trust(Trust::Show { data, offer, json }) => {
            let held = runtime()?.block_on(trust_show::look(&data))?;
            let offer = offer.map(|path| trust_show::judge(&held, &path)).transpose()?;
            let view = trust_show::view(&held, offer);
            if json {
                println!("{}", serde_json::to_string_pretty(&view)?);
            } else {
                println!("{}", trust_show::describe(&view));
            }
            Ok(())
        }
        Command::Import { file, data } => {
            let imported = import::import(&file, &data)?;
            for package in &imported.packages {
                println!("{package}: stored");
            }
            println!("{} blobs, {} bytes were new", imported.blobs, imported.bytes);
            println!(
                "{}",
                if imported.accepted {
                    "accepted as what this device shall run"
                } else {
                    "kept for a later assignment, which then needs no transfer"
                }
            );
            Ok(())
        }
        Command::Detach { data } => {
            anyhow::ensure!(data.join("agent.redb").exists(), "there is no device in {}", data.display());
            let _lock = Lock::take(&data, std::time::Duration::from_secs(1))?;
            let store = Store::open(std::sync::Arc::new(RealDisk), &data)?;
            let device = Identity::detach(&store)?.device;
            println!(
                "{device} belongs to no registry any more. What runs goes on; `selvedge-agent run` serves it \
                 without a registry, and with --enrolment FILE gives the device to another"
            );
            Ok(())
        }
        Command::Run(run) => {
            // Levels by target are enough here, and cost no regular expressions.
            let chosen = std::env::var("SELVEDGE_LOG").ok().and_then(|text| text.parse().ok());
            let filter = chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
            let logs = Logs::default();
            tracing_subscriber::registry()
                .with(filter)
                .with(fmt::layer().with_writer(std::io::stderr).with_ansi(false))
                .with(logs.layer())
                .init();
            let file = match &run.config {
                Some(path) => Choices::from_file(path)?,
                None => Choices::default(),
            };
            let line = Choices {
                host_binary: run.host_binary,
                http: run.http,
                host_control: run.host_control,
                modules: run.modules,
                onnxruntime: run.onnxruntime,
                host_outlives: run.no_host_outlive.then_some(false),
                heartbeat_seconds: run.heartbeat,
                data_budget_mib: run.data_budget_mib,
                data_windows: (!run.data_windows.is_empty()).then_some(run.data_windows),
                ..Choices::default()
            };
            let config = Config::merge(&run.data, file, line)?;
            let enrolment = run.enrolment.as_deref().or(config.enrolment.as_deref());
            let enrolment = enrolment.map(Enrolment::from_file).transpose()?;
            let runtime = runtime()?;
            let ended = runtime.block_on(daemon::run(config, enrolment, logs));
            // What hashes or looks up a name beside the loop has nothing to write down.
            runtime.shutdown_timeout(FAREWELL);
            Ok(ended?)
        }
    }
}

/// Longest wait, at the end, for what still runs beside the loop.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(1);

/// One thread, and a few small ones for hashing.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(3)
        .thread_stack_size(512 * 1024)
        .build()
        .context("cannot set up the runtime")
}
