//! Part `hostile`: a well-behaved model while a hostile guest runs beside it, at its package's concurrency.
//!
//! Windows alternate: alone, beside. The bar is the median of the ratios of their 95th percentiles; no request
//! of the well-behaved one may fail, and none of the hostile one be turned away: all of them run. A guest that means
//! harm in several ways does so in each. Where it gives an answer its package declares that, so that it counts as one
//! that does well. `files 24` opens no more files than it may: it is busy and not hostile, and has a figure and no bar
//! (ADR 33).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use selvedge_tests::clock::now;
use selvedge_tests::onnx_writer;
use selvedge_tests::programs::set_up;
use selvedge_tests::report::Report;
use selvedge_tests::serving::{Host, LONG, Package, Spec, tensor};
use selvedge_tests::spread::{Spread, quantile};
use serde_json::{Value, json};

use super::client::Client;

const WINDOWS: usize = 7;
const WINDOW: Duration = Duration::from_millis(800);
const CONCURRENCY: usize = 2;
const RATIO: f64 = 2.0;
const QUANTILE: f64 = 0.95;

/// Those that never get as far as a request: what a device would try of them is their probe, a process of its own. So
/// with those that were written by hand (`text`).
const REFUSED: [&str; 3] = ["spin-init", "sockets", "wrong-export"];

type Tensor = (&'static str, &'static str, &'static [i64]);

/// What a guest is asked, and how it may answer.
struct Way {
    guest: String,
    /// Its setting `how`.
    how: &'static str,
    input: Tensor,
    output: Tensor,
}

/// Files that a module may well have open; it may have 64.
const FEW: &[i64] = &[24];
const NUMBERS: Tensor = ("x", "FP32", &[2, 3]);
/// By the input's name: what it then does.
const NAMED: [(&str, &[Tensor]); 3] = [
    ("trap", &[("trap", "FP32", &[2, 3])]),
    ("huge-tensor", &[("shape", "UINT8", &[6]), ("elements", "UINT8", &[6]), ("read", "UINT8", &[6])]),
    (
        "stale",
        &[
            ("handle", "UINT8", &[6]),
            ("read", "UINT8", &[6]),
            ("run", "FP32", &[2, 3]),
            ("copy", "UINT8", &[6]),
        ],
    ),
];
/// By the setting `how`.
const SET: [(&str, &[&str]); 2] = [
    ("nn", &["lies", "hoard", "errors", "large", "stale", "loads"]),
    ("relay", &["", "nothing", "long", "trap", "regret", "sorry"]),
];

impl Way {
    /// All that a guest does.
    fn of(guest: &str) -> Vec<Self> {
        let way = |how, input, output| Self { guest: guest.to_owned(), how, input, output };
        if let Some((_, inputs)) = NAMED.iter().find(|(name, _)| *name == guest) {
            return inputs.iter().map(|&input| way("", input, ("x", input.1, input.2))).collect();
        }
        if let Some((_, hows)) = SET.iter().find(|(name, _)| *name == guest) {
            let output = if guest == "relay" { ("y", "FP32", NUMBERS.2) } else { NUMBERS };
            return hows.iter().map(|how| way(how, NUMBERS, output)).collect();
        }
        vec![match guest {
            "files" => {
                let opened = ("opened", "UINT64", &[1][..]);
                return [FEW, &[1000]].map(|count| way("", ("x", "UINT8", count), opened)).into();
            }
            "keeper" => way("", ("x", "UINT8", &[6]), ("x", "UINT8", &[-1])),
            _ => way("", NUMBERS, NUMBERS),
        }]
    }

    fn name(&self) -> String {
        let how = if NAMED.iter().any(|(name, _)| *name == self.guest) { self.input.0 } else { self.how };
        let how = if self.is_hostile() { how } else { "24" };
        if how.is_empty() { self.guest.clone() } else { format!("{} {how}", self.guest) }
    }

    fn is_hostile(&self) -> bool {
        self.guest != "files" || self.input.2 != FEW
    }

    /// A tensor of ones.
    fn ones((name, datatype, shape): Tensor) -> Value {
        let shape: Vec<u64> = shape.iter().map(|extent| extent.unsigned_abs()).collect();
        let ones = vec![1; shape.iter().product::<u64>() as usize];
        tensor((name, datatype), &shape, json!(ones))
    }
}

/// Beside all guests, or beside `only` these.
pub async fn measure(report: &mut Report, only: &[&str]) -> anyhow::Result<()> {
    let folder = set_up("modules/hostile");
    let mut guests: Vec<String> = std::fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".wasm")?.to_owned()))
        .filter(|name| !REFUSED.contains(&name.as_str()))
        .collect();
    guests.sort();
    if let Some(unknown) = only.iter().find(|name| !guests.iter().any(|guest| guest == *name)) {
        anyhow::bail!("no guest is called `{unknown}`; there are: {}", guests.join(", "));
    }
    guests.retain(|name| only.is_empty() || only.contains(&name.as_str()));
    println!(
        "{:<20} {:>12} {:>12} {:>8} {:>16} {:>10} {:>8}",
        "beside", "alone p95 µs", "p95 µs", "ratio", "of one", "requests", "well"
    );
    for way in guests.iter().flat_map(|guest| Way::of(guest)) {
        let name = way.name();
        let host = Host::start().await;
        host.put(&Package::identity("neighbour", 1).write()).await;
        let guest = hostile(&way)?.write();
        // Its case fails, as it must; that it is routed all the same is what a device would never do.
        host.control.load(&guest.load(), LONG).await?;
        host.control.activate(&guest.package, LONG).await?;
        let address = host.url.trim_start_matches("http://").to_owned();
        let body = json!({"inputs": [Way::ones(way.input)]}).to_string();
        let (alone, beside, ratios, hostile, well) =
            thread::spawn(move || windows(&address, &body)).join().expect("no panic")?;
        let ratios = Spread::of(&ratios);
        let micros = |times: &[f64]| Spread::of(times).median * 1e6;
        let range = format!("{:.2} to {:.2}", ratios.least, ratios.most);
        println!(
            "{name:<20} {:>12.0} {:>12.0} {:>8.2} {range:>16} {hostile:>10} {well:>8}",
            micros(&alone),
            micros(&beside),
            ratios.median
        );
        report.spread(&format!("p95 beside {name} / alone"), ratios);
        if way.is_hostile() {
            report.at_most(&format!("p95 beside `{name}` / alone"), ratios.median, RATIO);
        }
    }
    Ok(())
}

