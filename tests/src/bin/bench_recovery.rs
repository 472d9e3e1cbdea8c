//! `cargo xtask bench recovery`: time from SIGKILL of the host to the next answer of a committed
//! version, and from a start of agent and host together. The limit of each is 2 s.

use std::time::Duration;

use selvedge_tests::clock;
use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
const ROUNDS: usize = 20;
const LIMIT_MS: f64 = 2000.0;

fn main() {
    let mut stack = Stack::start();
    push_identity(&stack, 3_000_000);
    stack.wait_committed("identity", 1);

    // One crash after a steady time, not a crash loop: the back-off between restarts grows with every
    // crash that follows the last one quickly, so each round begins with a new agent that has seen none.
    let mut host = Vec::new();
    for _ in 0..ROUNDS {
        stack.agent().kill();
        stack.start_agent();
        wait::until("the host to be adopted", || match stack.agent_status() {
            status if status["host"].is_object() => Ok(()),
            other => Err(other),
        });
        host.push(measure(&stack, Stack::kill_host));
    }
    let mut both = Vec::new();
    for _ in 0..ROUNDS {
        stack.agent().kill();
        stack.kill_host();
        stack.start_agent();
        both.push(measure(&stack, |_| {}));
    }

    println!("{:<34} {:>10} {:>10}", "until the next answer, ms", "median", "worst");
    let rows = [("host killed", &host), ("agent and host killed, started", &both)];
    for (name, times) in rows {
        println!("{name:<34} {:>10.0} {:>10.0}", median(times), worst(times));
    }
    let worst_of_all = worst(&host).max(worst(&both));
    let report = serde_json::json!({
        "bench": "recovery",
        "figures": {
            "rounds": ROUNDS,
            "host_killed_median_ms": median(&host), "host_killed_worst_ms": worst(&host),
            "both_killed_median_ms": median(&both), "both_killed_worst_ms": worst(&both),
        },
        "bars": [{"name": "worst recovery, ms", "value": worst_of_all, "limit": LIMIT_MS, "holds": worst_of_all <= LIMIT_MS}],
    });
    drop(stack);
    println!("{report}");
}

/// Milliseconds from `fault` to the first answer after it.
fn measure(stack: &Stack, fault: impl FnOnce(&Stack)) -> f64 {
    let start = clock::now();
    fault(stack);
    while !matches!(stack.post("/v2/models/identity/infer", INPUT), Ok((200, _))) {
        assert!(start.elapsed() < Duration::from_secs(60), "no answer within a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
    start.elapsed().as_secs_f64() * 1000.0
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn worst(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}
