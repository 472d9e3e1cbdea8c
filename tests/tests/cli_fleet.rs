//! The commands for a fleet, as a person types them, against the real registry, agent and host: plan,
//! deploy by selector, watch, roll back, explain, facts, logs, ask through the broker, undeploy.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use selvedge_tests::packages::release_folder;
use selvedge_tests::programs::program;
use selvedge_tests::stack::{DEVICE, Stack, reported};
use selvedge_tests::{versions, wait};
use serde_json::Value;

const SELECTOR: &str = "arch, name in (edge-1, edge-2)";
const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6.5]}]}"#;

fn releases(stack: &Stack, last: [f64; 3]) {
    for (release, last) in (1_u64..).zip(last) {
        let folder = stack.dir.path().join(format!("model-{release}"));
        versions::identity(&folder, "model", &format!("1.0.{release}"), 3000 + release as usize, last, "");
        release_folder(stack, &folder, release);
    }
}

#[test]
fn a_fleet_is_planned_deployed_watched_and_rolled_back() {
    let stack = Stack::start();
    releases(&stack, [6.0, 6.0, 7.0]);
    let selvedge = |line: &[&str]| stack.selvedge().run(line);
    let refused = |line: &[&str]| stack.selvedge().refused(line);

    // The device has told its architecture before it can match.
    wait::until("facts", || match stack.target()["facts"]["architecture"].as_str() {
        Some(_) => Ok(()),
        None => Err(()),
    });
    let plan = stack.selvedge().json(&["deploy", "model@r1", "--selector", SELECTOR, "--plan"]);
    assert_eq!(plan["targets"][0]["name"], DEVICE, "{plan}");
    let text = selvedge(&["deploy", "model@r1", "--selector", SELECTOR, "--plan"]);
    assert!(text.contains("nothing is changed") && text.contains("new"), "{text}");
    assert!(selvedge(&["deployments"]).contains("nothing is deployed yet"));

    let text = selvedge(&["deploy", "model@r1", "--selector", SELECTOR, "--wait"]);
    assert!(text.contains("1 of 1 serving"), "{text}");
    let text = selvedge(&["watch", "model"]);
    assert!(text.contains(&format!("{DEVICE}: model 1.0.1 (r1): serving")), "{text}");

    // The release whose case fails is not kept, and says why; what ran before runs on.
    let (code, said) = refused(&["deploy", "model@r3", "--selector", SELECTOR, "--wait"]);
    assert!(
        code == 4 && said.contains("did not keep model 1.0.3 (r3)") && said.contains("golden"),
        "{code}: {said}"
    );
    let (code, said) = refused(&["watch", "model", "--json"]);
    assert!(code == 4 && said.contains("golden"), "{code}: {said}");

    // Back to what runs, then one further back, then there is nothing more.
    let text = selvedge(&["rollback", "model", "--to", "1.0.2", "--wait"]);
    assert!(text.contains("model 1.0.2 (r2)") && text.contains("1 of 1 serving"), "{text}");
    selvedge(&["rollback", "model", "--wait"]);
    assert_eq!(reported(&stack.target(), "model").unwrap()["committed"]["release"], 1);
    let (code, said) = refused(&["rollback", "model"]);
    assert!(code == 3 && said.contains("nothing to roll model back to"), "{code}: {said}");
    let (code, said) = refused(&["rollback", "model", "--to", "r1"]);
    assert!(code == 5 && said.contains("already"), "{code}: {said}");

    // A target by name competes with the selector; explain says what lost.
    selvedge(&["deploy", "model@r2", "--target", DEVICE, "--priority", "3", "--wait"]);
    let text = selvedge(&["explain", DEVICE, "model"]);
    assert!(
        text.contains("serves 1.0.2 (r2)") && text.contains("lost") && text.contains("priority"),
        "{text}"
    );
    let (code, said) = refused(&["undeploy", "model"]);
    assert!(code == 2 && said.contains("2 deployments") && said.contains("--all"), "{code}: {said}");
    selvedge(&["undeploy", "model", "--target", DEVICE]);
    stack.wait_committed("model", 1);
    selvedge(&["undeploy", "model", "--selector", "name in (edge-2,edge-1), arch"]);
    wait::until("the package to be uninstalled", || match reported(&stack.target(), "model") {
        None => Ok(()),
        Some(report) => Err(report.clone()),
    });
    assert!(selvedge(&["explain", DEVICE, "model"]).contains("does not run there"));
}

