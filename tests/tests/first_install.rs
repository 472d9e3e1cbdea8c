//! One signed push answers: package, release, deploy, fetch, verify, trial, commit, ask, report.

#![allow(clippy::unwrap_used)]

use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::wait;

const INPUT: &str =
    r#"{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6.5]}]}"#;

#[test]
fn a_push_is_answered_and_reported() {
    let mut stack = Stack::start();
    push_identity(&stack, 300_000);
    stack.wait_committed("identity", 1);

    let (status, answer) = stack.post("/v2/models/identity/infer", INPUT).unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["id"], "7");
    assert_eq!(answer["model_name"], "identity");
    assert_eq!(answer["outputs"][0]["data"], serde_json::json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.5]));

    let target = stack.target();
    assert_eq!(target["facts"]["architecture"], std::env::consts::ARCH);
    assert_eq!(target["desired"][0]["package"], "identity");
    let digest = target["desired"][0]["digest"].clone();
    assert_eq!(reported(&target, "identity").unwrap()["committed"]["digest"], digest);
    assert_eq!(answer["parameters"]["selvedge_package"], digest, "the answer says which package gave it");

    // The box itself answers without a network.
    stack.registry = None;
    stack.broker = None;
    let status = agent_status(&stack);
    assert!(status.contains("identity") && status.contains("1.0.0"), "{status}");
    assert_eq!(stack.post("/v2/models/identity/infer", INPUT).unwrap().0, 200);

    // And says what it last knew when the agent is down.
    stack.agent().kill();
    let status = agent_status(&stack);
    assert!(status.contains("identity") && status.contains("NO AGENT RUNS"), "{status}");
}

#[test]
fn a_second_agent_on_the_same_data_refuses_and_names_the_first() {
    let mut stack = Stack::start();
    let first = stack.agent().id();
    wait::until("the first agent to say that it runs", || match stack.agent_status() {
        status if status["agent"] == first => Ok(()),
        status => Err(status),
    });
    let output = std::process::Command::new(selvedge_tests::programs::program("selvedge-agent"))
        .args([
            "run",
            "--data",
            &stack.path("agent"),
            "--enrolment",
            &stack.path("enrolment.json"),
            "--http",
            "127.0.0.1:0",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&first.to_string()), "{said}");
    assert!(stack.agent().runs());
}

fn agent_status(stack: &Stack) -> String {
    let output = std::process::Command::new(selvedge_tests::programs::program("selvedge-agent"))
        .args(["status", "--data", &stack.path("agent")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
