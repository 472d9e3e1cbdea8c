//! `cargo xtask bench swap`: requests that fail while versions follow one another, and what a swap
//! costs those who ask. 200 requests per second are sent whatever the answers take, while 50 swaps
//! go all the way: desired state, probe, load, acceptance, route, drain, report.

use std::time::{Duration, Instant};

use selvedge_tests::asking::{Asked, Asking, failures};
use selvedge_tests::clock;
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::Stack;
use selvedge_tests::versions;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
const SWAPS: usize = 50;
const PACE: Duration = Duration::from_millis(5);
/// Size of the models: as large as the example's.
const MODEL: usize = 3_000_000;
/// Time without a swap after each, so that both kinds of time are measured under the same load.
const BETWEEN: Duration = Duration::from_millis(500);

fn main() {
    let stack = Stack::start();
    for release in [1, 2] {
        let folder = stack.dir.path().join(format!("identity-{release}"));
        let version = format!("1.0.{release}");
        versions::identity(&folder, "identity", &version, MODEL + release, 6.0, "");
        release_folder(&stack, &folder, release as u64);
    }
    deploy(&stack, "identity", 1);
    stack.wait_committed("identity", 1);

    let asking = Asking::start(format!("{}/v2/models/identity/infer", stack.inference()), INPUT, PACE);
    let mut swaps = Vec::new();
    for swap in 0..SWAPS {
        std::thread::sleep(BETWEEN);
        let release = 2 - (swap as u64) % 2;
        let start = clock::now();
        deploy(&stack, "identity", release);
        stack.wait_committed("identity", release);
        swaps.push((start, clock::now()));
    }
    std::thread::sleep(BETWEEN);
    let asked = asking.stop();
    drop(stack);

    let failed = failures(&asked);
    for failure in failed.iter().take(10) {
        println!("failed: {failure}");
    }
    let during = |asked: &&Asked| swaps.iter().any(|&(start, end)| overlaps(asked, start, end));
    let (within, outside): (Vec<&Asked>, Vec<&Asked>) = asked.iter().partition(during);
    println!("{:<18} {:>9} {:>9} {:>9} {:>9}", "milliseconds", "requests", "p50", "p99", "worst");
    for (name, set) in [("during swaps", &within), ("between swaps", &outside)] {
        let (p50, p99, worst) = (quantile(set, 0.5), quantile(set, 0.99), quantile(set, 1.0));
        println!("{name:<18} {:>9} {p50:>9.2} {p99:>9.2} {worst:>9.2}", set.len());
    }
    let mut took: Vec<f64> =
        swaps.iter().map(|(start, end)| (*end - *start).as_secs_f64() * 1000.0).collect();
    took.sort_by(f64::total_cmp);
    let seconds = (asked.last().map(|last| last.at).zip(asked.first().map(|first| first.at)))
        .map_or(0.0, |(last, first)| (last - first).as_secs_f64());
    println!(
        "{SWAPS} swaps, deploy to report: median {:.0} ms, worst {:.0} ms",
        took[SWAPS / 2],
        took[SWAPS - 1]
    );
    println!("{:.0} requests per second, {} failed", asked.len() as f64 / seconds, failed.len());
    let report = serde_json::json!({
        "bench": "swap",
        "figures": {
            "swaps": SWAPS, "requests": asked.len(), "requests_per_second": asked.len() as f64 / seconds,
            "failed": failed.len(),
            "p99_during_ms": quantile(&within, 0.99), "p99_between_ms": quantile(&outside, 0.99),
            "p50_during_ms": quantile(&within, 0.5), "p50_between_ms": quantile(&outside, 0.5),
            "swap_median_ms": took[SWAPS / 2], "swap_worst_ms": took[SWAPS - 1],
        },
        "bars": [{"name": "failed requests", "value": failed.len(), "limit": 0, "holds": failed.is_empty()}],
    });
    println!("{report}");
}

fn overlaps(asked: &Asked, start: Instant, end: Instant) -> bool {
    asked.at <= end && asked.at + asked.took >= start
}

/// Milliseconds below which `part` of the requests stay.
fn quantile(asked: &[&Asked], part: f64) -> f64 {
    let mut times: Vec<f64> = asked.iter().map(|asked| asked.took.as_secs_f64() * 1000.0).collect();
    times.sort_by(f64::total_cmp);
    let at = ((times.len() as f64 * part).ceil() as usize).clamp(1, times.len().max(1));
    times.get(at - 1).copied().unwrap_or(0.0)
}
