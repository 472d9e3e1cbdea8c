//! Part `hostile`: a well-behaved model while a hostile guest runs beside it, at its package's concurrency.
//!
//! Windows alternate: alone, beside. The bar is the median of the ratios of their 95th percentiles; no request
//! of the well-behaved one may fail.

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

/// Those that never get as far as a request.
const REFUSED: [&str; 3] = ["spin-init", "sockets", "wrong-export"];

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
        "{:<16} {:>12} {:>12} {:>8} {:>20} {:>10}",
        "beside", "alone p95 µs", "p95 µs", "ratio", "of one", "requests"
    );
    for name in guests {
        let host = Host::start().await;
        host.put(&Package::identity("neighbour", 1).write()).await;
        let guest = hostile(&name)?.write();
        // Its case fails, as it must; that it is routed all the same is what a device would never do.
        host.control.load(&guest.load(), LONG).await?;
        host.control.activate(&guest.package, LONG).await?;
        let address = host.url.trim_start_matches("http://").to_owned();
        let (alone, beside, ratios, hostile) =
            thread::spawn(move || windows(&address)).join().expect("no panic")?;
        let ratios = Spread::of(&ratios);
        let micros = |times: &[f64]| Spread::of(times).median * 1e6;
        let range = format!("{:.2} to {:.2}", ratios.least, ratios.most);
        println!(
            "{name:<16} {:>12.0} {:>12.0} {:>8.2} {range:>20} {hostile:>10}",
            micros(&alone),
            micros(&beside),
            ratios.median
        );
        report.spread(&format!("p95 beside {name} / alone"), ratios);
        report.at_most(&format!("p95 beside `{name}` / alone"), ratios.median, RATIO);
    }
    Ok(())
}

type Windows = (Vec<f64>, Vec<f64>, Vec<f64>, u64);

/// 95th percentiles alone and beside, their ratios, and how often the hostile one was asked.
fn windows(address: &str) -> anyhow::Result<Windows> {
    let body = json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]}).to_string();
    let mut neighbour = Client::new(address, "/v2/models/neighbour/infer", &body)?;
    neighbour.ask_until(now() + WINDOW)?;
    let attacking = Arc::new(AtomicBool::new(false));
    let over = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU64::new(0));
    let attackers: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let (address, body) = (address.to_owned(), body.clone());
            let (attacking, over, asked) = (Arc::clone(&attacking), Arc::clone(&over), Arc::clone(&asked));
            thread::spawn(move || -> anyhow::Result<()> {
                let mut client = Client::new(&address, "/v2/models/hostile/infer", &body)?;
                while !over.load(Ordering::Relaxed) {
                    if attacking.load(Ordering::Relaxed) {
                        client.ask()?;
                        asked.fetch_add(1, Ordering::Relaxed);
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
    Ok((alone, beside, ratios, asked.load(Ordering::Relaxed)))
}

const DEADLINE: Duration = Duration::from_millis(300);

fn hostile(name: &str) -> anyhow::Result<Package> {
    let component = std::fs::read(set_up("modules/hostile").join(format!("{name}.wasm")))?;
    let ones = |name| tensor((name, "FP32"), &[2, 3], json!([1, 1, 1, 1, 1, 1]));
    let case = json!({"name": "ones", "inputs": [ones("x")], "outputs": [ones("y")]});
    let specs: (&[Spec], &[Spec]) = (&[("x", "FP32", &[2, 3])], &[("y", "FP32", &[2, 3])]);
    let all: Value = json!(["clocks", "random", "package-files", "environment"]);
    Ok(Package::new("hostile", 1, onnx_writer::identity(), specs, case)
        .file("module.wasm", component)
        .module("component", json!("module.wasm"))
        .module("capabilities", all)
        .module("memory-mib", json!(32))
        .module("tensor-mib", json!(32))
        .module("concurrency", json!(CONCURRENCY))
        .module("deadline-ms", json!(DEADLINE.as_millis() as u64)))
}