type Windows = (Vec<f64>, Vec<f64>, Vec<f64>, u64, u64);

/// 95th percentiles alone and beside, their ratios, how often the hostile one was asked, and answered well.
fn windows(address: &str, attack: &str) -> anyhow::Result<Windows> {
    let body = json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]}).to_string();
    let mut neighbour = Client::new(address, "/v2/models/neighbour/infer", &body)?;
    neighbour.ask_until(now() + WINDOW)?;
    let attacking = Arc::new(AtomicBool::new(false));
    let over = Arc::new(AtomicBool::new(false));
    let (asked, well) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let attackers: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let (address, body) = (address.to_owned(), attack.to_owned());
            let (attacking, over) = (Arc::clone(&attacking), Arc::clone(&over));
            let (asked, well) = (Arc::clone(&asked), Arc::clone(&well));
            thread::spawn(move || -> anyhow::Result<()> {
                let mut client = Client::new(&address, "/v2/models/hostile/infer", &body)?;
                while !over.load(Ordering::Relaxed) {
                    if attacking.load(Ordering::Relaxed) {
                        let (status, _) = client.ask()?;
                        anyhow::ensure!(
                            !matches!(status, 404 | 429 | 503),
                            "the hostile one was turned away: {status}"
                        );
                        asked.fetch_add(1, Ordering::Relaxed);
                        well.fetch_add(u64::from(status == 200), Ordering::Relaxed);
                    } else {
                        thread::park_timeout(Duration::from_millis(50));
                    }
                }
                Ok(())
            })
        })
        .collect();
    let (mut alone, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let quiet = quantile(&mut neighbour.ask_until(now() + WINDOW)?, QUANTILE);
        attacking.store(true, Ordering::Relaxed);
        attackers.iter().for_each(|attacker| attacker.thread().unpark());
        thread::park_timeout(Duration::from_millis(50));
        let loud = quantile(&mut neighbour.ask_until(now() + WINDOW)?, QUANTILE);
        attacking.store(false, Ordering::Relaxed);
        // What they began ends by its deadline.
        thread::park_timeout(DEADLINE + Duration::from_millis(200));
        alone.push(quiet);
        beside.push(loud);
        ratios.push(loud / quiet);
    }
    over.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.thread().unpark();
        attacker.join().expect("no panic")?;
    }
    Ok((alone, beside, ratios, asked.load(Ordering::Relaxed), well.load(Ordering::Relaxed)))
}

const DEADLINE: Duration = Duration::from_millis(300);

fn hostile(way: &Way) -> anyhow::Result<Package> {
    let component = std::fs::read(set_up("modules/hostile").join(format!("{}.wasm", way.guest)))?;
    let case = json!({"name": "ones", "inputs": [Way::ones(way.input)], "outputs": [Way::ones(way.output)]});
    let specs: (&[Spec], &[Spec]) = (&[way.input], &[way.output]);
    let all: Value = json!(["clocks", "random", "package-files", "environment"]);
    Ok(Package::new("hostile", 1, onnx_writer::identity(), specs, case)
        .file("module.wasm", component)
        .module("component", json!("module.wasm"))
        .setting("how", way.how)
        .module("capabilities", all)
        .module("memory-mib", json!(32))
        .module("tensor-mib", json!(32))
        .module("concurrency", json!(CONCURRENCY))
        .module("deadline-ms", json!(DEADLINE.as_millis() as u64)))
}
