//! `selvedge up`: broker, registry, agent and host on this machine, each its own process, until
//! Ctrl-C, SIGTERM or the death of one of them ends all.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_package::DeviceId;
use serde_json::json;

use crate::client::{Registry, http_client};
use crate::clock::Deadline;
use crate::commands::{Surroundings, keys};
use crate::context::{Context, Token, data_dir, process_env};
use crate::failure::Failure;
use crate::programs::Programs;
use crate::progress::Step;
use crate::signals::Ending;
use crate::supervisor::enrolment::{enrol, online, serving};
use crate::supervisor::host;
use crate::supervisor::place::Place;
use crate::supervisor::process::Process;
use crate::supervisor::ready;
use crate::supervisor::record::Record;
use crate::supervisor::stack::{self, Stack};

/// Start everything on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge up                                        (ports of the last start, or any free ones)
  selvedge up --http-port 8080 --name bench --data /tmp/bench")]
pub struct Args {
    /// Directory of the keys [default: that of the last start, else `keys` in the data directory, made
    /// where it is missing]
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Port of the broker; 0: any free one [default: that of the last start, else any]
    #[arg(long, value_name = "N")]
    pub broker_port: Option<u16>,
    /// Port of the registry; 0: any free one [default: that of the last start, else any]
    #[arg(long, value_name = "N")]
    pub registry_port: Option<u16>,
    /// Port of the inference endpoint; 0: any free one [default: that of the last start, else any]
    #[arg(long, value_name = "N")]
    pub http_port: Option<u16>,
    /// Name of the target that this machine is [default: that of the last start, else edge-1]
    #[arg(long, value_name = "NAME")]
    pub name: Option<DeviceId>,
    /// Longest time until everything is ready, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
    /// Where the other programs are
    #[command(flatten)]
    pub programs: Programs,
}

/// Starts everything, and stays until it ends.
pub async fn run(around: &Surroundings<'_>, args: &Args, ending: &mut Ending) -> Result<(), Failure> {
    let dir = data_dir(around.global, &process_env)?;
    let place = Place::take(&dir)?;
    place.prepare()?;
    let mut stack = Stack { children: Vec::new(), record: Record::read(place.dir())?.unwrap_or_default() };
    stack::clear(around.out, &place, &stack.record).await;
    let outcome = tokio::select! {
        ready = start(around, args, &place, &mut stack) => ready,
        () = ending.came() => Err(Failure::Interrupted),
    };
    let outcome = match outcome {
        Ok(()) => {
            announce(around, &place, &stack.record);
            tokio::select! {
                failure = stack.death() => Err(failure),
                () = ending.came() => Ok(()),
            }
        }
        failed => failed,
    };
    let step = Step::begin(around.out, "stopping everything");
    tokio::select! {
        () = stack.end(&place) => {}
        // A second Ctrl-C: no more asking.
        () = ending.came() => stack.kill(&place).await,
    }
    step.end();
    around.out.note("everything is stopped");
    outcome
}

