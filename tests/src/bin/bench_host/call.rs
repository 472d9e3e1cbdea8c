//! Part `call`: what the sandbox adds to a call, in one process, in interleaved pairs, with every limit armed.
//!
//! Native `Session::run` against the built-in module, with a model of one `Shape` node: the native side runs
//! inputs that it made beforehand, so everything that a request needs is on the other side: the value for
//! ONNX Runtime, the deadline, the watch, the guest and its handles. The bar is the median of the differences
//! within pairs. And the module `copy`, which reads a tensor and makes another, against two copies of as many
//! bytes between buffers that are there: the bar is the ratio of the medians. What a binary request costs beside its run
//! is `copies`'s. And the same `Identity` here and
//! through wasmtime's own wasi-nn (a peer of its own, since it wants another ort), each against `Session::run` in
//! its process: the bar is the median of the ratios of some turns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use selvedge_host::runtime::{Loaded, Runtime, RuntimeOptions};
use selvedge_host::session::ort;
use selvedge_host::session::ort::value::TensorRef;
use selvedge_host::tensor::{Buffer, NamedTensor, Tensor};
use selvedge_package::Manifest;
use selvedge_package::bundle::Builder;
use selvedge_package::tensor::Datatype;
use selvedge_tests::clock::now;
use selvedge_tests::onnx_writer::{self, Element, Extent};
use selvedge_tests::report::Report;
use selvedge_tests::spread::{Spread, quantile};
use serde_json::json;

use super::copies;
use super::native::{self, Native};

/// Microseconds that a call may take longer.
const BAR: f64 = 3.0;
/// How much more than two copies reading and writing may take.
const COPIES: f64 = 1.3;
/// How much cheaper than wasi-nn what surrounds a run must be.
const CHEAPER: f64 = 3.0;
const PEER_PAIRS: usize = 2_000;
const PEER_TURNS: usize = 7;
const COPY_PAIRS: usize = 5_000;
const COPY_WARM_UP: usize = 500;
const LOOKED_INTO: &[u64] = &[1, 3, 224, 224];
const SMALL: &[u64] = &[1, 1, 1, 16];
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
        let model = onnx_writer::shape(shape.len());
        let (loaded, _place) = open(&runtime, &model, shape.len(), Answers::Extents)?;
        let mut measured = executor.block_on(direct(&runtime, &loaded, &model, shape, PAIRS))?;
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
    let module = std::fs::read(place("SELVEDGE_MODULES")?.join("bench/copy.wasm"))?;
    let rank = LOOKED_INTO.len();
    let (loaded, _place) = open(&runtime, &onnx_writer::shape(rank), rank, Answers::Copy(&module))?;
    let mut copied = executor.block_on(copy(&loaded))?;
    let (copies, module) = (quantile(&mut copied.native, 0.5), quantile(&mut copied.direct, 0.5));
    println!("{:<22} {:>9} {:>9} {:>9}", "1x3x224x224", "2 copies", "module", "ratio");
    println!("{:<22} {copies:>9.2} {module:>9.2} {:>9.2}", "read and written", module / copies);
    report.figure("two_copies_us", copies);
    report.figure("copying_module_us", module);
    report.at_most("a module that reads and writes 602 kB / two copies of that", module / copies, COPIES);
    let model = same();
    let (loaded, _place) = open(&runtime, &model, rank, Answers::Same)?;
    let native = |shape| anyhow::Ok((shape, Native::new(&runtime, &model, shape)?));
    copies::measure(report, loaded, [native(SMALL)?, native(LOOKED_INTO)?])?;
    if let Some(peer) = std::env::var_os("SELVEDGE_PEER_WASI_NN") {
        let library = place("SELVEDGE_ONNXRUNTIME")?;
        let guest = place("SELVEDGE_MODULES")?.join("bench/wasi-nn.wasm");
        beside_wasi_nn(report, &runtime, &executor, Command::new(peer).arg(library), &guest)?;
    } else {
        println!("wasi-nn: SELVEDGE_PEER_WASI_NN is not set, `cargo xtask bench host` builds the peer");
    }
    Ok(())
}

