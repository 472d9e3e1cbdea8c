//! `cargo xtask bench footprint`: memory of the agent after one update and of a host after one answer,
//! time from a host's start to its first answer with a warm compiled cache, and sizes of the programs.
//! The host is measured beside the least program that opens the same model and answers once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use selvedge_control::{Client, Load, PackageRef};
use selvedge_package::Digest;
use selvedge_tests::command::Selvedge;
use selvedge_tests::packages::{deploy, keys};
use selvedge_tests::peer::Peer;
use selvedge_tests::ports::free_address;
use selvedge_tests::process::Process;
use selvedge_tests::programs::{program, set_up};
use selvedge_tests::stack::Stack;
use selvedge_tests::usage::{settled_kib, threads};
use selvedge_tests::{clock, wait};

const ROUNDS: usize = 5;
const AGENT_MIB: f64 = 8.0;
const HOST_RATIO: f64 = 1.3;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let stack = Stack::start();
    let out = stack.path("file-type.pkg");
    let example = set_up("examples/file-type").display().to_string();
    Selvedge::new().run(&["package", &example, "--release", "1", "--out", &out]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(&stack)]);
    deploy(&stack, "file-type", 1);
    stack.wait_committed("file-type", 1);
    let agent = settled(stack.agent.as_ref().expect("the agent was started").id());

    let sample = fs::read(Path::new(&example).join("samples/report.pdf")).expect("the example has samples");
    let package = laid_out(&stack);
    let cache = stack.dir.path().join("cache");
    // The first start fills the cache of compiled modules.
    host(&package, &cache, &sample);
    let (mut hosts, mut bares) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        hosts.push(host(&package, &cache, &sample));
        bares.push(bare(&package));
    }
    let median = |all: &[Measured], of: fn(&Measured) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (host_mib, bare_mib) = (median(&hosts, |one| one.mib), median(&bares, |one| one.mib));
    let (host_ms, bare_ms) = (median(&hosts, |one| one.ms), median(&bares, |one| one.ms));

    println!("{:<44} {:>10} {:>8}", "", "PSS MiB", "threads");
    println!("{:<44} {:>10.2} {:>8}", "agent, connected, after one update", agent.mib, agent.threads);
    println!("{:<44} {host_mib:>10.2} {:>8}", "host, after one file-type answer", hosts[0].threads);
    println!("{:<44} {bare_mib:>10.2} {:>8}", "bare ort program, after one answer", bares[0].threads);
    println!(
        "start to first answer: host {host_ms:.0} ms, bare {bare_ms:.0} ms, ratio {:.2}",
        host_ms / bare_ms
    );
    let sizes = sizes();
    for (name, size) in &sizes {
        println!("{name:<44} {:>10.2} MiB on disk", *size as f64 / f64::from(1 << 20));
    }
    let ratio = host_mib / bare_mib;
    let bar = |name: &str, value: f64, limit: f64| serde_json::json!({"name": name, "value": value, "limit": limit, "holds": value <= limit});
    let report = serde_json::json!({
        "bench": "footprint",
        "figures": {
            "agent_pss_mib": agent.mib, "host_pss_mib": host_mib, "bare_pss_mib": bare_mib,
            "host_first_answer_ms": host_ms, "bare_first_answer_ms": bare_ms, "first_answer_ratio": host_ms / bare_ms,
            "program_bytes": sizes.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        },
        "bars": [
            bar("agent PSS, MiB", agent.mib, AGENT_MIB),
            bar("host PSS / bare PSS", ratio, HOST_RATIO),
        ],
    });
    drop(stack);
    println!("{report}");
}

struct Measured {
    mib: f64,
    ms: f64,
    threads: usize,
}

/// What a process uses once its memory has stopped moving.
fn settled(id: u32) -> Measured {
    Measured { mib: settled_kib(id) as f64 / 1024.0, ms: 0.0, threads: threads(id) }
}

/// The directory in which the device opens the package.
fn laid_out(stack: &Stack) -> PathBuf {
    let packages = fs::read_dir(stack.dir.path().join("agent/packages")).expect("the agent keeps packages");
    let mut folders = packages.map(|entry| entry.expect("a directory can be read").path());
    folders.next().expect("the package is laid out")
}

/// A host of its own: started, loaded by its control socket, asked once over HTTP.
fn host(package: &Path, cache: &Path, sample: &[u8]) -> Measured {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let (address, control) = (free_address(), folder.path().join("control.sock"));
    let start = clock::now();
    let mut command = Command::new(program("selvedge-host"));
    command.args(["serve", "--listen", &address, "--control"]).arg(&control).arg("--data").arg(cache);
    let process = Process::start("host", &mut command, &folder.path().join("host.log"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Client::new(&control);
    let digest = Digest::of(&fs::read(package.join("package.json")).expect("a package has its manifest"));
    let name = "file-type".parse().expect("it is a name");
    let reference = PackageRef { name, digest };
    let load = Load {
        package: reference.clone(),
        directory: package.to_owned(),
        settings: Default::default(),
        purpose: Default::default(),
        patience_ms: 0,
    };
    wait::until("the host to load", || runtime.block_on(client.load(&load, PATIENCE)));
    runtime.block_on(client.activate(&reference, PATIENCE)).expect("it is loaded");
    let url = format!("http://{address}/v2/models/file-type/raw");
    let status = runtime.block_on(async {
        let answer = reqwest::Client::new().post(&url).body(sample.to_vec()).send().await;
        answer.expect("the host answers").status()
    });
    let ms = start.elapsed().as_secs_f64() * 1000.0;
    assert!(status.is_success(), "{status}\n{}", process.log());
    Measured { ms, ..settled(process.id()) }
}

/// The least program on the same model.
fn bare(package: &Path) -> Measured {
    let start = clock::now();
    let peer = Peer::bare(&package.join("model.onnx"));
    let ms = start.elapsed().as_secs_f64() * 1000.0;
    Measured { ms, ..settled(peer.id()) }
}

fn sizes() -> Vec<(String, u64)> {
    ["selvedge-agent", "selvedge-host", "selvedge-registry", "selvedge"]
        .into_iter()
        .map(|name| {
            let size = fs::metadata(program(name)).expect("it was built").len();
            (name.to_owned(), size)
        })
        .collect()
}