async fn start(
    around: &Surroundings<'_>,
    args: &Args,
    place: &Place,
    stack: &mut Stack,
) -> Result<(), Failure> {
    let deadline = Deadline::after(Duration::from_secs(args.timeout));
    let programs = Found {
        registry: args.programs.find("selvedge-registry")?,
        agent: args.programs.find("selvedge-agent")?,
        host: args.programs.find("selvedge-host")?,
    };
    let keys = prepare_keys(around, args, place, &stack.record)?;
    let name = name(args, &stack.record)?;
    let ports = Ports::choose(args, &stack.record, |port| {
        let free = std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if !free {
            around
                .out
                .note(format!("port {port} of the last start is taken by another program; using a free one"));
        }
        free
    });
    stack.record.keys.clone_from(&keys);
    stack.record.target = name.to_string();
    stack.record.agent_data = place.agent();
    stack.record.token_file = place.token_file();
    stack.record.pids.clear();
    if let Some(own) = Process::of(std::process::id()) {
        stack.record.pids.insert("up".to_owned(), own);
    }
    stack.record.write(place.dir())?;

    let step = Step::begin(around.out, "starting the broker");
    let file = fresh(place.address_file("broker"))?;
    let index = stack.start(
        place,
        "broker",
        &programs.registry,
        &words(&[
            &"broker",
            &"--pki",
            &place.registry().join("pki"),
            &"--listen",
            &loopback(ports.broker),
            &"--data",
            &place.broker(),
            &"--address-file",
            &file,
        ]),
    )?;
    let address = ready::address(&mut stack.children[index], &file, deadline).await?;
    stack.record.broker = format!("mqtts://{address}");
    stack.record.write(place.dir())?;
    step.note(&format!("broker    {}", stack.record.broker));

    step.say("starting the registry");
    let file = fresh(place.address_file("registry"))?;
    let index = stack.start(
        place,
        "registry",
        &programs.registry,
        &words(&[
            &"serve",
            &"--data",
            &place.registry(),
            &"--listen",
            &loopback(ports.registry),
            &"--broker",
            &stack.record.broker,
            &"--online-keys",
            &keys.join("online"),
            &"--roots",
            &keys.join("roots"),
            &"--address-file",
            &file,
        ]),
    )?;
    let address = ready::address(&mut stack.children[index], &file, deadline).await?;
    stack.record.registry = format!("http://{address}");
    let http = http_client()?;
    ready::answers(&mut stack.children[index], &http, &format!("http://{address}/v1/health"), deadline)
        .await?;
    stack.record.write(place.dir())?;
    step.note(&format!("registry  {}", stack.record.registry));

    step.say("starting the agent");
    let registry = Registry::new(Context {
        registry: stack.record.registry.clone(),
        token: Token::read(&place.token_file())?,
        workspace: around.global.workspace.clone(),
    })?;
    enrol(&registry, place, &name, &stack.record.broker).await?;
    let file = fresh(place.agent().join("run/http"))?;
    let index = stack.start(
        place,
        "agent",
        &programs.agent,
        &words(&[
            &"run",
            &"--data",
            &place.agent(),
            &"--enrolment",
            &place.enrolment(),
            &"--host-binary",
            &programs.host,
            &"--http",
            &loopback(ports.http),
        ]),
    )?;
    let address = ready::address(&mut stack.children[index], &file, deadline).await?;
    stack.record.inference = format!("http://{address}");
    ready::answers(&mut stack.children[index], &http, &format!("http://{address}/v2/health/live"), deadline)
        .await?;
    if let Some(host) = host::running(&place.agent()) {
        stack.record.pids.insert("host".to_owned(), host);
    }
    stack.record.write(place.dir())?;
    step.note(&format!("inference {}", stack.record.inference));

    step.say(&format!("waiting for {name} to be heard by the registry"));
    online(&registry, &mut stack.children[index], &name, deadline).await?;
    serving(&registry, &http, &stack.record.inference, &name, &step).await?;
    step.end();
    Ok(())
}

struct Found {
    registry: PathBuf,
    agent: PathBuf,
    host: PathBuf,
}

/// A port for each listener: as said, else as last time, else any.
#[derive(Debug, PartialEq, Eq)]
struct Ports {
    broker: u16,
    registry: u16,
    http: u16,
}

impl Ports {
    fn choose(args: &Args, record: &Record, is_free: impl Fn(u16) -> bool) -> Self {
        let port = |said: Option<u16>, last: &str| match (said, Record::port(last)) {
            (Some(port), _) => port,
            (None, 0) => 0,
            (None, last) if is_free(last) => last,
            (None, _) => 0,
        };
        Self {
            broker: port(args.broker_port, &record.broker),
            registry: port(args.registry_port, &record.registry),
            http: port(args.http_port, &record.inference),
        }
    }
}

