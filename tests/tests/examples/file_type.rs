//! The example's module against the Python package whose model it runs: the same final answer for
//! every file of a corpus of empty, short, odd and ordinary files, asked through a real host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use selvedge_tests::examples;
use selvedge_tests::programs::{root, set_up};
use selvedge_tests::serving::Host;
use serde_json::Value;

const RAW: &str = "/v2/models/file-type/raw";
/// Most by which a score may differ from the Python package's.
const TOLERANCE: f64 = 1e-4;

/// Labels and scores by file name, as the Python package gives them.
type Answers = BTreeMap<String, (String, f64)>;

#[tokio::test(flavor = "multi_thread")]
async fn answers_as_the_python_package_does() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus");
    let expected = corpus_in(&corpus);
    let labels = expected.values().map(|(label, _)| label).collect::<std::collections::BTreeSet<_>>();
    assert!(expected.len() >= 40, "only {} files", expected.len());
    assert!(labels.len() >= 15, "only {labels:?}");

    let host = host().await;
    let mut wrong = Vec::new();
    for (name, (label, score)) in &expected {
        let (status, answer) = host.post_bytes(RAW, fs::read(corpus.join(name)).unwrap()).await;
        assert_eq!(status, 200, "{name}: {answer}");
        let (found_label, found_score) = read(&answer);
        if found_label != *label || (found_score - score).abs() > TOLERANCE {
            wrong.push(format!("{name}: {label} {score} expected, {found_label} {found_score} answered"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.len(), wrong.join("\n"));
    println!("{} files of {} types", expected.len(), labels.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_what_is_not_one_file() {
    let host = host().await;
    for request in [
        r#"{"inputs":[]}"#,
        r#"{"inputs":[{"name":"contents","datatype":"BYTES","shape":[1],"data":["a"]}]}"#,
        r#"{"inputs":[{"name":"content","datatype":"BYTES","shape":[2],"data":["a","b"]}]}"#,
        r#"{"inputs":[{"name":"content","datatype":"UINT8","shape":[1],"data":[1]}]}"#,
    ] {
        let (status, answer) = host.post("/v2/models/file-type/infer", request).await;
        assert_eq!(status, 400, "{request}: {answer}");
        assert!(answer["error"].is_string(), "{answer}");
    }
    let (status, answer) = host.post_bytes(RAW, b"%PDF-1.4 is enough to answer something".to_vec()).await;
    assert_eq!(status, 200, "{answer}");
}

/// A host that serves the example.
async fn host() -> Host {
    let host = Host::start().await;
    host.put(&examples::package("file-type")).await;
    host
}

/// Makes the corpus and asks the Python package about it.
fn corpus_in(folder: &Path) -> Answers {
    fs::create_dir_all(folder).unwrap();
    let mut python = Command::new(set_up("setup/venv/bin/python"));
    python.arg(root().join("tests/tests/examples/corpus.py")).arg(folder).arg(root());
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
