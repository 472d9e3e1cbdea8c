//! ONNX Runtime called directly, without anything of the host between: the reference.

use selvedge_host::session::ort;
use selvedge_host::session::raw;

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::{DynTensorValueType, DynValue, Sequence, Tensor, TensorElementType, ValueType};

use crate::cases::Case;
use crate::value::{Array, Elements, Value};

/// ONNX's numbers of element types and ONNX Runtime's names. The numbers of the last six differ in its
/// own interface, which is why they are written down here.
const TYPES: [(i32, TensorElementType); 24] = [
    (1, TensorElementType::Float32),
    (2, TensorElementType::Uint8),
    (3, TensorElementType::Int8),
    (4, TensorElementType::Uint16),
    (5, TensorElementType::Int16),
    (6, TensorElementType::Int32),
    (7, TensorElementType::Int64),
    (8, TensorElementType::String),
    (9, TensorElementType::Bool),
    (10, TensorElementType::Float16),
    (11, TensorElementType::Float64),
    (12, TensorElementType::Uint32),
    (13, TensorElementType::Uint64),
    (16, TensorElementType::Bfloat16),
    (17, TensorElementType::Float8E4M3FN),
    (18, TensorElementType::Float8E4M3FNUZ),
    (19, TensorElementType::Float8E5M2),
    (20, TensorElementType::Float8E5M2FNUZ),
    (21, TensorElementType::Uint4),
    (22, TensorElementType::Int4),
    (23, TensorElementType::Float4E2M1),
    (24, TensorElementType::Float8E8M0),
    (25, TensorElementType::Uint2),
    (26, TensorElementType::Int2),
];

/// Bits of an element that is smaller than a byte.
fn bits(element: TensorElementType) -> Option<usize> {
    match element {
        TensorElementType::Uint4 | TensorElementType::Int4 | TensorElementType::Float4E2M1 => Some(4),
        TensorElementType::Uint2 | TensorElementType::Int2 => Some(2),
        _ => None,
    }
}

type Fallible<T> = Result<T, String>;

fn say(error: impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// A session as the host makes them.
pub fn open(environment: &Environment, model: &[u8]) -> Fallible<Session> {
    Session::builder(environment)
        .and_then(|builder| Ok(builder.with_optimization_level(GraphOptimizationLevel::All)?))
        .and_then(|builder| Ok(builder.with_intra_threads(1)?))
        .and_then(|builder| Ok(builder.with_inter_threads(1)?))
        .and_then(|mut builder| builder.commit_from_memory(model))
        .map_err(say)
}

/// The outputs for one set of inputs.
pub fn run(session: &mut Session, case: &Case, inputs: &[Option<Value>]) -> Fallible<Vec<Option<Value>>> {
    let mut feeds = Vec::new();
    for (name, input) in case.inputs.iter().zip(inputs) {
        if let Some(input) = input {
            feeds.push((name.as_str(), to_value(input)?));
        }
    }
    let outputs = session.run(feeds).map_err(say)?;
    outputs.iter().map(|(_, value)| from_value(&value).map(Some)).collect()
}

fn to_value(value: &Value) -> Fallible<DynValue> {
    match value {
        Value::Array(array) => to_tensor(array),
        Value::Sequence(items) => {
            let mut values = Vec::new();
            for item in items {
                values.push(to_tensor(item)?.downcast::<DynTensorValueType>().map_err(say)?);
            }
            Ok(Sequence::new(values).map_err(say)?.into_dyn())
        }
    }
}

fn to_tensor(array: &Array) -> Fallible<DynValue> {
    let extents: Vec<i64> = array.shape.iter().map(|&extent| extent as i64).collect();
    match &array.elements {
        Elements::Strings(strings) => {
            let texts: Vec<String> =
                strings.iter().map(|one| String::from_utf8(one.clone()).unwrap()).collect();
            Ok(Tensor::from_string_array((extents, &texts[..])).map_err(say)?.into_dyn())
        }
        Elements::Fixed(element, bytes) => {
            let found = TYPES.iter().find(|(number, _)| number == element);
            let &(_, element) = found.ok_or_else(|| format!("element type {element}"))?;
            let Some(bits) = bits(element) else { return raw::tensor(element, &extents, bytes).map_err(say) };
            let mask = (1_u8 << bits) - 1;
            let pack = |few: &[u8]| few.iter().rev().fold(0, |byte, one| byte << bits | (one & mask));
            let packed: Vec<u8> = bytes.chunks(8 / bits).map(pack).collect();
            raw::tensor(element, &extents, &packed).map_err(say)
        }
    }
}

fn from_value(value: &DynValue) -> Fallible<Value> {
    match value.dtype() {
        ValueType::Tensor { .. } => from_tensor(value).map(Value::Array),
        ValueType::Sequence(_) => {
            let items = value.try_extract_sequence::<DynTensorValueType>().map_err(say)?;
            let items = items.into_iter().map(|item| from_tensor(&item.into_dyn()));
            items.collect::<Fallible<_>>().map(Value::Sequence)
        }
        other => Err(format!("an output that is a {other}")),
    }
}

fn from_tensor(value: &DynValue) -> Fallible<Array> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(format!("an item that is a {}", value.dtype()));
    };
    let shape: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
    if *ty == TensorElementType::String {
        let strings = value.try_extract_strings().map_err(say)?.1;
        let strings = strings.into_iter().map(String::into_bytes).collect();
        return Ok(Array { shape, elements: Elements::Strings(strings) });
    }
    let found = TYPES.iter().find(|(_, element)| element == ty);
    let &(number, element) = found.ok_or_else(|| format!("an output of {ty}"))?;
    let bytes = raw::bytes(value).map_err(say)?;
    let Some(bits) = bits(element) else {
        return Ok(Array { shape, elements: Elements::Fixed(number, bytes.to_vec()) });
    };
    let signed = matches!(element, TensorElementType::Int4 | TensorElementType::Int2);
    let count = shape.iter().product::<u64>() as usize;
    let unpacked = (0..count).map(|at| {
        let one = bytes[at * bits / 8] >> (at * bits % 8) << (8 - bits);
        if signed { (one as i8 >> (8 - bits)) as u8 } else { one >> (8 - bits) }
    });
    Ok(Array { shape, elements: Elements::Fixed(number, unpacked.collect()) })
}
