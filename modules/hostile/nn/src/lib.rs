//! Means harm through `wasi:nn`. The setting `how` says which: `lies` passes nonsense to every call and answers with the
//! errors; `hoard` keeps tensors without end, `errors` keeps errors without end, `large` wants a tensor larger than
//! any; `stale` keeps a tensor and looks into it at the next request; `loads` loads graphs from wrong bytes without end.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module-with-nn", generate_all });

use std::cell::RefCell;

use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::tensors::Tensor;
use selvedge::model::sessions::{self, Session};
use selvedge::model::{config, nn_tensors};
use wasi::nn::errors::Error as NnError;
use wasi::nn::graph::{ExecutionTarget, GraphEncoding, load, load_by_name};
use wasi::nn::tensor::{Tensor as NnTensor, TensorType};

struct Hostile;

export!(Hostile);

thread_local! {
    static KEPT: RefCell<Vec<NnTensor>> = const { RefCell::new(Vec::new()) };
}

impl Guest for Hostile {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        match config::get("how").as_deref() {
            Some("hoard") => hoard(),
            Some("errors") => errors(),
            Some("large") => drop(NnTensor::new(&[1 << 20], TensorType::U8, &vec![0; 60 << 20])),
            Some("loads") => loop {
                drop(load(&[vec![0; 1 << 20]], GraphEncoding::Onnx, ExecutionTarget::Cpu));
            },
            Some("stale") => {
                for kept in KEPT.take() {
                    kept.data();
                }
                KEPT.with_borrow_mut(|kept| kept.extend(inputs.iter().filter_map(|it| nn_tensors::to_nn(&it.tensor).ok())));
            }
            _ => return lies(),
        }
        Ok(inputs)
    }
}

fn hoard() {
    let mut held = Vec::new();
    loop {
        held.push(NnTensor::new(&[1], TensorType::U8, &[0]));
    }
}

fn errors() {
    let mut held = Vec::new();
    loop {
        held.push(load_by_name(&"n".repeat(1 << 16)).err());
    }
}

fn lies() -> Result<Vec<NamedTensor>, Error> {
    let mut errors = Vec::new();
    let mut note = |what: &str, error: Option<NnError>| {
        let said = error.map_or("no error".to_owned(), |error| format!("{:?}: {}", error.code(), error.data()));
        errors.push(format!("{what}: {said}").into_bytes());
    };
    let cpu = ExecutionTarget::Cpu;
    note("no bytes", load(&[], GraphEncoding::Onnx, cpu).err());
    note("two", load(&[vec![], vec![]], GraphEncoding::Onnx, cpu).err());
    note("other bytes", load(&[b"\x08\x08".to_vec()], GraphEncoding::Autodetect, cpu).err());
    note("another encoding", load(&[vec![]], GraphEncoding::Pytorch, cpu).err());
    note("no such name", load_by_name("/etc/passwd").err());
    let model = sessions::models().remove(0);
    if let Ok(bytes) = std::fs::read("/package/model.onnx") {
        note("gpu", load(std::slice::from_ref(&bytes), GraphEncoding::Onnx, ExecutionTarget::Gpu).err());
        note("tpu", load(std::slice::from_ref(&bytes), GraphEncoding::Onnx, ExecutionTarget::Tpu).err());
        let mut wrong = bytes;
        wrong[0] ^= 1;
        note("a bit", load(&[wrong], GraphEncoding::Onnx, cpu).err());
    }
    let graph = load_by_name(&model).unwrap();
    let context = graph.init_execution_context().unwrap();
    drop(graph);
    let mut try_one = |what: &str, name: &str, dimensions: &[u32], element, bytes: usize| {
        let tensor = NnTensor::new(dimensions, element, &vec![0; bytes]);
        note(what, context.compute(vec![(name.to_owned(), tensor)]).err());
    };
    try_one("unknown", &"u".repeat(1 << 16), &[2, 3], TensorType::Fp32, 24);
    try_one("type", "x", &[2, 3], TensorType::U8, 6);
    try_one("shape", "x", &[3, 2], TensorType::Fp32, 24);
    try_one("short", "x", &[2, 3], TensorType::Fp32, 23);
    try_one("overflow", "x", &[u32::MAX; 8], TensorType::Fp32, 24);
    try_one("rank", "x", &[1; 100_000], TensorType::Fp32, 4);
    note("nothing", context.compute(vec![]).err());
    let good = || NnTensor::new(&[2, 3], TensorType::Fp32, &[0; 24]);
    note("twice", context.compute(vec![("x".to_owned(), good()), ("x".to_owned(), good())]).err());
    note("good", context.compute(vec![("x".to_owned(), good())]).err());
    let of = |error: Option<Error>| error.map_or("no error".to_owned(), |error| error.message);
    let text = Tensor::create_bytes(&[1], &[b"a".to_vec()])?;
    errors.push(format!("to: {}", of(nn_tensors::to_nn(&text).err())).into_bytes());
    let short = NnTensor::new(&[2], TensorType::I64, &[0; 8]);
    errors.push(format!("from: {}", of(nn_tensors::from_nn(&short).err())).into_bytes());
    let optional = Session::open(&model)?.optional_inputs();
    let optional: Vec<_> = optional.iter().map(|spec| format!("{} {:?}", spec.name, spec.shape)).collect();
    errors.push(format!("may be left out: {}", optional.join(", ")).into_bytes());
    let tensor = Tensor::create_bytes(&[errors.len() as u64], &errors)?;
    Ok(vec![NamedTensor { name: "errors".to_owned(), tensor }])
}
