//! Parts `slow` and `cut`: a blob over a link that is slow, long and lossy, and over one that is cut as well.
//!
//! One download says little here: which packets are lost makes a bare TCP download a tenth faster or
//! slower. So TCP and the agent take turns, [`ROUNDS`] times; in a round everyone meets the same losses,
//! packet by packet, and the same cuts, counted from the moment at which his bytes are asked for, and is
//! shown beside the TCP of his round. The bars are of all rounds together, since a median of three throws
//! two thirds of the measuring away. A package also begins: a manifest and an index come before the file,
//! and the agent's connection has been there for long, where a new one starts without having seen a loss.
//! That costs about four seconds, whatever the size, and counts.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use selvedge_tests::broker::Broker;
use selvedge_tests::delivery::{release_parcel, seconds, serving, watch_from};
use selvedge_tests::emulated::{Emulated, HERE, Shape};
use selvedge_tests::peer::Peer;
use selvedge_tests::report::Report;
use selvedge_tests::spread::Spread;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

use super::{MB, PATIENCE};

const ROUNDS: u64 = 3;
const SLOW: Shape =
    Shape { rate: 125_000, delay: Duration::from_millis(150), loss: 0.02, queue: 64 * 1024, seed: 7 };
const SLOW_BYTES: usize = 4 * MB;
const SLOW_RATIO: f64 = 0.9;

const CUT_BYTES: usize = 2 * MB;
const CUT_EVERY: Duration = Duration::from_secs(20);
const CUT_FOR: Duration = Duration::from_secs(5);
const CUT_RATIO: f64 = 0.8;

/// The link, and who is at its ends.
struct Bench {
    link: Emulated,
    stack: Stack,
    _serving: [Peer; 2],
    releases: u64,
}

/// Bytes a second of each round.
#[derive(Default)]
struct Rates {
    tcp: Vec<f64>,
    agent: Vec<f64>,
    cut_tcp: Vec<f64>,
    cut_agent: Vec<f64>,
}

pub fn measure(report: &mut Report, slow: bool, cut: bool) {
    let mut bench = Bench::start();
    let mut rates = Rates::default();
    println!(
        "{:<34} {:>10} {:>10} {:>12} {:>9}",
        "1 Mbit/s, 300 ms, 2 % loss", "s", "kB/s", "on the link", "packets"
    );
    for round in 1..=ROUNDS {
        rates.tcp.push(bench.tcp(round, false));
        if slow {
            rates.agent.push(bench.agent(round, false));
        }
        if cut {
            rates.cut_agent.push(bench.agent(round, true));
        }
    }
    if cut {
        // For comparison only: no bar is about it.
        rates.cut_tcp.push(bench.tcp(1, true));
    }
    report.spread("slow_tcp_bytes_per_second", Spread::of(&rates.tcp));
    if slow {
        report.spread("slow_agent_bytes_per_second", Spread::of(&rates.agent));
        bar(report, "slow link, agent / TCP", &rates.agent, &rates.tcp, SLOW_RATIO);
    }
    if cut {
        report.figure("cut_tcp_bytes_per_second_up", together(&rates.cut_tcp));
        report.spread("cut_agent_bytes_per_second_up", Spread::of(&rates.cut_agent));
        bar(report, "cut link, agent / TCP in the time left", &rates.cut_agent, &rates.tcp, CUT_RATIO);
    }
}

/// Bytes a second of all rounds: each brings as much.
fn together(rates: &[f64]) -> f64 {
    rates.len() as f64 / rates.iter().map(|rate| rate.recip()).sum::<f64>()
}

fn bar(report: &mut Report, name: &str, rates: &[f64], tcp: &[f64], limit: f64) {
    // In a round they met the same losses.
    let pairs = Spread::of(&rates.iter().zip(tcp).map(|(rate, tcp)| rate / tcp).collect::<Vec<f64>>());
    let share = together(rates) / together(tcp);
    println!("{name}: {share:.3} of all rounds; of one: {pairs}");
    report.spread(&format!("{}_share", name.split(' ').next().unwrap_or(name)), pairs);
    report.bar(name, share, limit, share >= limit);
}

