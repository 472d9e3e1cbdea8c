//! Where the attacks happen: a real agent and host on a model that answers, a plain broker, and the
//! test as registry and as attacker.

use std::path::PathBuf;
use std::process::Command;

use selvedge_package::trust::MetadataBundle;
use selvedge_protocol::envelope::{Body, to_cbor};
use selvedge_protocol::message::{Birth, Want};
use selvedge_protocol::topic::Kind;
use selvedge_tests::broker::Broker;
use selvedge_tests::ports::free_address;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::stack::agent_status;
use selvedge_tests::wait;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::authority::Authority;
use crate::kernel::Kernel;
use crate::registry::Registry;
use crate::world::{Package, World, identity};

/// A request to the model.
pub const INPUT: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}"#;
/// The device.
pub const DEVICE: &str = "edge-1";

/// All of it. Dropping it ends every process.
pub struct Field {
    pub world: World,
    pub registry: Registry,
    pub kernel: Kernel,
    pub agent: Option<Process>,
    pub broker: Option<Process>,
    pub broker_address: String,
    /// The broker's authority, with its key.
    pub authority: Option<Authority>,
    /// Rows that failed.
    pub failed: Vec<String>,
    /// Release 1 of `identity`, which runs.
    pub first: Package,
    pub dir: TempDir,
    http: String,
}

impl Field {
    /// A device on which release 1 of `identity` answers.
    pub fn start() -> Self {
        Self::start_as(World::new(DEVICE), |_| ())
    }

    /// As [`Field::start`], in another world and with another kernel.
    pub fn start_as(world: World, kernel: impl FnOnce(&Kernel)) -> Self {
        Self::bare(world, Broker::Mosquitto(""), kernel).and_start()
    }

    fn and_start(mut self) -> Self {
        self.start_agent();
        self.wait_connected();
        let first = self.first.clone();
        self.world.release(&first);
        self.runs(&[&first]);
        self
    }

    /// As [`Field::start_as`], over a broker with certificates that somebody with the CA's key made.
    pub fn start_certified(world: World, kernel: impl FnOnce(&Kernel)) -> Self {
        Self::bare(world, Broker::MosquittoTls(""), kernel).and_start()
    }

    /// The broker, the registry and an enrolment; no agent yet.
    fn bare(world: World, kind: Broker, kernel: impl FnOnce(&Kernel)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = kind.is_tls().then(|| Authority::new(dir.path()));
        let broker_address = free_address();
        let broker = kind.start(&broker_address, dir.path());
        wait::until("the broker to listen", || std::net::TcpStream::connect(&broker_address));
        let key = world.director.targets_keys[0].clone();
        let tls = authority.as_ref().map(Authority::registry);
        let registry = Registry::start(&kind.url(&broker_address), tls, &world.device, key);
        registry.wait_connected();
        let root = |root: &[u8]| String::from_utf8(root.to_vec()).unwrap();
        let mut enrolment = json!({
            "format": 1, "device": world.device, "kind": "device",
            "broker": kind.url(&broker_address), "token": "the-token",
            "image_root": root(&world.image.roots[0]), "director_root": root(&world.director.roots[0]),
        });
        if let Some(authority) = &authority {
            let credential = authority.certificate(world.device.as_str());
            enrolment["format"] = 2.into();
            enrolment["broker_ca"] = authority.ca().into();
            enrolment["broker_name"] = serde_json::Value::Null;
            enrolment["credential"] = json!({ "certificate": credential.0, "key": credential.1 });
        }
        std::fs::write(dir.path().join("enrolment.json"), enrolment.to_string()).unwrap();
        let its_kernel = Kernel::new(dir.path(), &dir.path().join("agent"));
        kernel(&its_kernel);
        let first = identity("identity", 1, json!({}));
        let mut field = Self {
            world,
            registry,
            kernel: its_kernel,
            agent: None,
            broker: Some(broker),
            broker_address,
            authority,
            failed: Vec::new(),
            first: first.clone(),
            dir,
            http: free_address(),
        };
        field.publish_bytes(&first);
        field
    }

    /// Starts the agent; it starts, or adopts, its host.
    pub fn start_agent(&mut self) {
        let mut command = Command::new(program("selvedge-agent"));
        command
            .args(["run", "--http", &self.http, "--heartbeat", "1", "--data"])
            .arg(self.data())
            .arg("--enrolment")
            .arg(self.dir.path().join("enrolment.json"))
            .arg("--host-binary")
            .arg(program("selvedge-host"))
            .env("SELVEDGE_LOG", "info,selvedge_agent::daemon=debug");
        self.kernel.around(&mut command);
        self.agent = Some(Process::start("agent", &mut command, &self.dir.path().join("agent.log")));
    }

    /// Waits until the device hears what is said to it.
    pub fn wait_connected(&self) {
        self.wait_status("the agent to be connected", |status| status["connected"] == true);
    }

    /// Stops the agent; the host goes on.
    pub fn stop_agent(&mut self) {
        self.agent.take().unwrap().stop();
    }

    /// Stops the agent and starts it again.
    pub fn restart_agent(&mut self) {
        self.stop_agent();
        self.start_agent();
        self.wait_connected();
    }

    /// What the device keeps.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    /// Where the model answers.
    pub fn infer(&self) -> String {
        format!("http://{}/v2/models/identity/infer", self.http)
    }

