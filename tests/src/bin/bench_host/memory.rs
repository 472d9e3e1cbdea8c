//! Part `memory`: what a host takes that serves one model of 3 MB, against the least program that opens it
//! with ort and answers once.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use selvedge_tests::programs::{program, set_up};
use selvedge_tests::report::Report;
use selvedge_tests::serving::{Host, Package, Spec, tensor};
use selvedge_tests::spread::Spread;
use selvedge_tests::usage::settled_kib;
use serde_json::json;

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
    for _ in 0..ROUNDS {
        let host = Host::start().await;
        host.put(&package).await;
        let (status, answer) = host.post("/v2/models/file-type/infer", json!({"inputs": [input()]})).await;
        assert_eq!(status, 200, "{answer}");
        hosts.push(settled_kib(host.id()) as f64 / 1024.0);

        let mut bare = Command::new(program("peer-bare"))
            .arg(set_up("setup/onnxruntime/libonnxruntime.so"))
            .arg(&model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the peer starts");
        let mut line = String::new();
        let out = bare.stdout.take().expect("its output is a pipe");
        BufReader::new(out).read_line(&mut line).expect("it says something");
        bares.push(settled_kib(bare.id()) as f64 / 1024.0);
        drop(bare.stdin.take());
        bare.wait().expect("the peer ends with its input");
        assert!(line.starts_with("answered"), "it said {line:?}");
    }
    let (host, bare) = (Spread::of(&hosts), Spread::of(&bares));
    println!("PSS with a model of 3 MB, MiB: host {host}; bare {bare}");
    report.spread("host_pss_mib", host);
    report.spread("bare_pss_mib", bare);
    report.at_most("PSS with a model of 3 MB, host / bare", host.median / bare.median, RATIO);
}
