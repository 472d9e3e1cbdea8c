//! Registry, broker, agent and host, each stopped and started again, in every order, in the middle of
//! a transfer, of a load and of a probation: everything converges, what was fetched stays fetched,
//! and the committed version answers whenever there is a host.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::process::{runs, send};
use selvedge_tests::stack::Stack;
use selvedge_tests::versions;
use selvedge_tests::wait;
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
/// Size of each release: some dozens of chunks.
const MODEL: usize = 3_000_000;
/// Size of a chunk.
const CHUNK: u64 = 65_536;
/// Part of all chunks that may have been fetched twice.
const TWICE: f64 = 0.02;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Registry,
    Broker,
    Agent,
    Host,
}

#[test]
fn in_the_middle_of_a_transfer() {
    every_order("transfer", "", |package| package["pending"]["bytes"].as_u64().unwrap_or(0) > CHUNK);
}

#[test]
fn in_the_middle_of_a_load() {
    every_order("load", "", |package| package["pending"]["stage"] == "trial");
}

#[test]
fn in_the_middle_of_a_probation() {
    // Longer than the stops take, so that they meet it.
    let probation = "\n[activation]\nprobation-seconds = 3\n";
    every_order("probation", probation, |package| package["pending"]["stage"] == "trial");
}

/// One device through 24 releases: each is stopped at the moment, in an order of its own, and
/// everything is started again in another.
fn every_order(name: &str, more: &str, moment: fn(&Value) -> bool) {
    let mut stack = Stack::start();
    let orders = orders();
    let (mut missed, mut wanted) = (0, BTreeMap::new());
    for (round, stops) in orders.iter().enumerate() {
        let release = round as u64 + 1;
        let folder = stack.dir.path().join(format!("identity-{release}"));
        let version = format!("1.0.{release}");
        // In growing sizes, so that no two have a chunk of their ends in common.
        versions::identity(&folder, "identity", &version, MODEL + round * 70_000, 6.0, more);
        release_folder(&stack, &folder, release);
        wanted.append(&mut chunks(Path::new(&format!("{}-r{release}.pkg", folder.display()))));
        deploy(&stack, "identity", release);
        let there = wait::until(name, || match package(&stack) {
            Some(package) if moment(&package) => Ok(true),
            Some(package) if package["committed"]["release"] == release => Ok(false),
            other => Err(other),
        });
        missed += usize::from(!there);
        let committed = release > 1;
        for part in stops {
            stop(&mut stack, *part);
            answers_if_it_can(&mut stack, committed);
        }
        for part in &orders[(round * 7 + 5) % orders.len()] {
            start(&mut stack, *part);
            answers_if_it_can(&mut stack, committed);
        }
        stack.wait_committed("identity", release);
        stack.wait_ready("identity", &version);
    }
    assert!(missed < orders.len() / 3, "{missed} of {} rounds did not meet the moment", orders.len());

    // What was fetched is what the agent's lives say at their ends, and the last one says now.
    let fetched = fetched(&mut stack);
    let wanted: u64 = wanted.values().sum();
    println!(
        "{name}: {} orders, {missed} moments missed, {fetched} chunks fetched of {wanted}",
        orders.len()
    );
    assert!(fetched >= wanted, "{fetched} chunks cannot make {wanted}");
    let twice = (fetched - wanted) as f64 / wanted as f64;
    assert!(twice < TWICE, "{fetched} chunks were fetched for {wanted}: {:.1} % twice", twice * 100.0);
}

fn orders() -> Vec<[Part; 4]> {
    let parts = [Part::Registry, Part::Broker, Part::Agent, Part::Host];
    let mut orders = Vec::new();
    for first in parts {
        for second in parts {
            for third in parts {
                for fourth in parts {
                    let order = [first, second, third, fourth];
                    if parts.iter().all(|part| order.contains(part)) {
                        orders.push(order);
                    }
                }
            }
        }
    }
    assert_eq!(orders.len(), 24);
    orders
}

fn stop(stack: &mut Stack, part: Part) {
    match part {
        Part::Registry => drop(stack.registry.take().map(|mut registry| registry.stop())),
        Part::Broker => drop(stack.broker.take().map(|mut broker| broker.stop())),
        Part::Agent => {
            let status = stack.agent.take().map(|mut agent| agent.stop());
            assert!(status.is_some_and(|status| status.success()), "the agent ended with {status:?}");
        }
        Part::Host => {
            if let Some(id) = stack.host_id() {
                send(id, rustix::process::Signal::TERM);
                wait::until("the host to end", || if runs(id) { Err(id) } else { Ok(()) });
            }
        }
    }
}

fn start(stack: &mut Stack, part: Part) {
    match part {
        Part::Registry => stack.start_registry(),
        Part::Broker => stack.start_broker(),
        Part::Agent => stack.start_agent(),
        // The agent's own work, as soon as there is one.
        Part::Host => {}
    }
}

/// Whatever else is down: with a host there is an answer, at once where nobody has to start it.
fn answers_if_it_can(stack: &mut Stack, committed: bool) {
    if !committed {
        return;
    }
    if stack.agent.is_some() {
        wait::until("an answer", || match stack.post("/v2/models/identity/infer", INPUT) {
            Ok((200, _)) => Ok(()),
            other => Err(other),
        });
    } else if stack.host_id().is_some_and(runs) {
        let answer = stack.post("/v2/models/identity/infer", INPUT);
        assert!(matches!(answer, Ok((200, _))), "without an agent: {answer:?}");
    }
}

fn package(stack: &Stack) -> Option<Value> {
    let status = stack.agent_status();
    status["state"]["packages"].as_array()?.iter().find(|package| package["name"] == "identity").cloned()
}

/// Chunks of every blob of a package, by digest.
fn chunks(package: &Path) -> BTreeMap<String, u64> {
    let blobs = std::fs::read_dir(package.join("blobs/sha256")).unwrap();
    blobs
        .map(|blob| {
            let blob = blob.unwrap();
            let name = blob.file_name().into_string().unwrap();
            (name, blob.metadata().unwrap().len().div_ceil(CHUNK).max(1))
        })
        .collect()
}

/// Chunks that the device has fetched in all lives of its agent.
fn fetched(stack: &mut Stack) -> u64 {
    let mut agent = stack.agent.take().unwrap();
    agent.stop();
    let log = agent.log();
    let ends = log.lines().filter(|line| line.contains("the agent ends"));
    let counts = ends.map(|line| {
        let count = line.split("chunks=").nth(1).and_then(|rest| rest.split_whitespace().next());
        count.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("no count in {line}"))
    });
    counts.sum()
}
