//! What the tests of the registry need: its real binary, keys, packages, and a device.
//!
//! Everything is in a temporary directory, on free loopback ports, and ends with the test.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)]

pub mod device;
pub mod packages;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use selvedge_signing::keyring;
use serde_json::{Value, json};

/// Longest time that anything may take; nothing asserts speed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed when the test ends.
pub struct Running {
    child: Child,
}

impl Running {
    pub fn start(arguments: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_selvedge-registry"))
            .args(arguments)
            .env("SELVEDGE_LOG", "debug,mqtt5=info,sqlx=info,hyper=info")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Any program that is there.
    pub fn program(program: &str, arguments: &[&str]) -> Self {
        let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{program} must be installed: {error}"));
        Self { child }
    }

    /// SIGTERM, then wait; the exit must be clean.
    pub fn stop(mut self) {
        let kill = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(kill.success());
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(start.elapsed() < PATIENCE, "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for an exit by itself; gives whether it was a success.
    pub fn exits(mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < PATIENCE, "it does not exit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `ready` gives something.
pub async fn wait_for<T>(what: &str, mut ready: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready().await {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The address in an address file, once it is there.
pub async fn address(file: &Path) -> String {
    wait_for("an address file", async || std::fs::read_to_string(file).ok()).await
}

/// A broker on a free port; started again it keeps the port and the data.
pub struct Broker {
    pub running: Running,
    pub address: String,
    data: PathBuf,
    /// The folder of the authority whose certificates it wants; none: plain text.
    pki: Option<PathBuf>,
}

impl Broker {
    pub async fn start(folder: &Path) -> Self {
        Self::listen(folder.join("broker"), None, "127.0.0.1:0").await
    }

    /// One that wants certificates of the authority of the registry in this folder.
    pub async fn certified(folder: &Path) -> Self {
        Self::listen(folder.join("broker"), Some(folder.join("registry/pki")), "127.0.0.1:0").await
    }

    async fn listen(data: PathBuf, pki: Option<PathBuf>, listen: &str) -> Self {
        let file = data.with_extension("address");
        let _ = std::fs::remove_file(&file);
        let mut arguments = vec!["broker"];
        match &pki {
            Some(pki) => arguments.extend(["--pki", pki.to_str().unwrap()]),
            None => arguments.push("--anonymous"),
        }
        arguments.extend([
            "--listen",
            listen,
            "--data",
            data.to_str().unwrap(),
            "--address-file",
            file.to_str().unwrap(),
        ]);
        let running = Running::start(&arguments);
        let address = address(&file).await;
        Self { running, address, data, pki }
    }

    /// Debian's Mosquitto with its defaults, but for a listener and that anybody may speak.
    pub async fn mosquitto(folder: &Path) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = folder.join("mosquitto.conf");
        std::fs::write(&config, format!("listener {port} 127.0.0.1\nallow_anonymous true\n")).unwrap();
        let running = Running::program("mosquitto", &["-c", config.to_str().unwrap()]);
        let address = format!("127.0.0.1:{port}");
        wait_for("Mosquitto", async || std::net::TcpStream::connect(&address).ok()).await;
        Self { running, address, data: config, pki: None }
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.pki.is_some() { "mqtts" } else { "mqtt" }, self.address)
    }

    /// Stop it with `end` and start it again at the same address.
    pub async fn again(self, end: impl FnOnce(Running)) -> Self {
        let Self { running, address, data, pki } = self;
        end(running);
        Self::listen(data, pki, &address).await
    }
}

/// A registry with its broker and keys.
pub struct Registry {
    pub folder: tempfile::TempDir,
    pub broker: Broker,
    pub running: Option<Running>,
    pub url: String,
    pub token: String,
    /// More arguments of the registry.
    pub arguments: Vec<String>,
    client: reqwest::Client,
}

impl Registry {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start(folder.path()).await;
        Self::over(folder, broker).await
    }

    /// With a broker that wants certificates.
    pub async fn start_certified() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::certified(folder.path()).await;
        Self::over(folder, broker).await
    }

    pub async fn start_over_mosquitto() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::mosquitto(folder.path()).await;
        Self::over(folder, broker).await
    }

    async fn over(folder: tempfile::TempDir, broker: Broker) -> Self {
        keyring::init(&folder.path().join("keys"), jiff::Timestamp::now()).unwrap();
        let mut registry = Self {
            folder,
            broker,
            running: None,
            url: String::new(),
            token: String::new(),
            arguments: Vec::new(),
            client: reqwest::Client::new(),
        };
        registry.run().await;
        registry
    }

    /// Start the registry's process (again).
    pub async fn run(&mut self) {
        let file = self.path("registry.address");
        let _ = std::fs::remove_file(&file);
        let (data, keys) = (self.path("registry"), self.path("keys"));
        let (online, roots, broker) = (keys.join("online"), keys.join("roots"), self.broker.url());
        let mut arguments = vec![
            "serve",
            "--data",
            data.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
            "--broker",
            &broker,
            "--online-keys",
            online.to_str().unwrap(),
            "--roots",
            roots.to_str().unwrap(),
            "--address-file",
            file.to_str().unwrap(),
        ];
        arguments.extend(self.arguments.iter().map(String::as_str));
        let running = Running::start(&arguments);
        self.url = format!("http://{}", address(&file).await);
        self.token = std::fs::read_to_string(data.join("token")).unwrap().trim().to_owned();
        self.running = Some(running);
    }

    pub fn stop(&mut self) {
        self.running.take().unwrap().stop();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> (StatusCode, Value) {
        let response = request.send().await.unwrap();
        let status = response.status();
        let bytes = response.bytes().await.unwrap();
        if bytes.is_empty() {
            return (status, Value::Null);
        }
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        if status.is_client_error() || status.is_server_error() {
            let fields = value.as_object().unwrap();
            assert_eq!(fields.len(), 2, "{value}");
            assert!(fields["error"].is_string() && fields["reason"].is_string(), "{value}");
        }
        (status, value)
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// POST that must be refused with this status and reason.
    pub async fn refused(&self, path: &str, body: Value, status: u16, reason: &str) {
        let (got, value) = self.post(path, body).await;
        assert_eq!((got.as_u16(), value["reason"].as_str().unwrap()), (status, reason), "{value}");
    }

    /// Make a target; gives its enrolment file.
    pub async fn add_target(&self, name: &str) -> Value {
        let (status, value) = self.post("/v1/workspaces/default/targets", json!({"name": name})).await;
        assert_eq!(status, 201, "{value}");
        value["enrolment"].clone()
    }

    pub async fn target(&self, name: &str) -> Value {
        let (status, value) = self.get(&format!("/v1/workspaces/default/targets/{name}")).await;
        assert_eq!(status, 200, "{value}");
        value
    }

    pub async fn deploy(&self, package: &str, target: &str) -> Value {
        let body = json!({"package": package, "target": target});
        let (status, value) = self.post("/v1/workspaces/default/deployments", body).await;
        assert_eq!(status, 201, "{value}");
        value
    }
}
