//! A request as serde reads it, held against what the host read in the same text.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use selvedge_host::oip::request::{InferRequest, Parameter};
use selvedge_host::tensor::{NamedTensor, Tensor};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::numbers;

#[derive(Deserialize)]
struct Twin<'a> {
    id: Option<String>,
    #[serde(default)]
    parameters: BTreeMap<String, Value>,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    #[serde(default)]
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Input<'a> {
    name: String,
    datatype: String,
    shape: Vec<u64>,
    #[serde(default)]
    parameters: BTreeMap<String, Value>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
}

/// Whether a text has words in it, in a string or outside of one, which stand for numbers that JSON has not.
pub fn has_words(text: &[u8]) -> bool {
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part == word);
    has(b"NaN") || has(b"Infinity")
}

/// The host took this text for a request: serde takes it, too, and finds the same. A text with bare words is no
/// JSON and is left to others.
pub fn check(text: &[u8], request: &InferRequest) {
    if serde_json::from_slice::<IgnoredAny>(text).is_err() {
        assert!(has_words(text), "taken, and no JSON");
        return;
    }
    let twin: Twin<'_> = serde_json::from_slice(text).expect("a request that was taken is one for serde");
    assert_eq!(twin.id, request.id);
    check_parameters(&twin.parameters, &request.parameters);
    let names: Vec<_> = twin.outputs.iter().map(|output| &output.name).collect();
    assert_eq!(names, request.outputs.iter().map(|output| &output.name).collect::<Vec<_>>());
    assert_eq!(twin.inputs.len(), request.inputs.len());
    for (twin, input) in twin.inputs.iter().zip(&request.inputs) {
        check_input(twin, input);
    }
}

fn check_parameters(twin: &BTreeMap<String, Value>, parameters: &BTreeMap<String, Parameter>) {
    assert_eq!(twin.keys().collect::<Vec<_>>(), parameters.keys().collect::<Vec<_>>());
    for (value, parameter) in twin.values().zip(parameters.values()) {
        let same = match parameter {
            Parameter::Boolean(flag) => value.as_bool() == Some(*flag),
            Parameter::Integer(number) => value.as_i64() == Some(*number) || *number == 0,
            Parameter::Unsigned(number) => value.as_u64() == Some(*number),
            // serde_json's own numbers may be off by a digit.
            Parameter::Number(number) => value.as_f64().is_some_and(|other| {
                (other - number).abs() <= number.abs() * 1e-15 || (other - number).abs() < 1e-300
            }),
            Parameter::Text(text) => value.as_str() == Some(text),
        };
        assert!(same, "{value} read as {parameter:?}");
    }
}

fn check_input(twin: &Input<'_>, input: &NamedTensor) {
    let tensor = &input.tensor;
    assert_eq!((&twin.name, &*twin.datatype), (&input.name, tensor.datatype().name()));
    assert_eq!(twin.shape, tensor.shape());
    // Those in binary have none.
    let Some(data) = twin.data else { return };
    if let Ok(value) = serde_json::from_str::<Value>(data.get()) {
        let flat = value
            .as_array()
            .is_some_and(|all| all.len() == tensor.elements() && !all.iter().any(Value::is_array));
        assert!(flat || is_nested(&value, &twin.shape), "{} for shape {:?}", data.get(), twin.shape);
    }
    if tensor.as_strings().is_some() {
        let base64 = twin.parameters.get("encoding").is_some_and(|encoding| encoding == "base64");
        return check_strings(data.get(), base64, tensor);
    }
    let tokens = data.get().split([' ', '\t', '\r', '\n', '[', ']', ',']).filter(|token| !token.is_empty());
    let size = tensor.datatype().size().expect("elements of fixed size");
    let elements = tensor.as_fixed().unwrap_or_default().chunks_exact(size);
    assert_eq!(tokens.clone().count(), elements.len());
    tokens.zip(elements).for_each(|(token, element)| numbers::check(tensor.datatype(), token, element));
}

fn is_nested(value: &Value, shape: &[u64]) -> bool {
    match (shape, value) {
        ([], value) => !value.is_array(),
        ([extent, inner @ ..], Value::Array(values)) => {
            values.len() as u64 == *extent && values.iter().all(|value| is_nested(value, inner))
        }
        _ => false,
    }
}

fn check_strings(data: &str, base64: bool, tensor: &Tensor) {
    let mut found = Vec::new();
    flatten(serde_json::from_str(data).expect("strings are JSON"), &mut found);
    let read = tensor.as_strings().into_iter().flat_map(|strings| strings.iter());
    assert_eq!(found.len(), tensor.elements());
    for (text, element) in found.iter().zip(read) {
        let expected = if base64 { BASE64.decode(text).expect("base64") } else { text.clone().into_bytes() };
        assert_eq!(expected, element);
    }
}

fn flatten(value: Value, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.into_iter().for_each(|value| flatten(value, found)),
        Value::String(text) => found.push(text),
        other => panic!("{other} read as an element of BYTES"),
    }
}
