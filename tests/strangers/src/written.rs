//! A request written again: as JSON in two ways, as JSON with bytes behind it, as a message of gRPC.

use bytes::Bytes;
use selvedge_host::grpc::{contents, parameters};
use selvedge_host::oip::binary::{self, Following};
use selvedge_host::oip::elements::{self, Encoding, encoding_of};
use selvedge_host::oip::request::{Form, InferRequest};
use selvedge_host::protobuf::Message;
use selvedge_host::tensor::{Data, NamedTensor, Tensor};
use serde_json::{Value, json};

/// How data stands in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One list, after all that is needed to read it.
    Flat,
    /// Lists in lists as the shape says, and before all else.
    Nested,
}

/// As JSON from end to end.
pub fn json(request: &InferRequest, layout: Layout) -> Vec<u8> {
    let inputs = request.inputs.iter().map(|input| input_json(input, layout)).collect();
    whole(request, inputs)
}

/// As JSON whose inputs are bytes behind it.
pub fn binary(request: &InferRequest) -> (Vec<u8>, Vec<u8>) {
    let mut following = Vec::new();
    let mut inputs = Vec::new();
    for NamedTensor { name, tensor } in &request.inputs {
        inputs.push(format!(
            r#"{{"name":{},"datatype":"{}","shape":{:?},"parameters":{{"binary_data_size":{}}}}}"#,
            json!(name),
            tensor.datatype(),
            tensor.shape(),
            binary::length(tensor)
        ));
        following.extend(raw(tensor));
    }
    (whole(request, inputs), following)
}

/// What follows the JSON, at an address for elements of any type or one byte behind such a one.
pub fn following(bytes: &[u8], skipped: usize) -> Following {
    let shifted = [&vec![0; skipped], bytes].concat();
    Following::new(Bytes::from(shifted).slice(skipped..))
}

fn raw(tensor: &Tensor) -> Vec<u8> {
    match tensor.data() {
        Data::Fixed(buffer) => buffer.to_vec(),
        Data::Bytes(strings) => {
            let mut bytes = Vec::new();
            binary::write(strings, &mut bytes).expect("short elements");
            bytes
        }
    }
}

fn whole(request: &InferRequest, inputs: Vec<String>) -> Vec<u8> {
    let outputs: Vec<Value> = request
        .outputs
        .iter()
        .map(|output| {
            let parameters = match output.form {
                Form::Binary => json!({"binary_data": true}),
                Form::Json(Encoding::Text) => json!({"binary_data": false}),
                Form::Json(Encoding::Base64) => json!({"binary_data": 0, "encoding": "base64"}),
            };
            json!({"parameters": parameters, "name": output.name})
        })
        .collect();
    let mut fields = vec![format!(r#""inputs":[{}]"#, inputs.join(","))];
    fields.extend(request.id.as_ref().map(|id| format!(r#""id":{}"#, json!(id))));
    fields.push(format!(r#""outputs":{}"#, json!(outputs)));
    fields.push(format!(r#""parameters":{}"#, json!(request.parameters)));
    format!("{{{}}}", fields.join(", ")).into_bytes()
}

fn input_json(input: &NamedTensor, layout: Layout) -> String {
    let NamedTensor { name, tensor } = input;
    let encoding = encoding_of(tensor, Encoding::Text);
    let mut flat = Vec::new();
    elements::write(tensor, encoding, &mut flat);
    let flat = String::from_utf8(flat).expect("what is written is text");
    let (name, shape, datatype) = (json!(name), tensor.shape(), tensor.datatype());
    let encoding = if encoding == Encoding::Base64 { "base64" } else { "text" };
    let encoding = format!(r#""parameters":{{"encoding":"{encoding}"}}"#);
    match layout {
        Layout::Flat => {
            format!(r#"{{"name":{name},"shape":{shape:?},"datatype":"{datatype}",{encoding},"data":{flat}}}"#)
        }
        Layout::Nested => {
            let data = nested(&flat, shape);
            format!(
                "{{\"data\" :\t{data} , \"datatype\":\"{datatype}\",\r\n\"shape\":{shape:?},{encoding},\"name\":{name}}}"
            )
        }
    }
}

/// Elements that stand in one list, nested as `shape`.
fn nested(flat: &str, shape: &[u64]) -> String {
    // Lists of nothing are as many as the extents before say.
    let lists = shape.iter().try_fold(1_u64, |product, extent| product.checked_mul((*extent).max(1)));
    if lists.is_none_or(|lists| lists > 4096) {
        return flat.to_owned();
    }
    let mut elements = elements_of(flat).into_iter();
    let mut text = String::new();
    nest(&mut elements, shape, &mut text);
    text
}

fn nest<'a>(elements: &mut impl Iterator<Item = &'a str>, shape: &[u64], text: &mut String) {
    let [extent, inner @ ..] = shape else {
        return text.push_str(elements.next().expect("as many as the shape says"));
    };
    text.push('[');
    for index in 0..*extent {
        if index > 0 {
            text.push_str(", ");
        }
        nest(elements, inner, text);
    }
    text.push(']');
}

fn elements_of(flat: &str) -> Vec<&str> {
    let inside = flat.trim_start_matches('[').trim_end_matches(']');
    let (mut found, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                found.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&inside[start..]);
    found.retain(|element| !element.is_empty());
    found
}

/// How elements stand in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// As bytes behind the inputs.
    Raw,
    /// As numbers and texts.
    Typed,
}

/// As a message of gRPC; `None` where a type has no form in it.
pub fn message(request: &InferRequest, form: Elements) -> Option<Vec<u8>> {
    let mut message = Message::default();
    message.bytes(1, "m").bytes(3, request.id.as_deref().unwrap_or_default());
    parameters::write(&request.parameters, 4, &mut message);
    for NamedTensor { name, tensor } in &request.inputs {
        if form == Elements::Typed {
            contents::field(tensor.datatype())?;
        }
        message.message(5, |input| {
            input.bytes(1, name).bytes(2, tensor.datatype().name());
            input.packed(3, tensor.shape().iter().copied());
            if form == Elements::Typed {
                input.message(5, |elements| contents::write(tensor, elements));
            }
        });
    }
    for output in &request.outputs {
        message.message(6, |asked| {
            asked.bytes(1, &output.name);
        });
    }
    if form == Elements::Raw {
        for input in &request.inputs {
            message.part(7, raw(&input.tensor));
        }
    }
    Some(message.into_bytes())
}
