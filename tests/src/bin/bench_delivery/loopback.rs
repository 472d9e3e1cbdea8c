//! Parts `loopback`, `memory` and `largest`: a blob through Mosquitto on this machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use selvedge_protocol::block::{BlockSize, LARGEST_WINDOW};
use selvedge_tests::broker::Broker;
use selvedge_tests::delivery::{NAME, Serving, release_parcel, seconds, watch};
use selvedge_tests::stack::Stack;
use selvedge_tests::usage::{pss_kib, worked};

use super::spread::Spread;
use super::{MB, PATIENCE, Report};

const LOOPBACK_BYTES: usize = 100 * MB;
const ROUNDS: u64 = 3;
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
    let mut stack = Stack::without_agent_over(Broker::Mosquitto("user root"));
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
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    println!("{:<34} {:>10} {:>10}", format!("{LOOPBACK_BYTES} bytes over Mosquitto"), "s", "MB/s");
    for round in 1..=ROUNDS {
        let file = release_parcel(stack, round, LOOPBACK_BYTES).display().to_string();
        let serving = Serving::start(&["serve", stack.broker_address(), &file, &block]);
        let took = seconds(&[], &["pull", stack.broker_address(), &bytes, &block, &window]);
        drop(serving);
        bare.push(LOOPBACK_BYTES as f64 / took);
        println!("{:<34} {took:>10.2} {:>10.1}", "bare rumqttc", bare[bare.len() - 1] / 1e6);
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
    let (bare, ours) = (Spread::of(&bare), Spread::of(&ours));
    report.spread("loopback_bare_bytes_per_second", bare);
    report.spread("loopback_agent_bytes_per_second", ours);
    let (bare, ours) = (bare.median, ours.median);
    report.bar("loopback, agent / bare rumqttc", ours / bare, LOOPBACK_RATIO, ours / bare >= LOOPBACK_RATIO);
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
