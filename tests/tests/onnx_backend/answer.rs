//! Answers, as a client reads them, and how they are compared: bit by bit, but for NaN.

use base64::Engine as _;
use half::{bf16, f16};
use selvedge_host::tensor::{NamedTensor, Strings, Tensor};
use selvedge_package::tensor::Datatype;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    outputs: Vec<Output<'a>>,
}

#[derive(Deserialize)]
struct Output<'a> {
    name: String,
    datatype: Datatype,
    shape: Vec<u64>,
    /// Elements as they stand: serde's own numbers are not exact to the last bit.
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

/// The outputs of an answer in JSON.
pub fn from_json(text: &str) -> Result<Vec<NamedTensor>, String> {
    let quoted = quoted(text);
    let answer: Answer = serde_json::from_str(&quoted).map_err(|error| format!("{error}: {text:.300}"))?;
    let named = |output: Output| {
        let tensor =
            tensor(&output).ok_or_else(|| format!("`{}` is unreadable: {text:.300}", output.name))?;
        Ok(NamedTensor::new(output.name, tensor))
    };
    answer.outputs.into_iter().map(named).collect()
}

/// The bare words for what is no number as strings. No name of a case has such a word in it, and BYTES are
/// in base64, where one that is quoted would not be read any more.
fn quoted(text: &str) -> String {
    let words = text.replace("NaN", "\"NaN\"").replace("Infinity", "\"Infinity\"");
    words.replace("-\"Infinity\"", "\"-Infinity\"")
}

fn tensor(output: &Output) -> Option<Tensor> {
    let texts = output.data.iter().map(|element| element.get().trim_matches('"'));
    let shape = output.shape.clone();
    if output.datatype == Datatype::Bytes {
        let decode = |text| base64::engine::general_purpose::STANDARD.decode(text).ok();
        let strings: Vec<Vec<u8>> = texts.map(decode).collect::<Option<_>>()?;
        return Tensor::bytes(shape, Strings::from_iter(strings)).ok();
    }
    let mut bytes = Vec::new();
    for text in texts {
        element(output.datatype, text, &mut bytes)?;
    }
    Tensor::fixed(output.datatype, shape, bytes).ok()
}

fn element(datatype: Datatype, text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    let size = datatype.size()?;
    // Rust reads `NaN`, `Infinity` and `-Infinity`, too.
    let real = || text.parse::<f64>().ok();
    match datatype {
        Datatype::Bool => bytes.push(text.parse::<bool>().ok()?.into()),
        Datatype::Fp16 => bytes.extend(f16::from_f64(real()?).to_le_bytes()),
        Datatype::Bf16 => bytes.extend(bf16::from_f64(real()?).to_le_bytes()),
        Datatype::Fp32 => bytes.extend(text.parse::<f32>().ok()?.to_le_bytes()),
        Datatype::Fp64 => bytes.extend(real()?.to_le_bytes()),
        Datatype::Uint64 => bytes.extend(text.parse::<u64>().ok()?.to_le_bytes()),
        _ => bytes.extend(&text.parse::<i64>().ok()?.to_le_bytes()[..size]),
    }
    Some(())
}

#[derive(Deserialize)]
struct BinaryAnswer {
    outputs: Vec<BinaryOutput>,
}

#[derive(Deserialize)]
struct BinaryOutput {
    name: String,
    datatype: Datatype,
    shape: Vec<u64>,
    parameters: BinarySize,
}

#[derive(Deserialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// The elements as binary data has them.
pub fn to_bytes(tensor: &Tensor) -> Vec<u8> {
    let Some(strings) = tensor.as_strings() else { return tensor.as_fixed().unwrap_or_default().to_vec() };
    strings.iter().flat_map(|one| [&(one.len() as u32).to_le_bytes(), one].concat()).collect()
}

/// The outputs of an answer with binary data.
pub fn from_binary(head: &str, mut tail: &[u8]) -> Result<Vec<NamedTensor>, String> {
    let answer: BinaryAnswer = serde_json::from_str(head).map_err(|error| format!("{error}: {head:.300}"))?;
    let mut outputs = Vec::new();
    for BinaryOutput { name, datatype, shape, parameters } in answer.outputs {
        let bytes = tail.split_off(..parameters.binary_data_size).ok_or("its bytes are too few")?;
        let tensor = match datatype {
            Datatype::Bytes => Tensor::bytes(shape, strings(bytes).ok_or("lengths that do not fit")?),
            _ => Tensor::fixed(datatype, shape, bytes),
        };
        outputs.push(NamedTensor::new(name, tensor.map_err(|error| error.to_string())?));
    }
    if tail.is_empty() { Ok(outputs) } else { Err(format!("{} bytes are left", tail.len())) }
}

fn strings(mut bytes: &[u8]) -> Option<Strings> {
    let mut strings = Vec::new();
    while !bytes.is_empty() {
        let length = bytes.split_off(..4)?.try_into().map(u32::from_le_bytes).ok()?;
        strings.push(bytes.split_off(..usize::try_from(length).ok()?)?);
    }
    Some(Strings::from_iter(strings))
}

/// Whether the outputs are those expected.
pub fn compare(actual: &[NamedTensor], expected: &[NamedTensor]) -> Result<(), String> {
    let names = |list: &[NamedTensor]| list.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    if names(actual) != names(expected) {
        return Err(format!("outputs {:?} instead of {:?}", names(actual), names(expected)));
    }
    for (NamedTensor { name, tensor: actual }, NamedTensor { tensor: expected, .. }) in
        actual.iter().zip(expected)
    {
        let kind = |tensor: &Tensor| (tensor.datatype(), tensor.shape().to_vec());
        if kind(actual) != kind(expected) {
            return Err(format!("`{name}` is {:?} instead of {:?}", kind(actual), kind(expected)));
        }
        let (found, wanted) = (elements(actual), elements(expected));
        if let Some(at) = (0..wanted.len()).find(|&at| found[at] != wanted[at]) {
            return Err(format!("`{name}`: element {at} is {:?} instead of {:?}", found[at], wanted[at]));
        }
    }
    Ok(())
}

/// The elements one by one; every NaN is the same.
fn elements(tensor: &Tensor) -> Vec<Vec<u8>> {
    if let Some(strings) = tensor.as_strings() {
        return strings.iter().map(<[u8]>::to_vec).collect();
    }
    let bytes = tensor.as_fixed().unwrap_or_default();
    let is_nan = |element: &[u8]| match (tensor.datatype(), element) {
        (Datatype::Fp16, &[a, b]) => f16::from_le_bytes([a, b]).is_nan(),
        (Datatype::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).is_nan(),
        (Datatype::Fp32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        (Datatype::Fp64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]).is_nan(),
        _ => false,
    };
    let one = |element: &[u8]| if is_nan(element) { b"NaN".to_vec() } else { element.to_vec() };
    bytes.chunks_exact(tensor.datatype().size().unwrap_or(1)).map(one).collect()
}