/// The same model here and through wasmtime's own wasi-nn, in turns: what each adds to `Session::run`.
fn beside_wasi_nn(
    report: &mut Report,
    runtime: &Runtime,
    executor: &tokio::runtime::Runtime,
    peer: &mut Command,
    guest: &Path,
) -> anyhow::Result<()> {
    let model = same();
    let place = tempfile::tempdir()?;
    let directory = place.path().join("model");
    std::fs::create_dir(&directory)?;
    std::fs::write(directory.join("model.onnx"), &model)?;
    peer.arg(&directory).arg(guest).arg(PEER_PAIRS.to_string());
    let (loaded, _place) = open(runtime, &model, LOOKED_INTO.len(), Answers::Same)?;
    // For each size the medians of a turn: our run, what is added here, its run, what is added there.
    let mut turns: BTreeMap<u64, [Vec<f64>; 4]> = BTreeMap::new();
    for _ in 0..PEER_TURNS {
        let output = peer.output()?;
        anyhow::ensure!(output.status.success(), "the peer: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let numbers: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [elements, theirs, _, added] = numbers[..] else { anyhow::bail!("the peer said {line:?}") };
            let shape = if elements > 16.0 { LOOKED_INTO } else { SMALL };
            let mut measured = executor.block_on(direct(runtime, &loaded, &model, shape, PEER_PAIRS))?;
            let (run, ours) = (quantile(&mut measured.native, 0.5), quantile(&mut measured.added, 0.5));
            let all = turns.entry(shape.iter().product()).or_default();
            all.iter_mut().zip([run, ours, theirs, added]).for_each(|(all, one)| all.push(one));
        }
    }
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>14}",
        "identity, added", "run", "direct", "its run", "wasi-nn", "ratio", "of one"
    );
    for (elements, all) in turns {
        let ratios: Vec<f64> = all[3].iter().zip(&all[1]).map(|(theirs, ours)| theirs / ours).collect();
        let [run, ours, theirs, added] = all.map(|all| Spread::of(&all).median);
        let ratios = Spread::of(&ratios);
        let range = format!("{:.2} to {:.2}", ratios.least, ratios.most);
        let ratio = ratios.median;
        println!("{elements:<22} {run:>9.2} {ours:>9.2} {theirs:>9.2} {added:>9.2} {ratio:>9.2} {range:>14}");
        report.figure(&format!("added_us at {elements} elements"), ours);
        report.figure(&format!("wasi_nn_added_us at {elements} elements"), added);
        report.spread(&format!("added by wasi-nn / added here, {elements} elements"), ratios);
        report.at_least(&format!("added by wasi-nn / added here, {elements} elements"), ratio, CHEAPER);
    }
    Ok(())
}

/// A model that gives back what it gets: float32 of four dimensions.
fn same() -> Vec<u8> {
    onnx_writer::identity_of(Element::Float, &["a", "b", "c", "d"].map(Extent::Named))
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

async fn direct(
    runtime: &Runtime,
    loaded: &Loaded,
    model: &[u8],
    shape: &[u64],
    pairs: usize,
) -> anyhow::Result<Figures> {
    let mut session = native::session(runtime, model)?;
    let count = shape.iter().product::<u64>() as usize;
    let data = vec![0.5_f32; count];
    let extents: Vec<i64> = shape.iter().map(|&extent| extent.cast_signed()).collect();
    let value = TensorRef::from_array_view((&extents[..], &data[..]))?;
    let tensor = Tensor::fixed(Datatype::Fp32, shape, Buffer::from(&data[..]))?;

    let deadline = Duration::from_secs(10);
    let mut figures = Figures::default();
    for turn in 0..WARM_UP + pairs {
        let mut native = Duration::ZERO;
        let mut direct = Duration::ZERO;
        for side in [turn % 2, (turn + 1) % 2] {
            if side == 0 {
                let inputs = ort::inputs!["x" => &*value];
                let start = now();
                let outputs = session.run(inputs)?;
                anyhow::ensure!(outputs["y"].is_tensor());
                drop(outputs);
                native = now() - start;
            } else {
                let inputs = vec![NamedTensor::new("x", tensor.clone())];
                let start = now();
                let outputs = loaded.predict(inputs, deadline).await?;
                anyhow::ensure!(outputs[0].tensor.as_fixed().is_some());
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

/// What the package of a model answers with.
enum Answers<'a> {
    /// The extents of its input, through `direct`.
    Extents,
    /// Its input, through `direct`.
    Same,
    /// Its input, through this module.
    Copy(&'a [u8]),
}

/// A package of a model of one input of `rank` dimensions, as the agent would have laid it out.
fn open(
    runtime: &Runtime,
    model: &[u8],
    rank: usize,
    answers: Answers,
) -> anyhow::Result<(Arc<Loaded>, tempfile::TempDir)> {
    let same = json!([{"name": "y", "datatype": "FP32", "shape": vec![-1; rank]}]);
    let mut manifest = json!({
        "format": 1, "name": "model", "version": "1.0.0", "release": 1,
        "models": [{"name": "model", "file": "model.onnx"}],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": vec![-1; rank]}],
        "outputs": same,
        "acceptance": {"cases": ["case.json"]},
    });
    let mut files = vec![("model.onnx", model.to_vec()), ("case.json", b"{}".to_vec())];
    match answers {
        Answers::Extents => {
            manifest["outputs"] = json!([{"name": "y", "datatype": "INT64", "shape": [rank]}]);
        }
        Answers::Same => {}
        Answers::Copy(module) => {
            manifest["module"] = json!({"component": "module.wasm"});
            files.push(("module.wasm", module.to_vec()));
        }
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
