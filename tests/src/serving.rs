//! A real host on loopback, and packages of tiny models for it. What goes wrong here fails the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use selvedge_control::client::{Client, ClientError};
use selvedge_control::{HostStatus, Load, Loaded, PackageRef, Purpose};
use selvedge_package::Manifest;
use selvedge_package::bundle::Builder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::onnx_writer;
use crate::programs::{program, set_up};
use crate::{process, wait};

/// Long enough for any answer on a busy machine; reaching it is a failure.
pub const LONG: Duration = Duration::from_secs(120);

/// A tensor of a manifest.
pub type Spec<'a> = (&'a str, &'a str, &'a [i64]);

/// A package on its way into a directory.
pub struct Package {
    manifest: Value,
    files: BTreeMap<String, Vec<u8>>,
}

/// A tensor of a case or request.
pub fn tensor((name, datatype): (&str, &str), shape: &[u64], data: Value) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

impl Package {
    /// A package of one model with one case.
    pub fn new(name: &str, release: u64, model: Vec<u8>, tensors: (&[Spec], &[Spec]), case: Value) -> Self {
        let specs = |tensors: &[Spec]| -> Value {
            let spec =
                |(name, datatype, shape): &Spec| json!({"name": name, "datatype": datatype, "shape": shape});
            tensors.iter().map(spec).collect()
        };
        let manifest = json!({
            "format": 1, "name": name, "version": format!("{release}.0.0"), "release": release,
            "module": {"deadline-ms": 60_000},
            "models": [{"name": "main", "file": "model.onnx"}],
            "inputs": specs(tensors.0), "outputs": specs(tensors.1),
            "acceptance": {"cases": ["case.json"]},
        });
        let files = BTreeMap::from([
            ("model.onnx".to_owned(), model),
            ("case.json".to_owned(), case.to_string().into_bytes()),
        ]);
        Self { manifest, files }
    }

    /// `y = x`, float32 [2, 3].
    pub fn identity(name: &str, release: u64) -> Self {
        let ones = |name| tensor((name, "FP32"), &[2, 3], json!([1, 1, 1, 1, 1, 1]));
        let case = json!({"name": "ones", "inputs": [ones("x")], "outputs": [ones("y")]});
        let model = onnx_writer::identity();
        Self::new(name, release, model, (&[("x", "FP32", &[2, 3])], &[("y", "FP32", &[2, 3])]), case)
    }

    /// Changes a value of the manifest's `module`.
    #[must_use]
    pub fn module(mut self, key: &str, value: Value) -> Self {
        self.manifest["module"][key] = value;
        self
    }

    /// A setting of the manifest's.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.manifest["settings"][key] = value.into();
        self
    }

    /// Lets requests come without an input, or answers without an output: `inputs` or `outputs`, and which.
    #[must_use]
    pub fn optional(mut self, list: &str, at: usize) -> Self {
        self.manifest[list][at]["optional"] = true.into();
        self
    }

    /// Threads that a run of the model takes.
    #[must_use]
    pub fn threads(mut self, count: u32) -> Self {
        self.manifest["models"][0]["intra-op-threads"] = count.into();
        self
    }

    /// Sessions of the model.
    #[must_use]
    pub fn sessions(mut self, count: u32) -> Self {
        self.manifest["models"][0]["sessions"] = count.into();
        self
    }

    /// Changes or adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), bytes.into());
        self
    }

    /// Adds a file and lists it in the manifest.
    #[must_use]
    pub fn listed(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        let mut files = self.manifest["files"].as_array().cloned().unwrap_or_default();
        files.push(path.into());
        self.manifest["files"] = files.into();
        self.file(path, bytes)
    }

    /// Writes the directory that the agent would have made.
    pub fn write(self) -> Written {
        let manifest: Manifest = serde_json::from_value(self.manifest).unwrap();
        let name = manifest.name.clone();
        let mut builder = Builder::new(manifest);
        for (path, bytes) in &self.files {
            builder.bytes(path.parse().unwrap(), bytes).unwrap();
        }
        let built = builder.build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        for (path, bytes) in &self.files {
            std::fs::write(directory.path().join(path), bytes).unwrap();
        }
        std::fs::write(directory.path().join("package.json"), &built.manifest).unwrap();
        std::fs::write(directory.path().join("manifest.json"), &built.blobs[0].1).unwrap();
        Written { directory, package: PackageRef { name, digest: built.bundle.digest() } }
    }
}

/// A package's directory.
pub struct Written {
    /// Removed when this is dropped.
    pub directory: TempDir,
    /// Its name and digest.
    pub package: PackageRef,
}

