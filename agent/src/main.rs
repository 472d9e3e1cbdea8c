//! `selvedge-agent`: reads the command line and hands over to the library. Errors are printed once,
//! here, with all their causes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use selvedge_agent::config::{Choices, Config};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::remote::Logs;
use selvedge_agent::supervise::{CANNOT, Launch};
use selvedge_agent::{daemon, status};
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
    /// The step between the agent and its children; not for people.
    #[command(hide = true)]
    Launch(Launch),
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
}

fn main() -> ExitCode {
    let line = Line::parse();
    match run(line.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("selvedge-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
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
            let enrolment = run.enrolment.as_deref().map(Enrolment::from_file).transpose()?;
            let line = Choices {
                host_binary: run.host_binary,
                http: run.http,
                modules: run.modules,
                onnxruntime: run.onnxruntime,
                host_outlives: run.no_host_outlive.then_some(false),
                heartbeat_seconds: run.heartbeat,
                ..Choices::default()
            };
            let config = Config::merge(&run.data, file, line)?;
            runtime()?.block_on(daemon::run(config, enrolment, logs))?;
            Ok(())
        }
    }
}

/// One thread, and a few small ones for hashing.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_stack_size(512 * 1024)
        .build()
        .context("cannot set up the runtime")
}
