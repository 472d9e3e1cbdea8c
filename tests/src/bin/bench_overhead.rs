//! What the sandbox adds to a call: native `Session::run` against the built-in module, in one
//! process, in interleaved pairs, with a model of one `Shape` node and every limit armed.
//!
//! The native side runs inputs that it made beforehand, so everything that a request needs is on the
//! other side: the value for ONNX Runtime, the deadline, the watch, the guest and its handles. The bar
//! is the median of the differences within pairs. Ends with one line of JSON.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use selvedge_host::runtime::{Loaded, Runtime, RuntimeOptions};
use selvedge_host::session::ort;
use selvedge_host::session::ort::session::Session;
use selvedge_host::session::ort::session::builder::GraphOptimizationLevel;
use selvedge_host::session::ort::value::TensorRef;
use selvedge_host::tensor::{Buffer, NamedTensor, Tensor};
use selvedge_package::Manifest;
use selvedge_package::bundle::Builder;
use selvedge_package::tensor::Datatype;
use selvedge_tests::clock::now;
use selvedge_tests::onnx_writer;
use serde_json::json;

/// Microseconds that a call may take longer.
const BAR: f64 = 4.0;
const PAIRS: usize = 20_000;
const WARM_UP: usize = 2_000;
const SHAPES: [&[u64]; 2] = [&[1, 16], &[1, 3, 224, 224]];

struct Figures {
    native: Vec<f64>,
    direct: Vec<f64>,
    added: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("bench_overhead: this is a debug build; its figures mean nothing");
    }
    let place =
        |name: &str| std::env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"));
    let runtime = Runtime::new(RuntimeOptions {
        onnxruntime: place("SELVEDGE_ONNXRUNTIME")?,
        modules: place("SELVEDGE_MODULES")?,
        cache: None,
        execution_providers: Vec::new(),
        fatal: Arc::new(|fatal| panic!("{}", fatal.what)),
    })?;
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;

    println!("ONNX Runtime {}, 1 thread, {PAIRS} pairs; microseconds", runtime.onnxruntime_version());
    println!(
        "{:<18} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "input (FP32)", "native", "direct", "added", "p95", "p99", "instances"
    );
    let (mut figures, mut bars) = (serde_json::Map::new(), Vec::new());
    for shape in SHAPES {
        let (loaded, _place) = open(&runtime, shape.len())?;
        let mut measured = executor.block_on(measure(&runtime, &loaded, shape))?;
        let name = shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        let (native, direct) = (quantile(&mut measured.native, 0.5), quantile(&mut measured.direct, 0.5));
        let added = quantile(&mut measured.added, 0.5);
        let (p95, p99) = (quantile(&mut measured.added, 0.95), quantile(&mut measured.added, 0.99));
        let instances = loaded.instances_made();
        println!("{name:<18} {native:>9.2} {direct:>9.2} {added:>9.2} {p95:>9.2} {p99:>9.2} {instances:>10}");
        figures.insert(
            name.clone(),
            json!({"native_us": native, "direct_us": direct, "added_us": added, "added_p95_us": p95,
                   "added_p99_us": p99, "instances": instances}),
        );
        bars.push(json!({"name": format!("added at {name}, microseconds"), "value": added, "limit": BAR,
                         "holds": added <= BAR}));
    }
    println!("{}", json!({"bench": "overhead", "figures": figures, "bars": bars}));
    Ok(())
}

async fn measure(runtime: &Runtime, loaded: &Loaded, shape: &[u64]) -> anyhow::Result<Figures> {
    let mut session = native(runtime, &onnx_writer::shape(shape.len()))?;
    let count = shape.iter().product::<u64>() as usize;
    let data = vec![0.5_f32; count];
    let extents: Vec<i64> = shape.iter().map(|&extent| extent.cast_signed()).collect();
    let value = TensorRef::from_array_view((&extents[..], &data[..]))?;
    let tensor = Tensor::fixed(Datatype::Fp32, shape, Buffer::from(&data[..]))?;

    let deadline = Duration::from_secs(10);
    let mut figures = Figures { native: Vec::new(), direct: Vec::new(), added: Vec::new() };
    for turn in 0..WARM_UP + PAIRS {
        let mut native = Duration::ZERO;
        let mut direct = Duration::ZERO;
        for side in [turn % 2, (turn + 1) % 2] {
            if side == 0 {
                let inputs = ort::inputs!["x" => &*value];
                let start = now();
                let outputs = session.run(inputs)?;
                let (_, answer) = outputs["y"].try_extract_tensor::<i64>()?;
                anyhow::ensure!(answer == extents);
                drop(outputs);
                native = now() - start;
            } else {
                let inputs = vec![NamedTensor::new("x", tensor.clone())];
                let start = now();
                let outputs = loaded.predict(inputs, deadline).await?;
                anyhow::ensure!(
                    outputs[0].tensor.as_fixed().is_some_and(|bytes| bytes.len() == 8 * extents.len())
                );
                drop(outputs);
                direct = now() - start;
            }
        }
        if turn >= WARM_UP {
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            figures.native.push(micros(native));
            figures.direct.push(micros(direct));
            figures.added.push(micros(direct) - micros(native));
        }
    }
    Ok(figures)
}

/// A session as the host opens one.
fn native(runtime: &Runtime, model: &[u8]) -> ort::Result<Session> {
    Session::builder(runtime.environment())?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .commit_from_memory(model)
}

fn quantile(values: &mut [f64], at: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * at) as usize]
}

/// A package of the `Shape` model and nothing else, as the agent would have laid it out.
fn open(runtime: &Runtime, rank: usize) -> anyhow::Result<(Arc<Loaded>, tempfile::TempDir)> {
    let free = vec![-1; rank];
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1, "name": "shape", "version": "1.0.0", "release": 1,
        "models": [{"name": "shape", "file": "model.onnx"}],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": free}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [rank]}],
        "acceptance": {"cases": ["case.json"]},
    }))?;
    let files = [("model.onnx", onnx_writer::shape(rank)), ("case.json", b"{}".to_vec())];
    let mut builder = Builder::new(manifest);
    let place = tempfile::tempdir()?;
    for (path, bytes) in &files {
        builder.bytes(path.parse()?, bytes)?;
        std::fs::write(place.path().join(path), bytes)?;
    }
    let built = builder.build()?;
    std::fs::write(place.path().join("package.json"), &built.manifest)?;
    std::fs::write(place.path().join("manifest.json"), &built.blobs[0].1)?;
    let loaded = runtime.open(place.path(), built.bundle.digest(), &Default::default())?;
    Ok((loaded, place))
}
