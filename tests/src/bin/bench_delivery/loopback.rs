//! Parts `loopback`, `memory` and `largest`: a blob through Mosquitto on this machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, LARGEST_WINDOW};
use selvedge_tests::broker::Broker;
use selvedge_tests::delivery::{NAME, release_parcel, seconds, serving, watch};
use selvedge_tests::report::Report;
use selvedge_tests::spread::Spread;
use selvedge_tests::stack::Stack;
use selvedge_tests::usage::{pss_kib, worked};

use super::{MB, PATIENCE};

const LOOPBACK_BYTES: usize = 100 * MB;
const ROUNDS: u64 = 3;
/// On two cores not even the second peer has so much of the first (docs/adr/0021).
const LOOPBACK_RATIO: f64 = 0.8;

const MEMORY_BYTES: usize = 500 * MB;
const MEMORY_MIB: f64 = 16.0;
/// The largest blob that a package may have.
const LARGEST_BYTES: usize = 2 << 30;

pub fn measure(report: &mut Report, speed: bool, memory: bool) {
    let stack = stack();
    if speed {
        loopback(report, &stack);
    }
    if memory {
        pss(report, &stack, "memory", MEMORY_BYTES);
    }
}

pub fn largest(report: &mut Report) {
    pss(report, &stack(), "largest", LARGEST_BYTES);
}

fn stack() -> Stack {
    // As `selvedge-registry pki mosquitto` sets it up: small messages are not held back for 40 ms.
    let mut stack = Stack::without_agent_over(Broker::Mosquitto("user root\nset_tcp_nodelay true"));
    // The registry's own limit on one device is no part of what is measured.
    let rate = (4_u64 << 30).to_string();
    stack.registry_arguments = ["--device-rate", &rate, "--total-rate", &rate].map(str::to_owned).to_vec();
    stack.registry = None;
    stack.start_registry();
    stack.start_agent();
    stack
}

fn loopback(report: &mut Report, stack: &Stack) {
    let block = BlockSize::PREFERRED.bytes().to_string();
    let (window, bytes) = (LARGEST_WINDOW.to_string(), LOOPBACK_BYTES.to_string());
    let (mut bare, mut keeping, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    println!("{:<34} {:>10} {:>10}", format!("{LOOPBACK_BYTES} bytes over Mosquitto"), "s", "MB/s");
    for round in 1..=ROUNDS {
        let file = release_parcel(stack, round, LOOPBACK_BYTES).display().to_string();
        let serving = serving(&["serve", stack.broker_address(), &file, &block]);
        let kept = stack.path(&format!("kept-{round}"));
        let digest = Digest::of(&std::fs::read(&file).expect("the parcel can be read")).hex();
        let pull = ["pull", stack.broker_address(), &bytes, &block, &window, &kept, &digest];
        for (name, words, rates) in
            [("bare rumqttc", &pull[..5], &mut bare), ("bare, checked and kept", &pull, &mut keeping)]
        {
            let took = seconds(&[], words);
            let rate = LOOPBACK_BYTES as f64 / took;
            println!("{name:<34} {took:>10.2} {:>10.1}", rate / 1e6);
            rates.push(rate);
        }
        drop(serving);
        std::fs::remove_file(kept).expect("the file can be removed");
        let programs = [("agent", &stack.agent), ("registry", &stack.registry), ("broker", &stack.broker)];
        let programs = programs.map(|(name, program)| (name, program.as_ref().expect("it was started").id()));
        let before = programs.map(|(_, id)| worked(id));
        let came = watch(stack, round, PATIENCE);
        ours.push(came.rate());
        let (done, arrived) = (came.done.as_secs_f64(), came.arrived.as_secs_f64());
        println!("{:<34} {done:>10.2} {:>10.1} (last byte after {arrived:.2} s)", "agent", came.rate() / 1e6);
        for ((name, id), before) in programs.into_iter().zip(before) {
            println!("{:<34} {:>10.2}", format!("  the {name} worked"), worked(id) - before);
        }
        std::fs::remove_file(file).expect("the file can be removed");
    }
    let [bare, keeping, ours] = [bare, keeping, ours].map(|rates| Spread::of(&rates));
    report.spread("loopback_bare_bytes_per_second", bare);
    report.spread("loopback_bare_kept_bytes_per_second", keeping);
    report.spread("loopback_agent_bytes_per_second", ours);
    let (bare, keeping, ours) = (bare.median, keeping.median, ours.median);
    for (peer, rate) in [("bare rumqttc", bare), ("bare rumqttc, checked and kept", keeping)] {
        let ratio = ours / rate;
        report.bar(&format!("loopback, agent / {peer}"), ratio, LOOPBACK_RATIO, ratio >= LOOPBACK_RATIO);
    }
}

fn pss(report: &mut Report, stack: &Stack, part: &str, bytes: usize) {
    let release = ROUNDS + 1;
    let file = release_parcel(stack, release, bytes);
    std::fs::remove_file(file).expect("the file can be removed");
    let agent = stack.agent.as_ref().expect("the agent was started").id();
    let before = pss_kib(agent) as f64 / 1024.0;
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let came = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(pss_kib(agent), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let came = watch(stack, release, PATIENCE);
        over.store(true, Ordering::Relaxed);
        came
    });
    stack.wait_committed(NAME, release);
    let most = most.into_inner() as f64 / 1024.0;
    println!(
        "{bytes} bytes at {:.1} MB/s: PSS of the agent {before:.2} MiB before, {most:.2} MiB at most",
        came.rate() / 1e6
    );
    report.figure(&format!("{part}_agent_pss_before_mib"), before);
    report.figure(&format!("{part}_agent_bytes_per_second"), came.rate());
    let bar = format!("agent PSS while receiving {} MB, MiB", bytes / MB);
    report.bar(&bar, most, MEMORY_MIB, most < MEMORY_MIB);
}
