//! `cargo xtask bench delivery [PART…]`: how fast a blob gets to a device, against the least that could
//! move it in the same run. Parts: `loopback` (100 MB through Mosquitto, against bare rumqttc at QoS 0
//! with the same blocks and window), `memory` (the agent's PSS while 500 MB come), `slow` (1 Mbit/s,
//! 300 ms there and back, 2 % loss, over TLS, against one bare TCP download under cubic), `cut` (the
//! same link, silent for 5 s of every 20 s, against what the time in between allows).
//! Ends with one line of JSON.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use selvedge_protocol::block::{BlockSize, LARGEST_WINDOW};
use selvedge_tests::broker::Broker;
use selvedge_tests::delivery::{Serving, release_parcel, seconds, watch};
use selvedge_tests::emulated::{self, Emulated, HERE, Shape};
use selvedge_tests::stack::Stack;
use selvedge_tests::usage::pss_kib;
use selvedge_tests::wait;
use serde_json::{Map, Value, json};

const PARTS: [&str; 4] = ["loopback", "memory", "slow", "cut"];
const PATIENCE: Duration = Duration::from_secs(900);
const MB: usize = 1_000_000;

const LOOPBACK_BYTES: usize = 100 * MB;
const ROUNDS: u64 = 3;
const LOOPBACK_RATIO: f64 = 0.8;

const MEMORY_BYTES: usize = 500 * MB;
const MEMORY_MIB: f64 = 16.0;

const SLOW: Shape =
    Shape { rate: 125_000, delay: Duration::from_millis(150), loss: 0.02, queue: 64 * 1024, seed: 7 };
const SLOW_BYTES: usize = 2 * MB;
const SLOW_RATIO: f64 = 0.9;

const CUT_EVERY: Duration = Duration::from_secs(20);
const CUT_FOR: Duration = Duration::from_secs(5);
const CUT_RATIO: f64 = 0.8;

/// What the report will say.
#[derive(Default)]
struct Report {
    figures: Map<String, Value>,
    bars: Vec<Value>,
}

impl Report {
    fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value.into());
    }

    fn bar(&mut self, name: &str, value: f64, limit: f64, holds: bool) {
        self.bars.push(json!({"name": name, "value": value, "limit": limit, "holds": holds}));
    }
}

fn main() {
    emulated::enter();
    if cfg!(debug_assertions) {
        eprintln!("bench_delivery: this is a debug build; its figures mean little");
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = words.iter().find(|word| !PARTS.contains(&word.as_str())) {
        panic!("no part is called `{unknown}`; there are: {}", PARTS.join(", "));
    }
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let mut report = Report::default();
    if wanted("loopback") || wanted("memory") {
        on_loopback(&mut report, wanted("loopback"), wanted("memory"));
    }
    if wanted("slow") || wanted("cut") {
        on_a_slow_link(&mut report, wanted("slow"), wanted("cut"));
    }
    println!("{}", json!({"bench": "delivery", "figures": report.figures, "bars": report.bars}));
}

fn on_loopback(report: &mut Report, speed: bool, memory: bool) {
    let mut stack = Stack::without_agent_over(Broker::Mosquitto("user root"));
    // The registry's own limit on one device is no part of what is measured.
    let rate = (4_u64 << 30).to_string();
    stack.registry_arguments = ["--device-rate", &rate, "--total-rate", &rate].map(str::to_owned).to_vec();
    stack.registry = None;
    stack.start_registry();
    stack.start_agent();
    if speed {
        loopback(report, &stack);
    }
    if memory {
        pss(report, &stack);
    }
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
        let came = watch(stack, round, PATIENCE);
        ours.push(came.rate());
        let (done, arrived) = (came.done.as_secs_f64(), came.arrived.as_secs_f64());
        println!("{:<34} {done:>10.2} {:>10.1} (last byte after {arrived:.2} s)", "agent", came.rate() / 1e6);
        std::fs::remove_file(file).expect("the file can be removed");
    }
    let (bare, ours) = (median(bare), median(ours));
    report.figure("loopback_bare_bytes_per_second", bare);
    report.figure("loopback_agent_bytes_per_second", ours);
    report.bar("loopback, agent / bare rumqttc", ours / bare, LOOPBACK_RATIO, ours / bare >= LOOPBACK_RATIO);
}