    /// Lets the device pull a release's bytes.
    pub fn publish_bytes(&mut self, package: &Package) {
        self.registry.shared.lock().unwrap().blobs.extend(package.blobs.iter().cloned());
    }

    /// What the agent says of itself; null while it does not answer.
    pub fn status(&self) -> Value {
        agent_status(&self.data().join("run/agent.sock")).unwrap_or_default()
    }

    /// Waits for a status.
    pub fn wait_status(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        wait::until(what, || match self.status() {
            status if holds(&status) => Ok(status),
            other => Err(other),
        })
    }

    /// The committed release of a package; `None`: none is.
    pub fn committed(&self, package: &str) -> Option<u64> {
        let status = self.status();
        let packages = status["state"]["packages"].as_array()?;
        packages.iter().find(|found| found["name"] == package)?["committed"]["release"].as_u64()
    }

    /// The failure that the device says of a package; null: none.
    pub fn failure(&self, package: &str) -> Value {
        let status = self.status();
        let packages = status["state"]["packages"].as_array().cloned().unwrap_or_default();
        let found = packages.iter().find(|found| found["name"] == package);
        found.map(|found| found["failure"].clone()).unwrap_or_default()
    }

    /// Waits until the device says that a release failed for this reason.
    pub fn fails(&self, package: &str, reason: &str) {
        wait::until(&format!("{package} to fail: {reason}"), || match self.failure(package) {
            failure if failure["reason"] == reason => Ok(()),
            _ => Err(self.status()),
        });
    }

    /// Sends an offer, whoever made it.
    pub fn offer(&mut self, bundle: &MetadataBundle) {
        let bytes = to_cbor(bundle).unwrap();
        self.registry.say(Kind::Want, Body::Want(Want::Inline(bytes)));
    }

    /// The device takes what the honest side offers next, and so everything before it was decided.
    pub fn takes_next(&mut self) {
        let bundle = self.world.next();
        self.takes(&bundle);
    }

    /// The device takes this offer.
    pub fn takes(&mut self, bundle: &MetadataBundle) {
        self.offer(bundle);
        let sequence = self.world.sequence;
        self.wait_status(&format!("sequence {sequence} to be accepted"), |status| {
            status["state"]["desired"] == sequence
        });
    }

    /// The device takes this offer, which is made again and again: a broker that is flooded drops some.
    pub fn takes_in_the_end(&mut self, bundle: &MetadataBundle) {
        let sequence = self.world.sequence;
        wait::until(&format!("sequence {sequence} to be accepted"), || {
            self.offer(bundle);
            std::thread::sleep(std::time::Duration::from_millis(200));
            match self.status() {
                status if status["state"]["desired"] == sequence => Ok(()),
                other => Err(other),
            }
        });
    }

    /// The device takes these releases, and they are committed.
    pub fn runs(&mut self, packages: &[&Package]) {
        packages.iter().for_each(|package| self.publish_bytes(package));
        let bundle = self.world.assign(packages.iter().map(|package| package.assigned()).collect());
        self.takes(&bundle);
        for package in packages {
            let (name, release) = (package.manifest.name.to_string(), package.manifest.release);
            wait::until(&format!("{name} r{release} to be committed"), || match self.committed(&name) {
                Some(committed) if committed == release => Ok(()),
                _ => Err(self.status()),
            });
        }
    }

    /// The attacker offers this and gets nothing: it is refused for a reason that the device names
    /// by one of `words`, the same runs as before, and the next honest offer is taken.
    pub fn refuses(&mut self, bundle: &MetadataBundle, words: &[&str]) {
        let bytes = to_cbor(bundle).unwrap();
        self.refuses_bytes(bytes, words);
    }

    /// As [`Field::refuses`], for bytes that may be no bundle.
    pub fn refuses_bytes(&mut self, bytes: Vec<u8>, words: &[&str]) {
        let (before, mark) = (self.committed("identity"), self.agent_log().len());
        self.registry.say(Kind::Want, Body::Want(Want::Inline(bytes)));
        // The device reports the first refusal of a minute, and logs the others.
        wait::until(&format!("one of {words:?}"), || {
            let refused = self.status()["state"]["refused"].clone();
            let said = format!("{}\n{refused}", &self.agent_log()[mark..]);
            if words.iter().any(|word| said.contains(word)) { Ok(()) } else { Err(said) }
        });
        self.takes_next();
        assert_eq!(self.committed("identity"), before);
    }

    /// What the agent has printed.
    pub fn agent_log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    /// The end of it.
    pub fn agent_log_tail(&self) -> String {
        let log = self.agent_log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Births that were heard, oldest first.
    pub fn births(&self) -> Vec<Birth> {
        let births = self.registry.heard(Kind::Birth).into_iter();
        births
            .filter_map(|said| if let Body::Birth(birth) = said.body { Some(birth) } else { None })
            .collect()
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        // The agent first, or it would start the host again.
        self.agent = None;
        let id = std::fs::read_to_string(self.data().join("run/host.json"))
            .ok()
            .and_then(|text| serde_json::from_str::<Value>(&text).ok())
            .and_then(|value| u32::try_from(value["pid"].as_u64()?).ok());
        if let Some(id) = id {
            send(id, rustix::process::Signal::KILL);
            wait::until("the host to end", || if runs(id) { Err(id) } else { Ok(()) });
        }
    }
}
