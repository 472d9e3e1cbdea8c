//! A real agent on a small file system that fills to the last block, at every step of an update, at a start,
//! and when nothing goes on: what is committed answers all the time, it is said what is wrong, and when
//! there is room again everything ends as it should, without a restart. The same for a start on a file
//! system that is read-only.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use selvedge_tests::asking::Asking;
use selvedge_tests::mount::{Small, allowed};
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::Stack;
use selvedge_tests::{versions, wait};
use serde_json::Value;

const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
/// Two releases of 2 MB, a third on its way, the reserve, and what packages leave free.
const SIZE: u64 = 32;
const MODEL: usize = 2_000_000;

type Moment = (&'static str, fn(&Value) -> bool);

const MOMENTS: [Moment; 7] = [
    ("nothing", |_| true),
    ("assigned", |package| package["pending"].is_object()),
    ("first bytes", |package| package["pending"]["bytes"].as_u64().unwrap_or(0) > 65536),
    ("half", |package| {
        let of = |key: &str| package["pending"][key].as_u64().unwrap_or(0);
        of("total") > 0 && of("bytes") * 2 > of("total")
    }),
    ("staged", |package| package["pending"]["stage"] == "staged" || package["pending"]["stage"] == "trial"),
    ("trial", |package| package["pending"]["stage"] == "trial"),
    ("probation", |package| {
        package["pending"]["stage"] == "trial" && package["pending"]["release"] == package["serves"]
    }),
];

fn release(stack: &Stack, release: u64) {
    let folder = stack.dir.path().join(format!("identity-{release}"));
    let size = MODEL + release as usize * 70_000;
    let probation = "\n[activation]\nprobation-seconds = 1\n";
    versions::identity(&folder, "identity", &format!("{release}.0.0"), size, 6.0, probation);
    release_folder(stack, &folder, release);
}

/// What the agent says of the package, and which release answers.
fn package(stack: &Stack) -> Value {
    let status = stack.agent_status();
    let packages = status["state"]["packages"].as_array().cloned().unwrap_or_default();
    let mut package = packages.into_iter().find(|package| package["name"] == "identity").unwrap_or_default();
    let host = status["host"]["packages"].as_array().cloned().unwrap_or_default();
    if let Some(serving) = host.iter().find(|package| package["state"] == "serving")
        && package.is_object()
    {
        package["serves"] = serving["release"].clone();
    }
    package
}

fn full(stack: &Stack) -> bool {
    stack.agent_status()["trouble"].to_string().contains("the disk is full")
}

#[test]
fn at_every_step_of_an_update() {
    allowed("at_every_step_of_an_update", || {
        let small = Small::mount(SIZE).unwrap();
        let mut stack = Stack::without_agent();
        small.link(&stack.dir.path().join("agent"));
        stack.start_agent();
        release(&stack, 1);
        deploy(&stack, "identity", 1);
        stack.wait_committed("identity", 1);
        let (agent, host) = (stack.agent().id(), stack.host_id());
        let mut noticed = 0;
        for (round, (name, moment)) in (2..).zip(MOMENTS) {
            release(&stack, round);
            let url = format!("{}/v2/models/identity/infer", stack.inference());
            let asking = Asking::start(url, INPUT, Duration::from_millis(20));
            if name == "nothing" {
                small.fill();
            }
            deploy(&stack, "identity", round);
            wait::until(name, || match package(&stack) {
                package if moment(&package) || package["committed"]["release"] == round => Ok(()),
                other => Err(other),
            });
            if name != "nothing" {
                small.fill();
            }
            // Either it says that the disk is full, or it needed nothing any more.
            wait::until("word of it", || {
                let committed = package(&stack)["committed"]["release"] == round;
                if full(&stack) || committed { Ok(()) } else { Err(stack.agent_status()) }
            });
            noticed += usize::from(full(&stack));
            small.empty();
            stack.wait_committed("identity", round);
            wait::until("an end of the trouble", || if full(&stack) { Err(()) } else { Ok(()) });
            let failed: Vec<_> = asking.stop().into_iter().filter(|asked| asked.answer.is_err()).collect();
            assert!(failed.is_empty(), "{name}: {failed:?}");
        }
        assert_eq!((stack.agent().id(), stack.host_id()), (agent, host), "nothing was restarted");
        assert!(stack.agent().runs());
        println!("full disk: {} moments, noticed at {noticed}", MOMENTS.len());
        assert!(noticed >= 3, "noticed {noticed} times only");
        let target = stack.target();
        assert!(target["events"].as_array().unwrap().iter().any(|e| e["kind"] == "disk-full"), "{target}");
    });
}

#[test]
fn at_a_start() {
    allowed("at_a_start", || {
        let small = Small::mount(SIZE).unwrap();
        let mut stack = Stack::without_agent();
        small.link(&stack.dir.path().join("agent"));
        stack.start_agent();
        release(&stack, 1);
        release(&stack, 2);
        deploy(&stack, "identity", 1);
        stack.wait_committed("identity", 1);

        // Full, with nothing of either left: as after a power cut.
        small.fill();
        stack.agent().kill();
        stack.kill_host();
        stack.start_agent();
        let answers = |stack: &Stack| {
            wait::until("an answer", || match stack.post("/v2/models/identity/infer", INPUT) {
                Ok((200, _)) => Ok(()),
                other => Err(other),
            });
        };
        answers(&stack);
        deploy(&stack, "identity", 2);
        wait::until("word of it", || if full(&stack) { Ok(()) } else { Err(stack.agent_status()) });
        answers(&stack);
        small.empty();
        stack.wait_committed("identity", 2);
        // Which host it is could not be written down at its start, and is by now.
        wait::until("word of the host", || {
            let (noted, runs) = (stack.host_id(), stack.agent_status()["host"]["pid"].as_u64());
            if noted.map(u64::from) == runs && runs.is_some() { Ok(()) } else { Err((noted, runs)) }
        });

        // Read-only, and writable again: the agent that was started on it has waited.
        stack.agent().kill();
        stack.kill_host();
        wait::until("a mount that nobody holds", || small.remount("ro"));
        stack.start_agent();
        wait::until("word of it", || {
            let log = stack.agent().log();
            let waits = log.contains("Read-only file system") && log.contains("waiting for the disk");
            if waits { Ok(()) } else { Err(log) }
        });
        assert!(stack.agent().runs(), "it waits");
        small.remount("rw").unwrap();
        answers(&stack);
        stack.wait_committed("identity", 2);
    });
}
