//! One device more on a stack: enrolled, with an agent and a host of its own.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use selvedge_tests::packages::{keys, noise};
use selvedge_tests::ports::free_address;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::stack::{Stack, agent_status, reported};
use selvedge_tests::{command::Selvedge, packages, wait};
use serde_json::Value;

/// Longest silence towards the broker, in seconds, and the shortest that an agent takes: a link that is
/// dead one way is noticed soon after.
const KEEP_ALIVE: u32 = 10;

/// Dropping it ends agent and host.
pub struct Device {
    pub name: String,
    pub data: PathBuf,
    agent: Option<Process>,
}

impl Device {
    /// Enrols `name` and starts its agent, with its broker at `broker`.
    pub fn start(stack: &Stack, name: &str, broker: &str) -> Self {
        let file = stack.path(&format!("{name}.json"));
        stack.selvedge().run(&["target", "enrol", name, "--out", &file]);
        let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let scheme = value["broker"].as_str().unwrap().split("://").next().unwrap().to_owned();
        value["broker"] = format!("{scheme}://{broker}").into();
        std::fs::write(&file, value.to_string()).unwrap();
        let data = stack.dir.path().join(name);
        let mut command = Command::new(program("selvedge-agent"));
        command.args(["run", "--http", &free_address(), "--enrolment", &file, "--data"]).arg(&data);
        command.arg("--host-binary").arg(program("selvedge-host"));
        let config = stack.path(&format!("{name}.toml"));
        std::fs::write(&config, format!("keep-alive-seconds = {KEEP_ALIVE}\n")).unwrap();
        command.args(["--config", &config]);
        let agent = Process::start(name, &mut command, &stack.dir.path().join(format!("{name}.log")));
        Self { name: name.to_owned(), data, agent: Some(agent) }
    }

    /// What its agent says of itself.
    pub fn status(&self) -> Value {
        agent_status(&self.data.join("run/agent.sock")).unwrap_or_default()
    }

    /// Whether `release` of `package` is committed and served, as the agent says.
    pub fn has(&self, package: &str, release: u64) -> Result<(), Value> {
        let status = self.status();
        let found = reported(&serde_json::json!({"reported": status["state"]}), package)
            .is_some_and(|report| report["committed"]["release"] == release && report["serving"] == true);
        if found { Ok(()) } else { Err(status["state"]["packages"].clone()) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.agent = None;
        let noted = std::fs::read_to_string(self.data.join("run/host.json")).unwrap_or_default();
        let value: Value = serde_json::from_str(&noted).unwrap_or_default();
        if let Some(id) = value["pid"].as_u64().and_then(|id| u32::try_from(id).ok()) {
            send(id, Signal::KILL);
            wait::until("the host to end", || if runs(id) { Err(id) } else { Ok(()) });
        }
    }
}

/// Packages and releases `count` files of up to `largest` bytes, beside a tiny model.
pub fn release_files(stack: &Stack, package: &str, release: u64, count: u64, largest: u64, seed: u64) {
    let folder = stack.dir.path().join(format!("{package}-{release}"));
    let chance = selvedge_tests::link::Chance::new(seed);
    let files: Vec<(String, Vec<u8>)> = (0..count)
        .map(|n| {
            let size = usize::try_from(1 + chance.below(largest)).unwrap();
            (format!("{n:03}.bin"), noise(size, seed ^ (n + 1) << 20))
        })
        .collect();
    packages::identity_with_files(&folder, package, &format!("{release}.0.0"), &files);
    let (text, number) = (folder.display().to_string(), release.to_string());
    let out = format!("{text}.pkg");
    Selvedge::new().run(&["package", &text, "--release", &number, "--out", &out, "--skip-acceptance"]);
    stack.selvedge().run(&["release", &out, "--keys", &keys(stack)]);
}
