//! Part `http`: the host against a bare axum + ort server, which takes the same requests.
//!
//! Both have one session a model and one thread a run. They take turns; a bar is of all rounds together.

use std::path::{Path, PathBuf};
use std::process::Command;

use selvedge_tests::onnx_writer;
use selvedge_tests::peer::Peer;
use selvedge_tests::programs::{program, set_up};
use selvedge_tests::report::Report;
use selvedge_tests::serving::{Host, Package, Spec, tensor};
use selvedge_tests::usage::worked;
use serde_json::json;

use super::wrk::{self, Asked};

const CONNECTIONS: u32 = 8;
const ROUNDS: usize = 5;
/// Of so many requests and more processor time is taken, where a run is short. SqueezeNet answers as many in half an
/// hour: it has some thousands.
const LEAST: u64 = 100_000;
const SECONDS: u64 = 5;
const WARM_UP: u64 = 1;

const RATE: f64 = 0.8;
const RATE_OF_A_MODEL: f64 = 1.0;
const WORK: f64 = 1.25;

/// What is asked for.
struct Case {
    name: &'static str,
    model: &'static str,
    body: Vec<u8>,
    headers: Vec<(&'static str, String)>,
    rate: f64,
}

/// Shape and name of a model's input, and its name.
type Asks = (&'static [u64], &'static str, &'static str);

/// Rounds of one server.
#[derive(Default)]
struct Served {
    requests: u64,
    seconds: f64,
    worked: f64,
}

impl Served {
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Microseconds of processor time a request.
    fn work(&self) -> f64 {
        self.worked / self.requests as f64 * 1e6
    }
}

pub async fn measure(report: &mut Report) -> anyhow::Result<()> {
    let place = tempfile::tempdir()?;
    let identity = place.path().join("identity.onnx");
    std::fs::write(&identity, onnx_writer::identity())?;
    let squeezenet = squeezenet();
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    host.put(&vision(&squeezenet)?.write()).await;
    let (bare, bare_url) = bare(&[("identity", &identity), ("squeezenet", &squeezenet)]);
    println!(
        "{:<20} {:>11} {:>11} {:>7} {:>11} {:>11} {:>7}",
        "8 connections", "host /s", "bare /s", "ratio", "host µs", "bare µs", "ratio"
    );
    for case in cases() {
        let (mut ours, mut theirs) = (Served::default(), Served::default());
        for round in 0..=ROUNDS {
            let seconds = if round == 0 { WARM_UP } else { SECONDS };
            for (url, id, served) in [(&host.url, host.id(), &mut ours), (&bare_url, bare.id(), &mut theirs)]
            {
                let url = format!("{url}/v2/models/{}/infer", case.model);
                let before = worked(id);
                let asked = Asked { url: &url, body: &case.body, headers: &case.headers };
                let load = wrk::run(&asked, CONNECTIONS, seconds, place.path())?;
                if round > 0 {
                    served.requests += load.requests;
                    served.seconds += load.seconds;
                    served.worked += worked(id) - before;
                }
            }
        }
        let least = ours.requests.min(theirs.requests);
        anyhow::ensure!(case.model != "identity" || least >= LEAST, "{least} requests say too little");
        report.figure(&format!("{} requests", case.name), least as f64);
        let (rate, work) = (ours.rate() / theirs.rate(), ours.work() / theirs.work());
        println!(
            "{:<20} {:>11.0} {:>11.0} {rate:>7.2} {:>11.1} {:>11.1} {work:>7.2}",
            case.name,
            ours.rate(),
            theirs.rate(),
            ours.work(),
            theirs.work()
        );
        report.figure(&format!("{} host_per_second", case.name), ours.rate());
        report.figure(&format!("{} bare_per_second", case.name), theirs.rate());
        report.figure(&format!("{} host_us", case.name), ours.work());
        report.figure(&format!("{} bare_us", case.name), theirs.work());
        report.at_least(&format!("{}: requests a second, host / bare", case.name), rate, case.rate);
        report.at_most(&format!("{}: processor time a request, host / bare", case.name), work, WORK);
    }
    Ok(())
}

fn cases() -> [Case; 4] {
    let small: Asks = (&[2, 3], "x", "identity");
    let large: Asks = (&[1, 3, 224, 224], "data_0", "squeezenet");
    let case = |name, (shape, input, model): Asks, binary: bool, rate| {
        let count = shape.iter().product::<u64>() as usize;
        let numbers: Vec<f32> = (0..count).map(|index| (index % 255) as f32 / 255.0).collect();
        if !binary {
            let json = json!({"inputs": [tensor((input, "FP32"), shape, json!(numbers))]});
            return Case { name, model, body: json.to_string().into_bytes(), headers: vec![kind()], rate };
        }
        let json = json!({
            "inputs": [{"name": input, "datatype": "FP32", "shape": shape,
                        "parameters": {"binary_data_size": 4 * count}}],
            "parameters": {"binary_data_output": true},
        });
        let mut body = json.to_string().into_bytes();
        let headers = vec![("Inference-Header-Content-Length", body.len().to_string())];
        body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        Case { name, model, body, headers, rate }
    };
    [
        case("identity JSON", small, false, RATE),
        case("identity binary", small, true, RATE),
        case("SqueezeNet JSON", large, false, RATE_OF_A_MODEL),
        case("SqueezeNet binary", large, true, RATE_OF_A_MODEL),
    ]
}

fn kind() -> (&'static str, String) {
    ("Content-Type", "application/json".to_owned())
}

/// Where set-up has put SqueezeNet: with the backend cases of the package `onnx`.
fn squeezenet() -> PathBuf {
    let lib = set_up("setup/venv/lib");
    let versions = std::fs::read_dir(&lib).expect("set-up has made a virtual environment");
    let data = "site-packages/onnx/backend/test/data/light/light_squeezenet.onnx";
    let mut found = versions.flatten().map(|entry| entry.path().join(data)).filter(|path| path.exists());
    found.next().unwrap_or_else(|| panic!("no {data} below {}", lib.display()))
}

/// Its package. What it answers is not what is measured: any number will do.
fn vision(file: &Path) -> anyhow::Result<Package> {
    let (shape, ones) = ([1, 3, 224, 224], vec![1.0; 3 * 224 * 224]);
    let case = json!({
        "name": "ones",
        "inputs": [tensor(("data_0", "FP32"), &shape, json!(ones))],
        "outputs": [tensor(("softmaxout_1", "FP32"), &[1, 1000, 1, 1], json!(vec![0.0; 1000]))],
        "tolerance": {"absolute": 1e9, "relative": 0.0},
    });
    let inputs: &[Spec] = &[("data_0", "FP32", &[1, 3, 224, 224][..])];
    let outputs: &[Spec] = &[("softmaxout_1", "FP32", &[1, 1000, 1, 1][..])];
    Ok(Package::new("squeezenet", 1, std::fs::read(file)?, (inputs, outputs), case))
}

/// The peer with these models, and its address.
fn bare(models: &[(&str, &Path)]) -> (Peer, String) {
    let mut command = Command::new(program("peer-http"));
    command.arg(set_up("setup/onnxruntime/libonnxruntime.so"));
    command.args(models.iter().map(|(name, path)| format!("{name}={}", path.display())));
    let peer = Peer::start(&mut command);
    let url = format!("http://{}", peer.said);
    (peer, url)
}