/// The target's name: as said, else as last time.
fn name(args: &Args, record: &Record) -> Result<DeviceId, Failure> {
    let last = if record.target.is_empty() { "edge-1" } else { &record.target };
    args.name.clone().map_or_else(|| last.parse(), Ok).map_err(|source: selvedge_package::NameError| {
        Failure::Internal { what: "up.json names no target", source: source.into() }
    })
}

fn loopback(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Arguments of any kind as one list.
fn words(parts: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<OsString> {
    parts.iter().map(|part| part.as_ref().to_owned()).collect()
}

/// A file that a child will write; one of an earlier start is removed.
fn fresh(path: PathBuf) -> Result<PathBuf, Failure> {
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::File { doing: "remove", path, source })
        }
        _ => Ok(path),
    }
}

fn prepare_keys(
    around: &Surroundings<'_>,
    args: &Args,
    place: &Place,
    record: &Record,
) -> Result<PathBuf, Failure> {
    // Another key ring than last time would make every device refuse what the registry signs.
    let last = Some(record.keys.clone()).filter(|keys| keys.join("roots").is_dir());
    let dir = args.keys.clone().or(last).unwrap_or_else(|| place.keys());
    if dir.join("roots").is_dir() {
        return dir.canonicalize().map_err(Failure::file("open", &dir));
    }
    if args.keys.is_some() {
        return Err(Failure::missing(
            format!("there are no keys in {}", dir.display()),
            format!("`selvedge keys init {}` makes them", dir.display()),
        ));
    }
    keys::init(&dir)?;
    around.out.note(format!("made new keys in {}", dir.display()));
    Ok(dir)
}

fn announce(around: &Surroundings<'_>, place: &Place, record: &Record) {
    let pids: BTreeMap<&String, i32> =
        record.pids.iter().map(|(name, process)| (name, process.pid)).collect();
    around.out.value(&json!({
        "registry": record.registry, "broker": record.broker, "inference": record.inference,
        "token_file": record.token_file, "target": record.target, "agent_data": record.agent_data,
        "keys": record.keys, "data": place.dir(), "pids": pids,
    }));
    let out = around.out;
    out.line(format!("target    {} (this machine)", record.target));
    out.line(format!("data      {}", place.dir().display()));
    out.line(format!("keys      {}", record.keys.display()));
    out.line("everything is ready; Ctrl-C stops it. In another terminal:");
    let data = if around.global.data.is_some() {
        format!(" --data {}", place.dir().display())
    } else {
        String::new()
    };
    out.line("  selvedge package MODEL.onnx --out MODEL.pkg");
    out.line(format!("  selvedge release MODEL.pkg --keys {}{data}", record.keys.display()));
    out.line(format!("  selvedge deploy NAME --target {} --wait{data}", record.target));
    out.line(format!("  selvedge ask NAME --input '{{\"INPUT\": [[1, 2]]}}'{data}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_said_or_remembered_or_free() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let args = <Line as clap::Parser>::parse_from(["x", "--broker-port", "7", "--http-port", "0"]).args;
        let record = Record {
            registry: "http://127.0.0.1:8".into(),
            inference: "http://127.0.0.1:9".into(),
            ..Record::default()
        };
        let choose = |record, free: bool| Ports::choose(&args, record, |_| free);
        assert_eq!(choose(&record, true), Ports { broker: 7, registry: 8, http: 0 });
        assert_eq!(choose(&record, false), Ports { broker: 7, registry: 0, http: 0 });
        assert_eq!(choose(&Record::default(), true), Ports { broker: 7, registry: 0, http: 0 });
    }

    #[test]
    fn a_file_of_an_earlier_start_is_not_taken_for_todays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "127.0.0.1:1").unwrap();
        assert!(!fresh(path.clone()).unwrap().exists());
        assert!(fresh(path).is_ok());
    }
}
