//! The JSON form of an answer, and the JSON part of a binary one.
//!
//! Data is flat. Numbers are written as the shortest digits that read back the same; NaN and
//! infinity as the bare words `NaN`, `Infinity` and `-Infinity`, which is what the protocol's other
//! servers write and its clients read (and no JSON). BYTES are strings, or base64 where that was
//! asked or an element is not UTF-8; then the output says so in its `parameters`.

use super::answer::{AnsweredOutput, Answerer, InferAnswer};
use super::binary;
use super::elements::{self, Encoding, encoding_of};
use super::request::{Form, Parameters};

impl Answerer {
    /// A package of this name and version.
    pub fn new(name: String, version: String, provenance: Parameters) -> Self {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        before.extend_from_slice(b"{\"model_name\":");
        json(&name, &mut before);
        before.extend_from_slice(b",\"model_version\":");
        json(&version, &mut before);
        if !provenance.is_empty() {
            after.extend_from_slice(b",\"parameters\":");
            json(&provenance, &mut after);
        }
        after.extend_from_slice(b",\"outputs\":[");
        Self { name, version, provenance, json: [before, after] }
    }
}

/// Writes an answer; of its binary outputs how many bytes they take.
pub fn write(answer: &InferAnswer) -> Vec<u8> {
    let in_json = |output: &&AnsweredOutput| output.form != Form::Binary;
    let bytes: usize =
        answer.outputs.iter().filter(in_json).map(|output| output.tensor.tensor.byte_length()).sum();
    let [before, after] = &answer.by.json;
    let mut text = Vec::with_capacity(256 + before.len() + after.len() + bytes.saturating_mul(3));
    text.extend_from_slice(before);
    if let Some(id) = &answer.id {
        text.extend_from_slice(b",\"id\":");
        json(id, &mut text);
    }
    text.extend_from_slice(after);
    for (index, output) in answer.outputs.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        write_output(output, &mut text);
    }
    text.extend_from_slice(b"]}");
    text
}

fn write_output(output: &AnsweredOutput, text: &mut Vec<u8>) {
    let tensor = &output.tensor.tensor;
    text.extend_from_slice(b"{\"name\":");
    json(&output.tensor.name, text);
    text.extend_from_slice(b",\"datatype\":\"");
    text.extend_from_slice(tensor.datatype().name().as_bytes());
    text.extend_from_slice(b"\",\"shape\":");
    json(tensor.shape(), text);
    let encoding = match output.form {
        Form::Json(asked) => encoding_of(tensor, asked),
        Form::Binary => {
            text.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            json(&binary::length(tensor), text);
            text.extend_from_slice(b"}}");
            return;
        }
    };
    if encoding == Encoding::Base64 {
        text.extend_from_slice(b",\"parameters\":{\"encoding\":\"base64\"}");
    }
    text.extend_from_slice(b",\"data\":");
    elements::write(tensor, encoding, text);
    text.push(b'}');
}

fn json<T: serde::Serialize + ?Sized>(value: &T, text: &mut Vec<u8>) {
    // Neither strings and numbers nor a vector can fail.
    drop(serde_json::to_writer(text, value));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::oip::request::Parameter;
    use crate::tensor::{NamedTensor, Strings, Tensor};
    use selvedge_package::tensor::Datatype;

    #[test]
    fn writes_what_the_protocol_says() {
        let scalar = Tensor::fixed(Datatype::Fp32, [], 0.5_f32.to_le_bytes().to_vec()).unwrap();
        let bytes = Tensor::bytes([2], Strings::from_iter([&b"a"[..], &[0xff]])).unwrap();
        let answer = InferAnswer {
            by: Arc::new(Answerer::new(
                "m".to_owned(),
                "1.0.0".to_owned(),
                [("selvedge_package".to_owned(), Parameter::Text("sha256:0".to_owned()))].into(),
            )),
            id: Some("\"7\"".to_owned()),
            parameters: Parameters::new(),
            outputs: vec![
                AnsweredOutput { tensor: NamedTensor::new("y", scalar), form: Form::default() },
                AnsweredOutput { tensor: NamedTensor::new("z", bytes), form: Form::default() },
            ],
        };
        assert_eq!(
            String::from_utf8(write(&answer)).unwrap(),
            concat!(
                r#"{"model_name":"m","model_version":"1.0.0","id":"\"7\"","#,
                r#""parameters":{"selvedge_package":"sha256:0"},"outputs":["#,
                r#"{"name":"y","datatype":"FP32","shape":[],"data":[0.5]},"#,
                r#"{"name":"z","datatype":"BYTES","shape":[2],"parameters":{"encoding":"base64"},"#,
                r#""data":["YQ==","/w=="]}]}"#
            )
        );
    }
}
