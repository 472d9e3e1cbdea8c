//! Writes a case from inputs that were sent and outputs that came.

use serde_json::{Map, Value, json};

use crate::oip::elements::{self, Encoding};
use crate::oip::number::{Element, not_finite};
use crate::tensor::{NamedTensor, Tensor};

/// The case as the JSON of a case file. Numbers that JSON does not have are strings.
pub fn record(name: &str, inputs: &[NamedTensor], outputs: &[NamedTensor]) -> Value {
    let list = |tensors: &[NamedTensor]| tensors.iter().map(tensor).collect::<Vec<Value>>();
    json!({ "name": name, "inputs": list(inputs), "outputs": list(outputs) })
}

fn tensor(named: &NamedTensor) -> Value {
    let tensor = &named.tensor;
    let encoding = elements::encoding_of(tensor, Encoding::Text);
    let mut object = Map::new();
    object.insert("name".to_owned(), named.name.clone().into());
    object.insert("datatype".to_owned(), tensor.datatype().name().into());
    object.insert("shape".to_owned(), tensor.shape().into());
    if encoding == Encoding::Base64 {
        object.insert("parameters".to_owned(), json!({ "encoding": "base64" }));
    }
    object.insert("data".to_owned(), data(tensor, encoding));
    Value::Object(object)
}

fn data(tensor: &Tensor, encoding: Encoding) -> Value {
    use selvedge_package::tensor::Datatype;
    fn reals<T: Element + Into<f64>>(tensor: &Tensor) -> Value {
        let bytes = tensor.as_fixed().unwrap_or_default();
        let element = |bytes: &[u8]| -> Value {
            let value: f64 = T::from_bytes(bytes).into();
            if value.is_finite() { value.into() } else { not_finite(value).into() }
        };
        bytes.chunks_exact(size_of::<T::Bytes>()).map(element).collect()
    }
    match tensor.datatype() {
        Datatype::Fp16 => reals::<half::f16>(tensor),
        Datatype::Bf16 => reals::<half::bf16>(tensor),
        Datatype::Fp32 => reals::<f32>(tensor),
        Datatype::Fp64 => reals::<f64>(tensor),
        _ => {
            let mut text = Vec::new();
            elements::write(tensor, encoding, &mut text);
            // Integers, booleans and strings are JSON as they are written.
            serde_json::from_slice(&text).unwrap_or(Value::Null)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{compare, read};
    use crate::tensor::{Buffer, Strings};
    use selvedge_package::manifest::{Manifest, Tolerance};
    use selvedge_package::tensor::Datatype;

    #[test]
    fn what_is_recorded_reads_back_the_same() {
        let fp32 = Tensor::fixed(
            Datatype::Fp32,
            [2, 2],
            Buffer::from(&[0.1_f32, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE][..]),
        );
        let inputs = [
            NamedTensor::new("a", fp32.unwrap()),
            NamedTensor::new("b", Tensor::single([0xff, 0])),
            NamedTensor::new(
                "c",
                Tensor::fixed(Datatype::Uint64, [], u64::MAX.to_le_bytes().to_vec()).unwrap(),
            ),
            NamedTensor::new("d", Tensor::fixed(Datatype::Bool, [2], vec![0, 1]).unwrap()),
            NamedTensor::new("e", Tensor::bytes([2], Strings::from_iter(["x", "\"y\""])).unwrap()),
            NamedTensor::new("f", Tensor::fixed(Datatype::Fp16, [1], vec![1, 0]).unwrap()),
        ];
        let value = record("seeded", &inputs, &inputs);
        let specs: Vec<Value> = inputs
            .iter()
            .map(|input| {
                json!({"name": input.name, "datatype": input.tensor.datatype().name(), "shape": input.tensor.shape()})
            })
            .collect();
        let manifest: Manifest = serde_json::from_value(json!({
            "format": 1, "name": "m", "version": "1.0.0", "release": 1,
            "models": [{"name": "m", "file": "m.onnx"}], "inputs": specs, "outputs": specs,
            "acceptance": {"cases": ["cases/a.json"]}
        }))
        .unwrap();
        let case = read::parse(value.to_string().as_bytes(), &manifest, &|_| Err(String::new())).unwrap();
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        assert_eq!(compare::compare(&inputs, &case.inputs, exact), Ok(()));
        assert_eq!(compare::compare(&case.outputs, &inputs, exact), Ok(()));
    }
}