#[test]
fn a_device_is_asked_from_afar() {
    let mut stack = Stack::start();
    releases(&stack, [6.0; 3]);
    let (code, said) = stack.selvedge().refused(&["deploy", "model", "--target", "egde-1"]);
    assert!(code == 3 && said.contains("did you mean `edge-1`"), "{said}");
    let text = stack.selvedge().run(&["deploy", "model@r1", "--target", DEVICE, "--wait"]);
    assert!(text.contains("serves model 1.0.1 (r1)"), "{text}");

    let facts = stack.selvedge().json(&["facts", DEVICE]);
    assert_eq!(facts["facts"]["architecture"], std::env::consts::ARCH);

    // Through the broker, the answer is the one that its own address gives.
    let far = ["ask", "model", "--input", INPUT, "--target", DEVICE, "--via", "mqtt", "--json"];
    let near = ["ask", "model", "--input", INPUT, "--target-url", &stack.inference(), "--json"];
    let (far, near) = (stack.selvedge().json(&far), stack.selvedge().json(&near));
    assert_eq!(far["outputs"], near["outputs"]);
    assert_eq!(far["outputs"][0]["data"][5], 6.5);
    let plain = [r#"{"x": [[1, 2, 3], [4, 5, 6]]}"#, "--target", DEVICE, "--via", "mqtt"];
    let text = stack.selvedge().run(&[&["ask", "model@1.0.1", "--input"], &plain[..]].concat());
    assert!(text.contains("y = FP32 [2×3] 1.0, 2.0"), "{text}");
    let (code, said) = stack.selvedge().refused(&[&["ask", "modle", "--input"], &plain[..]].concat());
    assert!(code == 3 && said.contains("did you mean `model`"), "{code}: {said}");

    // Its log is followed over a restart of the agent, each line once.
    assert!(stack.selvedge().run(&["logs", DEVICE, "-n", "5"]).contains(" agent "));
    let mut logs = follow(&stack);
    let mut lines = BufReader::new(logs.stdout.take().unwrap()).lines();
    let mut notes = BufReader::new(logs.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().is_ok());
    stack.agent().kill();
    stack.start_agent();
    assert!(notes.any(|note| note.unwrap().contains("was started again")));
    let after: Value = lines
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
        .find(|line| line["number"] == 1)
        .unwrap();
    assert_eq!(after["source"], "agent", "{after}");
    // Nobody reads any more: it ends by itself.
    assert_eq!(logs.wait().unwrap().code(), Some(0));

    // A device that is off says so at once.
    stack.agent = None;
    wait::until("the registry to know that it is off", || {
        let target = stack.target();
        if target["online"] == false { Ok(()) } else { Err(target["last_heard"].clone()) }
    });
    let (code, said) = stack.selvedge().refused(&["logs", DEVICE]);
    assert!(code == 6 && said.contains("offline") | said.contains("not heard"), "{code}: {said}");
    let (code, _) = stack.selvedge().refused(&[&["ask", "model", "--input"], &plain[..]].concat());
    assert_eq!(code, 6);
}

/// `selvedge logs -f --json`, with its output in pipes.
fn follow(stack: &Stack) -> Child {
    let address = std::fs::read_to_string(stack.dir.path().join("registry.address")).unwrap();
    Command::new(program("selvedge"))
        .args([
            "logs",
            DEVICE,
            "-f",
            "-n",
            "1",
            "--json",
            "--registry",
            &format!("http://{}", address.trim()),
        ])
        .args(["--token-file", &stack.path("registry/token")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