impl Bench {
    fn start() -> Self {
        let link = Emulated::start(&SLOW);
        let mut stack = Stack::without_agent_at(Broker::MosquittoTls(""), &format!("{HERE}:8883"));
        stack.agent_within = link.within();
        stack.start_agent();
        wait::until("the device to be online", || {
            let target = stack.target();
            if target["online"] == true { Ok(()) } else { Err(target) }
        });
        let serve = |bytes| serving(&["tcp-serve", &tcp_address(bytes), &bytes.to_string()]);
        Self { link, stack, _serving: [serve(SLOW_BYTES), serve(CUT_BYTES)], releases: 0 }
    }

    /// One bare TCP download; bytes a second of the time in which the link was up.
    fn tcp(&mut self, round: u64, cut: bool) -> f64 {
        let (within, bytes) = (self.link.within(), bytes(cut));
        let get = |begun: &dyn Fn()| {
            begun();
            (bytes as u64, seconds(&within, &["tcp-get", &tcp_address(bytes), &bytes.to_string()]))
        };
        row(&mut self.link, "one TCP download", round, cut, get)
    }

    /// One package to the agent; bytes a second of the time in which the link was up.
    fn agent(&mut self, round: u64, cut: bool) -> f64 {
        self.releases += 1;
        let release = self.releases;
        release_parcel(&self.stack, release, bytes(cut));
        let stack = &self.stack;
        let get = |begun: &dyn Fn()| {
            let came = watch_from(stack, release, PATIENCE, begun);
            (came.bytes, came.done.as_secs_f64())
        };
        row(&mut self.link, "agent", round, cut, get)
    }
}

fn bytes(cut: bool) -> usize {
    if cut { CUT_BYTES } else { SLOW_BYTES }
}

/// Where so many bytes are to be had by one TCP download.
fn tcp_address(bytes: usize) -> String {
    format!("{HERE}:{}", 9000 + bytes / MB)
}

/// Lets somebody get something, and prints how that went. `get` says when it begins, and ends with bytes
/// and seconds.
fn row(
    link: &mut Emulated,
    who: &str,
    round: u64,
    cut: bool,
    get: impl FnOnce(&dyn Fn()) -> (u64, f64),
) -> f64 {
    link.lose_anew(SLOW.seed + 2 * round);
    let before = link.passed();
    let (bytes, took) = if cut { while_cut(link, get) } else { get(&|| {}) };
    let passed = link.passed();
    let (carried, packets) =
        (passed.bytes_down - before.bytes_down, passed.packets_down - before.packets_down);
    let up = if cut { time_up(took) } else { took };
    let rate = bytes as f64 / up;
    let name = if cut { format!("{who}, 5 s of 20 cut, {up:.1} s up") } else { who.to_owned() };
    println!("{name:<34} {took:>10.1} {:>10.1} {carried:>12} {packets:>9}", rate / 1e3);
    rate
}

/// How many of the first so many seconds the link was up.
fn time_up(seconds: f64) -> f64 {
    let (every, up) = (CUT_EVERY.as_secs_f64(), (CUT_EVERY - CUT_FOR).as_secs_f64());
    (seconds / every).floor() * up + (seconds % every).min(up)
}

/// Does something while the link is cut again and again, from the moment at which it says that it begins.
fn while_cut<T>(link: &mut Emulated, work: impl FnOnce(&dyn Fn()) -> T) -> T {
    thread::scope(|scope| {
        let (say, said) = mpsc::channel::<()>();
        scope.spawn(move || {
            if said.recv().is_err() {
                return;
            }
            let over = |time| said.recv_timeout(time) != Err(mpsc::RecvTimeoutError::Timeout);
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
        let result = work(&|| say.send(()).expect("the thread waits for it"));
        drop(say);
        result
    })
}
