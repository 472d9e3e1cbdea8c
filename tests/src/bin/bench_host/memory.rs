//! Part `memory`: what a host takes that serves one model of 3 MB, against the least program that opens it
//! with ort and answers once.

use std::process::Command;

use selvedge_tests::peer::Peer;
use selvedge_tests::programs::set_up;
use selvedge_tests::report::Report;
use selvedge_tests::serving::{Host, Package, Spec, tensor};
use selvedge_tests::spread::Spread;
use selvedge_tests::usage::settled_kib;
use serde_json::json;
use tempfile::TempDir;

const ROUNDS: usize = 5;
const RATIO: f64 = 1.3;

/// Bytes that the model looks at, and kinds that it knows.
const LOOKED_AT: i64 = 2048;
const KINDS: i64 = 214;

pub async fn measure(report: &mut Report) {
    let model = set_up("setup/magika/model.onnx");
    let bytes = std::fs::read(&model).expect("set-up has fetched the model");
    let input = || tensor(("bytes", "INT32"), &[1, LOOKED_AT as u64], json!(vec![0; LOOKED_AT as usize]));
    let scores = tensor(("target_label", "FP32"), &[1, KINDS as u64], json!(vec![0; KINDS as usize]));
    // What it answers is not what is measured: any number will do.
    let case = json!({"name": "zeros", "inputs": [input()], "outputs": [scores],
                      "tolerance": {"absolute": 1e9, "relative": 0.0}});
    let specs: (&[Spec], &[Spec]) =
        (&[("bytes", "INT32", &[-1, LOOKED_AT])], &[("target_label", "FP32", &[-1, KINDS])]);
    let package = Package::new("file-type", 1, bytes, specs, case).write();
    let (mut hosts, mut bares) = (Vec::new(), Vec::new());
    // The first start compiles the built-in module; a device has it from then on.
    let first = Host::start().await;
    first.put(&package).await;
    for _ in 0..ROUNDS {
        let host = Host::start_in(compiled_by(&first)).await;
        host.put(&package).await;
        let (status, answer) = host.post("/v2/models/file-type/infer", json!({"inputs": [input()]})).await;
        assert_eq!(status, 200, "{answer}");
        hosts.push(settled_kib(host.id()) as f64 / 1024.0);
        bares.push(settled_kib(Peer::bare(&model).id()) as f64 / 1024.0);
    }
    let (host, bare) = (Spread::of(&hosts), Spread::of(&bares));
    println!("PSS with a model of 3 MB, MiB: host {host}; bare {bare}");
    report.spread("host_pss_mib", host);
    report.spread("bare_pss_mib", bare);
    report.at_most("PSS with a model of 3 MB, host / bare", host.median / bare.median, RATIO);
}

/// A directory for another host, with what this one has compiled.
fn compiled_by(host: &Host) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let status = Command::new("cp")
        .arg("-a")
        .args([host.directory.path().join("data"), directory.path().join("data")])
        .status();
    assert!(status.is_ok_and(|status| status.success()), "what the first host has compiled cannot be copied");
    directory
}
