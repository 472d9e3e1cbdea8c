//! Hands a request's tensors to the package's first model and its answer back, as `direct` does, through `wasi:nn`
//! as a guest would that was written for it. What to start from for a module of that kind.
//!
//! Settings: `load` is `name` (by the model's name) or `bytes` (of `/package/model.onnx`); `tensors` is `handles` (the
//! same tensors, without a copy) or `copies` (through this module's memory, with nothing but the public interface).

wit_bindgen::generate!({ path: "../../host/wit", world: "module-with-nn", generate_all });

use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::errors::Code;
use selvedge::model::tensors::{Datatype, Tensor};
use selvedge::model::{config, nn_tensors, sessions};
use wasi::nn::errors::{Error as NnError, ErrorCode};
use wasi::nn::graph::{ExecutionTarget, Graph, GraphEncoding, load, load_by_name};
use wasi::nn::tensor::{Tensor as NnTensor, TensorType};

struct Nn;

export!(Nn);

impl Guest for Nn {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let copies = config::get("tensors").is_some_and(|how| how == "copies");
        let mut given = Vec::with_capacity(inputs.len());
        for NamedTensor { name, tensor } in &inputs {
            let tensor = if copies { copied(tensor)? } else { nn_tensors::to_nn(tensor)? };
            given.push((name.clone(), tensor));
        }
        let context = graph()?.init_execution_context().map_err(failure)?;
        let outputs = context.compute(given).map_err(failure)?;
        let back = |(name, tensor): (String, NnTensor)| {
            let tensor = if copies { copied_back(&tensor)? } else { nn_tensors::from_nn(&tensor)? };
            Ok(NamedTensor { name, tensor })
        };
        outputs.into_iter().map(back).collect()
    }
}

fn graph() -> Result<Graph, Error> {
    if config::get("load").is_some_and(|how| how == "bytes") {
        let bytes = std::fs::read("/package/model.onnx").map_err(|error| internal(&error.to_string()))?;
        return load(&[bytes], GraphEncoding::Onnx, ExecutionTarget::Cpu).map_err(failure);
    }
    let models = sessions::models();
    load_by_name(models.first().ok_or_else(|| internal("the package has no model"))?).map_err(failure)
}

/// The element types that both have.
const TYPES: [(Datatype, TensorType); 7] = [
    (Datatype::Fp16, TensorType::Fp16),
    (Datatype::Bf16, TensorType::Bf16),
    (Datatype::Fp32, TensorType::Fp32),
    (Datatype::Fp64, TensorType::Fp64),
    (Datatype::Uint8, TensorType::U8),
    (Datatype::Int32, TensorType::I32),
    (Datatype::Int64, TensorType::I64),
];

fn copied(tensor: &Tensor) -> Result<NnTensor, Error> {
    let datatype = tensor.datatype();
    let found = TYPES.iter().find(|(ours, _)| *ours == datatype);
    let (_, element) = found.ok_or_else(|| internal("an element type that wasi:nn has not"))?;
    let shape: Vec<u32> = tensor.shape().iter().map(|&extent| extent as u32).collect();
    Ok(NnTensor::new(&shape, *element, &tensor.read(0, tensor.byte_length())?))
}

fn copied_back(tensor: &NnTensor) -> Result<Tensor, Error> {
    let element = tensor.ty();
    let found = TYPES.iter().find(|(_, theirs)| *theirs == element);
    let (datatype, _) = found.ok_or_else(|| internal("an element type of which there is none"))?;
    let shape: Vec<u64> = tensor.dimensions().iter().map(|&extent| extent.into()).collect();
    Tensor::create(*datatype, &shape, &tensor.data())
}

fn internal(why: &str) -> Error {
    Error { code: Code::Internal, message: why.to_owned() }
}

fn failure(error: NnError) -> Error {
    let code = match error.code() {
        ErrorCode::InvalidArgument => Code::InvalidInput,
        ErrorCode::RuntimeError => Code::Model,
        ErrorCode::TooLarge => Code::Limit,
        _ => Code::Internal,
    };
    Error { code, message: format!("{:?}: {}", error.code(), error.data()) }
}