impl Written {
    /// The message that loads it.
    pub fn load(&self) -> Load {
        Load {
            package: self.package.clone(),
            directory: self.directory.path().to_owned(),
            settings: BTreeMap::new(),
            purpose: Purpose::Trial,
            patience_ms: 0,
        }
    }
}

/// A running host.
pub struct Host {
    child: Child,
    log: PathBuf,
    /// Its data, its socket and its log.
    pub directory: TempDir,
    /// Its control socket.
    pub control: Client,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    client: reqwest::Client,
}

/// The command that serves, with its sockets still to be given.
pub fn serve(directory: &TempDir) -> Command {
    let mut command = Command::new(program("selvedge-host"));
    command
        .arg("serve")
        .arg("--onnxruntime")
        .arg(set_up("setup/onnxruntime/libonnxruntime.so"))
        .arg("--modules")
        .arg(set_up("modules"))
        .arg("--data")
        .arg(directory.path().join("data"))
        .env_remove("LISTEN_FDS");
    command
}

impl Host {
    /// Starts one on a free port and waits until it answers.
    pub async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    /// As [`Self::start`], with its data in a directory that may hold some.
    pub async fn start_in(directory: TempDir) -> Self {
        let socket = directory.path().join("control.sock");
        let mut command = serve(&directory);
        command.args(["--listen", "127.0.0.1:0", "--control"]).arg(&socket);
        let host = Self::watch(directory, Client::new(socket), &mut command).await;
        // Packages are put one by one: what is not here does not exist.
        assert!(host.control.ready(LONG).await.unwrap().ready);
        host
    }

    /// Starts `command` and waits until it answers on the control socket.
    pub async fn watch(directory: TempDir, control: Client, command: &mut Command) -> Self {
        let log = directory.path().join("log");
        let output = File::create(&log).unwrap();
        let errors = output.try_clone().unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
        let status = loop {
            match control.status(Duration::from_secs(5)).await {
                Ok(status) => break status,
                Err(_) => {
                    let ended = child.try_wait().unwrap();
                    assert!(ended.is_none(), "{ended:?}: {}", std::fs::read_to_string(&log).unwrap());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let url = format!("http://{}", status.http);
        Self { child, log, directory, control, url, client: reqwest::Client::new() }
    }

    /// Loads and routes a package.
    pub async fn put(&self, package: &Written) -> Loaded {
        let loaded = self.control.load(&package.load(), LONG).await.unwrap();
        assert!(loaded.accepted(), "{:?}", loaded.first_failure());
        self.control.activate(&package.package, LONG).await.unwrap();
        loaded
    }

    /// The error that loading gives.
    pub async fn refusal(&self, package: &Written) -> selvedge_control::ControlError {
        match self.control.load(&package.load(), LONG).await {
            Err(ClientError::Refused { error, .. }) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// How it stands.
    pub async fn status(&self) -> HostStatus {
        self.control.status(LONG).await.unwrap()
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        read(self.client.get(format!("{}{path}", self.url)).send().await.unwrap()).await
    }

    /// `POST path` with JSON, or with what is meant to be JSON.
    pub async fn post(&self, path: &str, body: impl ToString) -> (u16, Value) {
        let request =
            self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        read(request.body(body.to_string()).send().await.unwrap()).await
    }

    /// `POST path` with JSON; the answer as it stands.
    pub async fn post_text(&self, path: &str, body: String) -> (u16, String) {
        let response = self.client.post(format!("{}{path}", self.url)).body(body).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// `POST path` with bytes.
    pub async fn post_bytes(&self, path: &str, body: Vec<u8>) -> (u16, Value) {
        read(self.client.post(format!("{}{path}", self.url)).body(body).send().await.unwrap()).await
    }

    /// `POST path` with JSON and binary data after it; the JSON of the answer, and what follows that.
    pub async fn post_binary(&self, path: &str, json: String, data: &[u8]) -> (u16, String, Vec<u8>) {
        let length = json.len();
        let request = self
            .client
            .post(format!("{}{path}", self.url))
            .header("inference-header-content-length", length)
            .body([json.as_bytes(), data].concat());
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let length = response.headers().get("inference-header-content-length");
        let length = length.map(|length| length.to_str().unwrap().parse::<usize>().unwrap());
        let body = response.bytes().await.unwrap();
        let (head, tail) = body.split_at(length.unwrap_or(body.len()));
        (status, String::from_utf8(head.to_vec()).unwrap(), tail.to_vec())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        process::send(self.child.id(), signal);
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        wait::until("the host to end", || self.child.try_wait().unwrap().ok_or("it runs"))
    }

    /// Everything that it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- host ---\n{}", self.log());
        }
    }
}

async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{status}: {text}: {error}"));
    (status, value)
}
