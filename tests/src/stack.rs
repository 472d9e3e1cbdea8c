//! Broker, registry, agent and host, each its own process, on free loopback ports.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use selvedge_control::{Client, ClientError, HostStatus, PackageState};
use serde_json::Value;
use tempfile::TempDir;

use crate::broker::Broker;
use crate::command::Selvedge;
use crate::ports::free_address;
use crate::process::{Process, runs, send};
use crate::programs::program;
use crate::wait;

/// Name of the device of every stack.
pub const DEVICE: &str = "edge-1";

/// The whole of it. Dropping it ends every process, the host too.
pub struct Stack {
    /// Where everything is kept.
    pub dir: TempDir,
    /// The broker.
    pub broker: Option<Process>,
    broker_kind: Broker,
    /// The registry.
    pub registry: Option<Process>,
    /// The agent.
    pub agent: Option<Process>,
    broker_address: String,
    registry_address: String,
    /// Where the agent finds its broker: the broker itself, or something in between.
    pub agents_broker: String,
    /// Where the registry finds its broker: the broker itself, or something in between.
    pub registrys_broker: String,
    /// More arguments of the registry, from its next start on.
    pub registry_arguments: Vec<String>,
    /// More arguments of the agent, from its next start on.
    pub agent_arguments: Vec<String>,
    /// Words that start the agent elsewhere, such as in another network namespace; none: here.
    pub agent_within: Vec<String>,
    inference_address: String,
}

impl Stack {
    /// Keys, broker, registry and the enrolment of [`DEVICE`]; the agent is not started yet.
    pub fn without_agent() -> Self {
        Self::without_agent_over(Broker::EmbeddedTls)
    }

    /// As [`Stack::without_agent`], over another broker.
    pub fn without_agent_over(broker: Broker) -> Self {
        Self::without_agent_at(broker, &free_address())
    }

    /// The same, with the broker at an address of this machine.
    pub fn without_agent_at(broker: Broker, address: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let mut stack = Self {
            dir,
            broker: None,
            broker_kind: broker,
            registry: None,
            agent: None,
            broker_address: address.to_owned(),
            registry_address: String::new(),
            agents_broker: address.to_owned(),
            registrys_broker: address.to_owned(),
            registry_arguments: Vec::new(),
            agent_arguments: Vec::new(),
            agent_within: Vec::new(),
            inference_address: free_address(),
        };
        Selvedge::new().run(&["keys", "init", &stack.path("keys")]);
        stack.start_broker();
        stack.start_registry();
        stack.selvedge().run(&["target", "enrol", DEVICE, "--out", &stack.path("enrolment.json")]);
        stack
    }

    /// All of it, with the agent connected.
    pub fn start() -> Self {
        let mut stack = Self::without_agent();
        stack.start_agent();
        stack
    }

    /// All of it over another broker, with the agent connected.
    pub fn start_over(broker: Broker) -> Self {
        let mut stack = Self::without_agent_over(broker);
        stack.start_agent();
        stack
    }

    /// A path below the stack's directory, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The `selvedge` command with this registry and its token.
    pub fn selvedge(&self) -> Selvedge {
        Selvedge::new()
            .env("SELVEDGE_REGISTRY", &format!("http://{}", self.registry_address))
            .env("SELVEDGE_TOKEN_FILE", &self.path("registry/token"))
    }

    /// Starts the broker, on the address that it had before, and waits until it listens.
    pub fn start_broker(&mut self) {
        self.broker = Some(self.broker_kind.start(&self.broker_address, self.dir.path()));
        wait::until("the broker to listen", || TcpStream::connect(&self.broker_address));
    }

    /// The broker moves to another address, and the registry with it; agents learn of it when they are
    /// started anew.
    pub fn move_broker(&mut self) {
        self.registry = None;
        self.broker = None;
        self.broker_address = free_address();
        self.start_broker();
        self.agents_broker = self.broker_address.clone();
        self.registrys_broker = self.broker_address.clone();
        self.start_registry();
    }

    /// Starts the registry, on the address that it had before.
    pub fn start_registry(&mut self) {
        let address = if self.registry_address.is_empty() { "127.0.0.1:0" } else { &self.registry_address };
        let file = self.dir.path().join("registry.address");
        let _ = std::fs::remove_file(&file);
        let mut command = Command::new(program("selvedge-registry"));
        command
            .args(["serve", "--listen", address, "--data", &self.path("registry")])
            .args(["--broker", &self.broker_kind.url(&self.registrys_broker)])
            .args([
                "--online-keys",
                &self.path("keys/online"),
                "--roots",
                &self.path("keys/roots"),
                "--address-file",
            ])
            .arg(&file)
            .args(&self.registry_arguments);
        self.registry = Some(Process::start("registry", &mut command, &self.dir.path().join("registry.log")));
        self.registry_address = address_in(&file);
    }

