//! The public backend cases of ONNX, each through package, host and HTTP, and directly through ONNX
//! Runtime in the same run: what ONNX Runtime computes as the case says has to come from the host, bit
//! by bit (any NaN is NaN).
//!
//! The cases are those of the package `onnx` (`collect.py` writes them at set-up). All go through the host, and each
//! is in one of four groups: passed; ONNX Runtime gives something else than the case says, and so does the host;
//! ONNX Runtime cannot do it, and the host says so; of a kind of value that the host refuses with a clear error. The
//! run fails when one shrinks or grows the wrong way.
#![allow(clippy::unwrap_used)]

mod answer;
mod cases;
mod direct;
mod groups;
mod packaged;
mod unable;
mod value;

use std::sync::Arc;

use selvedge_tests::serving::Host;

use crate::groups::{Groups, Outcome};

/// Cases at once: the host and ONNX Runtime compute in turn.
const AT_ONCE: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_onnx_runtime_computes_comes_through_the_host() {
    let host = Arc::new(Host::start().await);
    let runner = Arc::new(packaged::Runner::new());
    let cases = Arc::new(cases::all());
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|worker| {
            let (host, runner, cases) = (Arc::clone(&host), Arc::clone(&runner), Arc::clone(&cases));
            tokio::spawn(async move {
                let mut outcomes = Vec::new();
                for at in (worker..cases.len()).step_by(AT_ONCE) {
                    let case = cases::parse(&cases[at]);
                    let outcome = runner.run(&host, at, &case).await;
                    outcomes.push((case.name, outcome));
                }
                outcomes
            })
        })
        .collect();
    let mut groups = Groups::default();
    for task in tasks {
        let outcomes: Vec<(String, Outcome)> = task.await.unwrap();
        for (name, outcome) in outcomes {
            groups.add(name, outcome);
        }
    }
    assert!(host.status().await.packages.is_empty(), "every package was unloaded");
    groups.say();
    groups.judge();
}
