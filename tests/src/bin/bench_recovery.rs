//! `cargo xtask bench recovery`: time from SIGKILL of the host to the next answer of a committed
//! version, from a start of agent and host together, and without answers while the host ends for the model of another
//! package that cannot be stopped, and is back without it. The limit of each is 2 s.

use std::time::Duration;

use selvedge_tests::clock;
use selvedge_tests::packages::{deploy, push_identity, release_folder};
use selvedge_tests::stack::Stack;
use selvedge_tests::versions::{self, BEHAVE, RUN_AWAY};
use selvedge_tests::wait;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
const ROUNDS: usize = 20;
const LIMIT_MS: f64 = 2000.0;
/// Packages of which a model runs away, twice each: at the third time one is quarantined.
const RUNAWAYS: usize = 5;

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

    let names: Vec<String> = (0..RUNAWAYS).map(|number| format!("runaway-{number}")).collect();
    for name in &names {
        let folder = stack.dir.path().join(name);
        versions::runaway(&folder, name, "1.0.0");
        release_folder(&stack, &folder, 1);
        deploy(&stack, name, 1);
        stack.wait_committed(name, 1);
    }
    let mut stuck = Vec::new();
    for name in names.iter().chain(&names) {
        // A new agent that knows of no end.
        stack.agent().kill();
        stack.start_agent();
        stuck.push(without_answers(&stack, name));
    }

    println!("{:<34} {:>10} {:>10}", "until the next answer, ms", "median", "worst");
    let rows = [
        ("host killed", &host),
        ("agent and host killed, started", &both),
        ("ended for a model that runs on", &stuck),
    ];
    for (name, times) in rows {
        println!("{name:<34} {:>10.0} {:>10.0}", median(times), worst(times));
    }
    let worst_of_all = worst(&host).max(worst(&both)).max(worst(&stuck));
    let report = serde_json::json!({
        "bench": "recovery",
        "figures": {
            "rounds": ROUNDS,
            "host_killed_median_ms": median(&host), "host_killed_worst_ms": worst(&host),
            "both_killed_median_ms": median(&both), "both_killed_worst_ms": worst(&both),
            "ended_for_a_model_median_ms": median(&stuck), "ended_for_a_model_worst_ms": worst(&stuck),
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

/// Milliseconds from the last answer of one host to the first of the next, which begins without `runaway`.
fn without_answers(stack: &Stack, runaway: &str) -> f64 {
    let path = format!("/v2/models/{runaway}/infer");
    wait::until("the model that will run away", || match stack.post(&path, BEHAVE) {
        Ok((200, _)) => Ok(()),
        other => Err(other),
    });
    let host = stack.host_id();
    assert!(host.is_some(), "a host that answers has a process");
    std::thread::scope(|scope| {
        // Answered at its deadline, or never.
        scope.spawn(|| stack.post(&path, RUN_AWAY));
        let start = clock::now();
        let mut answered = start;
        loop {
            let good = matches!(stack.post("/v2/models/identity/infer", INPUT), Ok((200, _)));
            let now = clock::now();
            if good && stack.host_id().is_some_and(|id| Some(id) != host) {
                let without = stack.post(&path, BEHAVE);
                assert!(
                    !matches!(without, Ok((200, _))),
                    "the host is back with what it ended for: {without:?}"
                );
                return (now - answered).as_secs_f64() * 1000.0;
            }
            if good {
                answered = now;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the host has not ended for it within a minute"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn worst(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}