fn pss(report: &mut Report, stack: &Stack) {
    let release = ROUNDS + 1;
    let file = release_parcel(stack, release, MEMORY_BYTES);
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
    let most = most.into_inner() as f64 / 1024.0;
    println!(
        "{MEMORY_BYTES} bytes at {:.1} MB/s: PSS of the agent {before:.2} MiB before, {most:.2} MiB at most",
        came.rate() / 1e6
    );
    report.figure("memory_agent_pss_before_mib", before);
    report.figure("memory_agent_bytes_per_second", came.rate());
    report.bar("agent PSS while receiving 500 MB, MiB", most, MEMORY_MIB, most < MEMORY_MIB);
}

fn on_a_slow_link(report: &mut Report, slow: bool, cut: bool) {
    let mut link = Emulated::start(&SLOW);
    let mut stack = Stack::without_agent_at(Broker::MosquittoTls(""), &format!("{HERE}:8883"));
    stack.agent_within = link.within();
    stack.start_agent();
    wait::until("the device to be online", || {
        let target = stack.target();
        if target["online"] == true { Ok(()) } else { Err(target) }
    });
    let (address, bytes) = (format!("{HERE}:9000"), SLOW_BYTES.to_string());
    let _serving = Serving::start(&["tcp-serve", &address, &bytes]);
    println!("{:<34} {:>10} {:>10} {:>12}", "1 Mbit/s, 300 ms, 2 % loss", "s", "kB/s", "on the link");
    let before = link.passed();
    let took = seconds(&link.within(), &["tcp-get", &address, &bytes]);
    let tcp = SLOW_BYTES as f64 / took;
    let carried = link.passed().bytes_down - before.bytes_down;
    println!("{:<34} {took:>10.1} {:>10.1} {carried:>12}", "one TCP download", tcp / 1e3);
    report.figure("slow_tcp_bytes_per_second", tcp);
    if slow {
        release_parcel(&stack, 1, SLOW_BYTES);
        let before = link.passed();
        let came = watch(&stack, 1, PATIENCE);
        let carried = link.passed().bytes_down - before.bytes_down;
        let (took, rate) = (came.done.as_secs_f64(), came.rate());
        println!("{:<34} {took:>10.1} {:>10.1} {carried:>12}", "agent", rate / 1e3);
        report.figure("slow_agent_bytes_per_second", rate);
        report.bar("slow link, agent / TCP", rate / tcp, SLOW_RATIO, rate / tcp >= SLOW_RATIO);
    }
    if cut {
        release_parcel(&stack, 2, SLOW_BYTES);
        let before = link.passed();
        let came = while_cut(&mut link, || watch(&stack, 2, PATIENCE));
        let carried = link.passed().bytes_down - before.bytes_down;
        let (took, rate) = (came.done.as_secs_f64(), came.rate());
        println!("{:<34} {took:>10.1} {:>10.1} {carried:>12}", "agent, 5 s of 20 cut", rate / 1e3);
        let within = link.within();
        let before = link.passed();
        let bare = while_cut(&mut link, || seconds(&within, &["tcp-get", &address, &bytes]));
        let carried = link.passed().bytes_down - before.bytes_down;
        let bare_rate = SLOW_BYTES as f64 / bare;
        println!(
            "{:<34} {bare:>10.1} {:>10.1} {carried:>12}",
            "one TCP download, 5 s of 20 cut",
            bare_rate / 1e3
        );
        report.figure("cut_tcp_bytes_per_second", bare_rate);
        let allowed = tcp * (CUT_EVERY - CUT_FOR).as_secs_f64() / CUT_EVERY.as_secs_f64();
        report.figure("cut_agent_bytes_per_second", rate);
        report.bar(
            "cut link, agent / TCP in the time left",
            rate / allowed,
            CUT_RATIO,
            rate / allowed >= CUT_RATIO,
        );
    }
}

/// Does something while the link is cut again and again.
fn while_cut<T>(link: &mut Emulated, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        scope.spawn(move || {
            let over = |time| stopped.recv_timeout(time) != Err(mpsc::RecvTimeoutError::Timeout);
            loop {
                if over(CUT_EVERY - CUT_FOR) {
                    break;
                }
                link.cut();
                let ended = over(CUT_FOR);
                link.mend();
                if ended {
                    break;
                }
            }
        });
        let result = work();
        drop(stop);
        result
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
