//! The kernel really kills the host for want of memory while a release is on probation: the release is taken
//! back and reported, and the one before answers.
//!
//! It needs a memory control group of its own, which not every machine lets anybody have, and so is no test
//! but a program: `cargo xtask test memory-kill`. What the agent makes of the kernel's count is tested everywhere, with
//! the count played (`agent/tests/driver`).

#![allow(clippy::unwrap_used)]

use selvedge_tests::cgroup::Cgroup;
use selvedge_tests::packages::{deploy, release_folder};
use selvedge_tests::stack::{Stack, reported};
use selvedge_tests::versions::{self, BEHAVE};
use selvedge_tests::wait;

const PATH: &str = "/v2/models/runner/infer";
/// Two matrices of 8000 × 8000 × 8 bytes.
const GREEDY: &str = r#"{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[8000]}]}"#;
/// Enough for agent, host and two models, and for neither matrix.
const LIMIT: u64 = 300 << 20;

fn main() {
    let group = Cgroup::limited(LIMIT).unwrap();
    let mut stack = Stack::without_agent();
    stack.agent_within = group.within();
    stack.start_agent();
    for release in [1, 2] {
        let folder = stack.dir.path().join(format!("runner-{release}"));
        let rules = "\n[activation]\nprobation-seconds = 604800\n";
        versions::runaway_with(
            &folder,
            "runner",
            &format!("{release}.0.0"),
            2,
            if release == 2 { rules } else { "" },
        );
        // The deadline must not be what ends it.
        let manifest = folder.join("selvedge.toml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(&manifest, text.replace("deadline-ms = 300", "deadline-ms = 60000")).unwrap();
        release_folder(&stack, &folder, release);
    }
    deploy(&stack, "runner", 1);
    stack.wait_committed("runner", 1);
    deploy(&stack, "runner", 2);
    wait::until("release 2 to answer on probation", || match stack.post(PATH, BEHAVE) {
        Ok((200, answer)) if answer["model_version"] == "2.0.0" => Ok(()),
        other => Err(other),
    });
    let agent = stack.agent().id();
    assert_eq!(group.kills(), 0);

    let cut_short = stack.post(PATH, GREEDY);
    assert!(cut_short.is_err(), "{cut_short:?}");
    wait::until("release 1 to answer again", || match stack.post(PATH, BEHAVE) {
        Ok((200, answer)) if answer["model_version"] == "1.0.0" => Ok(()),
        other => Err(other),
    });
    assert_eq!(group.kills(), 1, "the host, once");
    assert_eq!(stack.agent().id(), agent);
    assert!(stack.agent().runs(), "the agent is spared");
    let failure = wait::until("the failure to be reported", || {
        let target = stack.target();
        match reported(&target, "runner") {
            Some(report) if report["failure"]["release"] == 2 => Ok(report["failure"].clone()),
            other => Err(other.cloned()),
        }
    });
    println!("memory kill: {failure}");
    assert_eq!(failure["reason"], "host-died", "{failure}");
}
