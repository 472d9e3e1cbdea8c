//! A broker, a device enrolled offline, and `selvedge push`: no registry anywhere.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use selvedge_tests::broker::Broker;
use selvedge_tests::command::Selvedge;
use selvedge_tests::ports::free_address;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::stack::DEVICE;
use selvedge_tests::{onnx_writer, wait};
use serde_json::Value;

/// Where the keys are encrypted.
const PASSPHRASE: (&str, &str) = ("SELVEDGE_KEY_PASSPHRASE", "correct horse battery");

/// The stage of a story.
pub struct Pushing {
    pub dir: tempfile::TempDir,
    pub broker: Process,
    pub agent: Option<Process>,
    pub address: String,
    kind: Broker,
    inference: String,
}

impl Pushing {
    /// Keys, a broker, and the enrolment of [`DEVICE`], made offline. Where the broker speaks TLS, the
    /// rest is as in production too: a passphrase on the keys, and a certificate for each side.
    pub fn start(kind: Broker) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = free_address();
        let broker = kind.start(&address, dir.path());
        wait::until("the broker to listen", || TcpStream::connect(&address));
        let pushing = Self { dir, broker, agent: None, address, kind, inference: free_address() };
        let keys = pushing.path("keys");
        let encrypt = if kind.is_tls() { &["--encrypt"][..] } else { &[] };
        pushing.selvedge().run(&[&["keys", "init", &keys], encrypt].concat());
        pushing.enrol(DEVICE, "enrolment.json");
        pushing
    }

    /// Kills the broker and starts it again where it was.
    pub fn restart_broker(&mut self) {
        self.broker.kill();
        self.broker = self.kind.start(&self.address, self.dir.path());
        wait::until("the broker to listen", || TcpStream::connect(&self.address));
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// `selvedge` without any registry.
    pub fn selvedge(&self) -> Selvedge {
        let all = Selvedge::new().env("SELVEDGE_REGISTRY", "http://127.0.0.1:1");
        if self.kind.is_tls() { all.env(PASSPHRASE.0, PASSPHRASE.1) } else { all }
    }

    pub fn broker_url(&self) -> String {
        self.kind.url(&self.address)
    }

    /// Whom a push believes, and who it is to a broker with certificates: docs/push.md.
    fn certificates(&self) -> Vec<String> {
        let pki = |name: &str| self.path(&format!("registry/pki/{name}"));
        if !self.kind.is_tls() {
            return Vec::new();
        }
        let all = ["--broker-ca", &pki("ca.pem"), "--broker-cert", &pki("registry.pem"), "--broker-key"];
        all.iter().map(|&one| one.to_owned()).chain([pki("registry.key")]).collect()
    }

    /// What the enrolment of a device needs for such a broker.
    fn device_certificates(&self, name: &str) -> Vec<String> {
        if !self.kind.is_tls() {
            return Vec::new();
        }
        let out = self.path("certificates");
        let made = Command::new(program("selvedge-registry"))
            .args(["pki", "device", name, "--data", &self.path("registry"), "--out", &out])
            .status();
        assert!(made.unwrap().success());
        let ca = self.path("registry/pki/ca.pem");
        ["--broker-ca", &ca, "--device-cert", &format!("{out}/{name}.pem"), "--device-tls-key"]
            .iter()
            .map(|&one| one.to_owned())
            .chain([format!("{out}/{name}.key")])
            .collect()
    }

    /// Enrols a device offline; its file.
    pub fn enrol(&self, name: &str, file: &str) -> String {
        let out = self.path(file);
        let keys = self.path("keys");
        let broker = self.broker_url();
        let certificates = self.device_certificates(name);
        let certificates: Vec<&str> = certificates.iter().map(String::as_str).collect();
        let line =
            ["target", "enrol", name, "--offline", "--keys", &keys, "--broker", &broker, "--out", &out];
        self.selvedge().run(&[&line[..], &certificates].concat());
        out
    }

    /// Starts the agent of [`DEVICE`].
    pub fn start_agent(&mut self) {
        let mut command = Command::new(program("selvedge-agent"));
        command
            .args(["run", "--data", &self.path("agent"), "--http", &self.inference])
            .args(["--enrolment", &self.path("enrolment.json")])
            .arg("--host-binary")
            .arg(program("selvedge-host"));
        self.agent = Some(Process::start("agent", &mut command, &self.dir.path().join("agent.log")));
    }

    /// Packages an identity model with so many bytes of padding.
    pub fn package(&self, name: &str, padding: usize, version: &str, release: u64) -> String {
        let model = self.path(&format!("{name}-{version}.onnx"));
        std::fs::write(&model, onnx_writer::identity_padded(padding)).unwrap();
        let out = self.path(&format!("{name}-{version}-r{release}.pkg"));
        let release = release.to_string();
        self.selvedge().run(&[
            "package",
            &model,
            "--name",
            name,
            "--version",
            version,
            "--release",
            &release,
            "--out",
            &out,
        ]);
        out
    }

    fn arguments<'a>(&self, package: &'a str, more: &[&'a str]) -> Vec<String> {
        let mut all: Vec<String> =
            ["push", package, "--keys", &self.path("keys"), "--broker", &self.broker_url()]
                .map(str::to_owned)
                .to_vec();
        if !more.contains(&"--target") {
            all.extend(["--target", DEVICE].map(str::to_owned));
        }
        if !more.contains(&"--timeout") {
            all.extend(["--timeout", "120"].map(str::to_owned));
        }
        if !more.contains(&"--broker-ca") {
            all.extend(self.certificates());
        }
        all.extend(more.iter().map(|&more| more.to_owned()));
        all
    }

    /// Pushes; what it printed as JSON.
    pub fn push_json(&self, package: &str, more: &[&str]) -> Value {
        let all = self.arguments(package, more);
        self.selvedge().json(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Pushes where that must fail; exit code and what was said.
    pub fn push_refused(&self, package: &str, more: &[&str]) -> (i32, String) {
        let all = self.arguments(package, more);
        self.selvedge().refused(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Pushes, whatever comes of it.
    pub fn push(&self, package: &str, more: &[&str]) -> Output {
        let all = self.arguments(package, more);
        self.selvedge().output(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a push and does not wait for it.
    pub fn push_started(&self, package: &str, more: &[&str]) -> Process {
        let mut command = Command::new(program("selvedge"));
        command.args(self.arguments(package, more)).env_remove("SELVEDGE_REGISTRY");
        command.env(PASSPHRASE.0, PASSPHRASE.1);
        Process::start("push", &mut command, &self.dir.path().join("push.log"))
    }

    /// POSTs to the device; status and body.
    pub fn post(&self, path: &str, body: &str) -> Result<(u16, Value), String> {
        let url = format!("http://{}{path}", self.inference);
        let body = body.to_owned();
        block_on(async {
            let response = reqwest::Client::new().post(&url).body(body).send().await;
            let response = response.map_err(|error| format!("{error:?}"))?;
            let status = response.status().as_u16();
            let bytes = response.bytes().await.map_err(|error| error.to_string())?;
            Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
        })
    }

    /// Waits until the device has no such model any more.
    pub fn wait_gone(&self, model: &str) {
        wait::until(&format!("{model} to be gone"), || {
            match self.post(&format!("/v2/models/{model}/infer"), "{}") {
                Ok((404, _)) => Ok(()),
                other => Err(other),
            }
        });
    }

    /// The memory of the pushes to a device.
    pub fn memory(&self, device: &str) -> Value {
        let path = self.dir.path().join(format!("keys/push/devices/{device}.json"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }
}

impl Drop for Pushing {
    fn drop(&mut self) {
        self.agent = None;
        if let Some(id) = host_id(self.dir.path()) {
            send(id, Signal::KILL);
            wait::until("the host to end", || if runs(id) { Err(id) } else { Ok(()) });
        }
    }
}

fn host_id(dir: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(dir.join("agent/run/host.json")).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    value["pid"].as_u64().and_then(|id| u32::try_from(id).ok())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
