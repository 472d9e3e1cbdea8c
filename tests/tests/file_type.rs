//! The example's module against the Python package whose model it runs: the same final answer for
//! every file of a corpus of empty, short, odd and ordinary files, asked through a real host.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use selvedge_control::{Client, Load, PackageRef};
use selvedge_package::bundle::Builder;
use selvedge_package::draft::Draft;
use selvedge_package::{Digest, FilePath};
use selvedge_tests::process::Process;
use selvedge_tests::programs::{program, root, set_up};
use selvedge_tests::wait;
use serde_json::Value;

/// Catches a hang; nothing here asserts speed.
const HUNG: Duration = Duration::from_secs(120);
/// Most by which a score may differ from the Python package's.
const TOLERANCE: f64 = 1e-4;

/// Labels and scores by file name, as the Python package gives them.
type Answers = BTreeMap<String, (String, f64)>;

#[tokio::test]
async fn answers_as_the_python_package_does() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus");
    let expected = corpus_in(&corpus);
    let labels = expected.values().map(|(label, _)| label).collect::<std::collections::BTreeSet<_>>();
    assert!(expected.len() >= 40, "only {} files", expected.len());
    assert!(labels.len() >= 15, "only {labels:?}");

    let host = Host::start(dir.path()).await;
    let mut wrong = Vec::new();
    for (name, (label, score)) in &expected {
        let (status, answer) = host.ask_raw(fs::read(corpus.join(name)).unwrap()).await;
        assert_eq!(status, 200, "{name}: {answer}");
        let (found_label, found_score) = read(&answer);
        if found_label != *label || (found_score - score).abs() > TOLERANCE {
            wrong.push(format!("{name}: {label} {score} expected, {found_label} {found_score} answered"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.len(), wrong.join("\n"));
    println!("{} files of {} types", expected.len(), labels.len());
}

#[tokio::test]
async fn refuses_what_is_not_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(dir.path()).await;
    for request in [
        r#"{"inputs":[]}"#,
        r#"{"inputs":[{"name":"contents","datatype":"BYTES","shape":[1],"data":["a"]}]}"#,
        r#"{"inputs":[{"name":"content","datatype":"BYTES","shape":[2],"data":["a","b"]}]}"#,
        r#"{"inputs":[{"name":"content","datatype":"UINT8","shape":[1],"data":[1]}]}"#,
    ] {
        let (status, answer) = host.post("infer", request.as_bytes().to_vec()).await;
        assert_eq!(status, 400, "{request}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    let (status, answer) = host.ask_raw(b"%PDF-1.4 is enough to answer something".to_vec()).await;
    assert_eq!(status, 200, "{answer}");
}

/// A host that serves the example.
struct Host {
    _process: Process,
    url: String,
}

impl Host {
    async fn start(dir: &Path) -> Self {
        let package = dir.join("package");
        let digest = lay_out(&package);
        let socket = dir.join("control.sock");
        let mut command = Command::new(program("selvedge-host"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--control"]).arg(&socket);
        command.arg("--data").arg(dir.join("host"));
        let process = Process::start("host", &mut command, &dir.join("host.log"));
        // The file is there a moment before anybody listens on it.
        wait::until("the control socket", || std::os::unix::net::UnixStream::connect(&socket));

        let client = Client::new(&socket);
        let package_ref = PackageRef { name: "file-type".parse().unwrap(), digest };
        let load = Load {
            package: package_ref.clone(),
            directory: package,
            settings: BTreeMap::new(),
            purpose: Default::default(),
            patience_ms: 0,
        };
        let loaded = client.load(&load, HUNG).await.unwrap();
        assert!(loaded.accepted(), "{:?}", loaded.cases);
        let status = client.activate(&package_ref, HUNG).await.unwrap();
        Self { _process: process, url: format!("http://{}/v2/models/file-type", status.http) }
    }

    /// The whole body is the file.
    async fn ask_raw(&self, body: Vec<u8>) -> (u16, Value) {
        self.post("raw", body).await
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> (u16, Value) {
        let request = reqwest::Client::new().post(format!("{}/{path}", self.url)).timeout(HUNG);
        let response = request.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap())
    }
}

/// The example's package as the agent lays one out for a host; its digest.
fn lay_out(package: &Path) -> Digest {
    let example = set_up("examples/file-type");
    let text = fs::read_to_string(example.join("selvedge.toml")).unwrap();
    let manifest = Draft::from_toml(&text).unwrap().finish().unwrap();
    let mut builder = Builder::new(manifest.clone());
    let models = manifest.models.iter().map(|model| &model.file);
    let files =
        models.chain(&manifest.module.component).chain(&manifest.files).chain(&manifest.acceptance.cases);
    for file in files {
        let bytes = fs::read(example.join(file.to_string())).unwrap();
        place(package, file, &bytes);
        builder.bytes(file.clone(), &bytes).unwrap();
    }
    let built = builder.build().unwrap();
    let config = built.bundle.oci().config.digest;
    let (_, config) = built.blobs.iter().find(|(digest, _)| *digest == config).unwrap();
    fs::write(package.join("manifest.json"), config).unwrap();
    fs::write(package.join("package.json"), &built.manifest).unwrap();
    built.bundle.digest()
}

fn place(package: &Path, file: &FilePath, bytes: &[u8]) {
    let path = package.join(file.to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Makes the corpus and asks the Python package about it.
fn corpus_in(folder: &Path) -> Answers {
    fs::create_dir_all(folder).unwrap();
    let mut python = Command::new(set_up("setup/venv/bin/python"));
    python.arg(root().join("tests/tests/file_type/corpus.py")).arg(folder).arg(root());
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Label and score of an Open Inference Protocol answer.
fn read(answer: &Value) -> (String, f64) {
    let outputs = answer["outputs"].as_array().unwrap();
    let data = |name: &str| {
        let output = outputs.iter().find(|output| output["name"] == name);
        output.unwrap_or_else(|| panic!("no {name} in {answer}"))["data"][0].clone()
    };
    (data("label").as_str().unwrap().to_owned(), data("score").as_f64().unwrap())
}
