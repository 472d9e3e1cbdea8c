//! The cases as `collect.py` writes them.

use serde::Deserialize;

use crate::value::{Array, Elements, Value};

/// A case: a model, and one or more sets of inputs with the outputs that belong to them.
#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    pub rtol: f64,
    pub atol: f64,
    pub model: Base64,
    /// Names of inputs and outputs, in the model's order.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub sets: Vec<Set>,
}

/// One of its sets; values in the order of names.
#[derive(Deserialize)]
pub struct Set {
    #[serde(deserialize_with = "values")]
    pub inputs: Vec<Option<Value>>,
    #[serde(deserialize_with = "values")]
    pub outputs: Vec<Option<Value>>,
}

/// Bytes in base64.
pub struct Base64(pub Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        let text = String::deserialize(from)?;
        base64::engine::general_purpose::STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Sequence { sequence: Vec<Written> },
    Strings { shape: Vec<u64>, strings: Vec<Base64> },
    Fixed { element: i32, shape: Vec<u64>, data: Base64 },
}

fn values<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Option<Value>>, D::Error> {
    let written = Vec::<Option<Written>>::deserialize(from)?;
    Ok(written.into_iter().map(|one| one.map(value)).collect())
}

fn value(written: Written) -> Value {
    match written {
        Written::Sequence { sequence } => Value::Sequence(sequence.into_iter().map(array).collect()),
        other => Value::Array(array(other)),
    }
}

fn array(written: Written) -> Array {
    match written {
        Written::Sequence { .. } => panic!("a sequence in a sequence"),
        Written::Strings { shape, strings } => {
            let strings = strings.into_iter().map(|one| one.0).collect();
            Array { shape, elements: Elements::Strings(strings) }
        }
        Written::Fixed { element, shape, data } => {
            Array { shape, elements: Elements::Fixed(element, data.0) }
        }
    }
}

/// Every case, a line of JSON each.
pub fn all() -> Vec<String> {
    let path = selvedge_tests::programs::set_up("setup/onnx-backend/cases.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// One of them.
pub fn parse(line: &str) -> Case {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {:.200}", line))
}
