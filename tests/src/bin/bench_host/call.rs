//! Part `call`: what the sandbox adds to a call, in one process, in interleaved pairs, with every limit armed.
//!
//! Native `Session::run` against the built-in module, with a model of one `Shape` node: the native side runs
//! inputs that it made beforehand, so everything that a request needs is on the other side: the value for
//! ONNX Runtime, the deadline, the watch, the guest and its handles. The bar is the median of the differences
//! within pairs. And the module `copy`, which reads a tensor and makes another, against two copies of as many
//! bytes between buffers that are there: the bar is the ratio of the medians.

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
use selvedge_tests::report::Report;
use serde_json::json;

/// Microseconds that a call may take longer.
const BAR: f64 = 3.0;
/// How much more than two copies reading and writing may take.
const COPIES: f64 = 1.3;
const COPY_PAIRS: usize = 5_000;
const COPY_WARM_UP: usize = 500;
const LOOKED_INTO: &[u64] = &[1, 3, 224, 224];
const PAIRS: usize = 20_000;
const WARM_UP: usize = 2_000;
const SHAPES: [&[u64]; 2] = [&[1, 16], &[1, 3, 224, 224]];

#[derive(Default)]
struct Figures {
    native: Vec<f64>,
    direct: Vec<f64>,
    added: Vec<f64>,
}

pub fn measure(report: &mut Report) -> anyhow::Result<()> {
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
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "input (FP32)", "native", "direct", "added", "p95", "p99"
    );
    for shape in SHAPES {
        let (loaded, _place) = open(&runtime, shape.len(), None)?;
        let mut measured = executor.block_on(direct(&runtime, &loaded, shape))?;
        let name = shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        let (native, direct) = (quantile(&mut measured.native, 0.5), quantile(&mut measured.direct, 0.5));
        let added = quantile(&mut measured.added, 0.5);
        let (p95, p99) = (quantile(&mut measured.added, 0.95), quantile(&mut measured.added, 0.99));
        println!("{name:<22} {native:>9.2} {direct:>9.2} {added:>9.2} {p95:>9.2} {p99:>9.2}");
        for (what, value) in [("native", native), ("direct", direct), ("added_p95", p95), ("added_p99", p99)]
        {
            report.figure(&format!("{what}_us at {name}"), value);
        }
        report.at_most(&format!("added by `direct` at {name}, microseconds"), added, BAR);
    }
    let module = std::fs::read(place("SELVEDGE_MODULES")?.join("copy.wasm"))?;
    let (loaded, _place) = open(&runtime, LOOKED_INTO.len(), Some(&module))?;
    let mut copied = executor.block_on(copy(&loaded))?;
    let (copies, module) = (quantile(&mut copied.native, 0.5), quantile(&mut copied.direct, 0.5));
    println!("{:<22} {:>9} {:>9} {:>9}", "1x3x224x224", "2 copies", "module", "ratio");
    println!("{:<22} {copies:>9.2} {module:>9.2} {:>9.2}", "read and written", module / copies);
    report.figure("two_copies_us", copies);
    report.figure("copying_module_us", module);
    report.at_most("a module that reads and writes 602 kB / two copies of that", module / copies, COPIES);
    Ok(())
}

/// The module `copy` in turns with two copies.
async fn copy(loaded: &Loaded) -> anyhow::Result<Figures> {
    let count = LOOKED_INTO.iter().product::<u64>() as usize;
    let data: Vec<f32> = (0..count).map(|index| index as f32).collect();
    let tensor = Tensor::fixed(Datatype::Fp32, LOOKED_INTO, Buffer::from(&data[..]))?;
    let mut buffers = [data.clone(), data.clone()];
    let deadline = Duration::from_secs(10);
    let mut figures = Figures::default();
    for turn in 0..COPY_WARM_UP + COPY_PAIRS {
        let start = now();
        let [first, second] = &mut buffers;
        first.copy_from_slice(std::hint::black_box(&data));
        second.copy_from_slice(std::hint::black_box(first));
        std::hint::black_box(&mut *second);
        let native = now() - start;
        let inputs = vec![NamedTensor::new("x", tensor.clone())];
        let start = now();
        let outputs = loaded.predict(inputs, deadline).await?;
        let direct = now() - start;
        anyhow::ensure!(turn > 0 || outputs[0].tensor.as_fixed() == tensor.as_fixed());
        if turn >= COPY_WARM_UP {
            figures.native.push(native.as_secs_f64() * 1e6);
            figures.direct.push(direct.as_secs_f64() * 1e6);
        }
    }
    Ok(figures)
}

async fn direct(runtime: &Runtime, loaded: &Loaded, shape: &[u64]) -> anyhow::Result<Figures> {
    let mut session = native(runtime, &onnx_writer::shape(shape.len()))?;
    let count = shape.iter().product::<u64>() as usize;
    let data = vec![0.5_f32; count];
    let extents: Vec<i64> = shape.iter().map(|&extent| extent.cast_signed()).collect();
    let value = TensorRef::from_array_view((&extents[..], &data[..]))?;
    let tensor = Tensor::fixed(Datatype::Fp32, shape, Buffer::from(&data[..]))?;

    let deadline = Duration::from_secs(10);
    let mut figures = Figures::default();
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

/// A package of the `Shape` model, as the agent would have laid it out, with a module of its own or `direct`.
fn open(
    runtime: &Runtime,
    rank: usize,
    module: Option<&[u8]>,
) -> anyhow::Result<(Arc<Loaded>, tempfile::TempDir)> {
    let free = vec![-1; rank];
    let mut manifest = json!({
        "format": 1, "name": "shape", "version": "1.0.0", "release": 1,
        "models": [{"name": "shape", "file": "model.onnx"}],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": free}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [rank]}],
        "acceptance": {"cases": ["case.json"]},
    });
    let mut files = vec![("model.onnx", onnx_writer::shape(rank)), ("case.json", b"{}".to_vec())];
    if let Some(module) = module {
        manifest["module"] = json!({"component": "module.wasm"});
        manifest["outputs"] = json!([{"name": "y", "datatype": "FP32", "shape": vec![-1; rank]}]);
        files.push(("module.wasm", module.to_vec()));
    }
    let manifest: Manifest = serde_json::from_value(manifest)?;
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