    /// Starts the agent; it starts, or adopts, its host.
    pub fn start_agent(&mut self) {
        let enrolment = self.dir.path().join("enrolment.json");
        let text = std::fs::read_to_string(&enrolment).expect("the device is enrolled");
        let mut value: Value = serde_json::from_str(&text).expect("an enrolment is JSON");
        value["broker"] = self.broker_kind.url(&self.agents_broker).into();
        std::fs::write(&enrolment, value.to_string()).expect("the enrolment can be written");
        let agent = program("selvedge-agent");
        let mut words = self.agent_within.iter().map(AsRef::as_ref).chain([agent.as_os_str()]);
        let mut command = Command::new(words.next().expect("the agent's path is one"));
        command
            .args(words)
            .args(["run", "--data", &self.path("agent"), "--http", &self.inference_address, "--enrolment"])
            .arg(&enrolment)
            .arg("--host-binary")
            .arg(program("selvedge-host"))
            .args(&self.agent_arguments);
        self.agent = Some(Process::start("agent", &mut command, &self.dir.path().join("agent.log")));
    }

    /// The running agent.
    pub fn agent(&mut self) -> &mut Process {
        self.agent.as_mut().expect("the agent was started")
    }

    /// Where the broker listens.
    pub fn broker_address(&self) -> &str {
        &self.broker_address
    }

    /// The broker's URL.
    pub fn broker_url(&self) -> String {
        self.broker_kind.url(&self.broker_address)
    }

    /// Makes known to the broker whom the registry has revoked.
    pub fn publish_revocations(&self) {
        let broker = self.broker.as_ref().expect("the broker was started");
        self.broker_kind.publish_revocations(broker, self.dir.path());
    }

    /// Where the device answers.
    pub fn inference(&self) -> String {
        format!("http://{}", self.inference_address)
    }

    /// The target as the registry sees it.
    pub fn target(&self) -> Value {
        self.selvedge().json(&["targets", DEVICE])
    }

    /// What the agent says of itself on its own socket; null while it does not answer.
    pub fn agent_status(&self) -> Value {
        agent_status(&self.dir.path().join("agent/run/agent.sock")).unwrap_or_default()
    }

    /// What the host says of itself on its control socket.
    pub fn host_status(&self) -> Result<HostStatus, ClientError> {
        let client = Client::new(self.dir.path().join("agent/run/control.sock"));
        block_on(client.status(wait::HUNG))
    }

    /// Process id of the host that the agent has noted, if one was ever started.
    pub fn host_id(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.dir.path().join("agent/run/host.json")).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        value["pid"].as_u64().and_then(|id| u32::try_from(id).ok())
    }

    /// SIGKILLs the host, if one runs.
    pub fn kill_host(&self) {
        if let Some(id) = self.host_id() {
            send(id, Signal::KILL);
        }
    }

    /// GETs a path of the device; status and body.
    pub fn get(&self, path: &str) -> Result<(u16, Value), String> {
        let url = format!("{}{path}", self.inference());
        block_on(async {
            let response = client().get(&url).send().await.map_err(|error| format!("{error:?}"))?;
            answer(response).await
        })
    }

    /// POSTs a body to a path of the device; status and body.
    pub fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Result<(u16, Value), String> {
        let url = format!("{}{path}", self.inference());
        let body = body.into();
        block_on(async {
            let request = client().post(&url).body(body);
            answer(request.send().await.map_err(|error| format!("{error:?}"))?).await
        })
    }

    /// Waits until the device answers for `model` at `version`.
    pub fn wait_ready(&self, model: &str, version: &str) {
        wait::until(&format!("{model} {version} to answer"), || {
            match self.get(&format!("/v2/models/{model}/versions/{version}/ready")) {
                Ok((200, _)) => Ok(()),
                other => Err(other),
            }
        });
    }

    /// Waits until the registry has heard that `release` of `package` is committed and served.
    pub fn wait_committed(&self, package: &str, release: u64) {
        wait::until(&format!("{package} r{release} to be reported"), || {
            let target = self.target();
            let found = reported(&target, package)
                .is_some_and(|report| report["committed"]["release"] == release && report["serving"] == true);
            if found { Ok(()) } else { Err(target["reported"].clone()) }
        });
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The agent first, or it would start the host again.
        self.agent = None;
        if let Some(id) = self.host_id() {
            send(id, Signal::KILL);
            wait::until("the host to end", || if runs(id) { Err(id) } else { Ok(()) });
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("agent/host.log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("--- host ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// A package's part of a target's report.
pub fn reported<'a>(target: &'a Value, package: &str) -> Option<&'a Value> {
    target["reported"]["packages"].as_array()?.iter().find(|report| report["name"] == package)
}

/// The word that the control socket uses for a routed package.
pub const SERVING: PackageState = PackageState::Serving;

/// What an agent says of itself on its socket.
pub fn agent_status(socket: &Path) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(wait::HUNG))?;
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}

fn address_in(file: &Path) -> String {
    wait::until(&format!("{}", PathBuf::from(file).display()), || match std::fs::read_to_string(file) {
        Ok(text) if text.contains(':') => Ok(text.trim().to_owned()),
        other => Err(other),
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(future)
}

/// One that does not wait for ever: what hangs is to be seen.
fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(wait::HUNG / 4).build().expect("a client can be made")
}

async fn answer(response: reqwest::Response) -> Result<(u16, Value), String> {
    let status = response.status().as_u16();
    let body = response.bytes().await.map_err(|error| error.to_string())?;
    let value = serde_json::from_slice(&body).map_err(|error| {
        format!("{status} with a body that is no JSON ({error}): {:?}", String::from_utf8_lossy(&body))
    })?;
    Ok((status, value))
}
