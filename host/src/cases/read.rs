//! Case files. They come from a signed package and are read as if they did not: bounded, strict,
//! and held against the manifest, so that a case that compares nothing is refused.

use selvedge_package::manifest::{Manifest, Tolerance};
use selvedge_package::tensor::{Datatype, TensorSpec};
use selvedge_package::{FilePath, NameError};

use super::Case;
use crate::oip::check;
use crate::oip::elements;
use crate::oip::lexer::{JsonError, Lexer, Number};
use crate::oip::refusal::Refusal;
use crate::oip::request::Limits;
use crate::oip::tensor_json::{self, Beside, Content, Described, name, once};
use crate::tensor::{NamedTensor, Strings, Tensor};

/// Longest case file, in bytes.
pub const MAX_FILE: usize = 16 << 20;

/// Why a case file is none.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Too long.
    #[error("{0} bytes: at most {MAX_FILE} are allowed")]
    TooLong(usize),
    /// Not a case.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The name of a file is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file that it names cannot be read.
    #[error("{0}")]
    File(String),
    /// A file's bytes are not the tensor.
    #[error("`{file}` for `{tensor}`: {why}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The file.
        file: FilePath,
        /// What is wrong.
        why: String,
    },
    /// An output that the manifest does not have so.
    #[error("output `{name}`: {why}")]
    Output {
        /// The output.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Nothing would be compared.
    #[error("it names no outputs, so that it could not fail")]
    Empty,
}

impl From<JsonError> for ReadError {
    fn from(error: JsonError) -> Self {
        Self::Refused(error.into())
    }
}

/// Gives a file of the package.
pub type FileReader<'a> = &'a dyn Fn(&FilePath) -> Result<Vec<u8>, String>;

/// Reads a case file of the package that `manifest` describes.
pub fn parse(bytes: &[u8], manifest: &Manifest, files: FileReader<'_>) -> Result<Case, ReadError> {
    if bytes.len() > MAX_FILE {
        return Err(ReadError::TooLong(bytes.len()));
    }
    let limits = Limits::for_package(manifest.module.tensor_mib);
    let mut lexer = Lexer::from_body(bytes)?;
    let (mut title, mut inputs, mut outputs, mut allowed) = (None, None, None, None);
    lexer.object(|lexer, key| -> Result<(), ReadError> {
        match &*key {
            "name" => once("name", &mut title, name(lexer, &limits)?)?,
            "tolerance" => once("tolerance", &mut allowed, tolerance(lexer)?)?,
            "inputs" => {
                let list = tensors(lexer, "input", &limits, files)?;
                once("inputs", &mut inputs, list)?;
            }
            "outputs" => {
                let list = tensors(lexer, "output", &limits, files)?;
                once("outputs", &mut outputs, list)?;
            }
            other => return Err(lexer.error(format!("a case has no field `{other}`")).into()),
        }
        Ok(())
    })?;
    lexer.end()?;
    let case = Case {
        name: title.ok_or(Refusal::Missing("name"))?,
        inputs: inputs.ok_or(Refusal::Missing("inputs"))?,
        outputs: outputs.ok_or(Refusal::Missing("outputs"))?,
        tolerance: allowed,
    };
    check::inputs(&manifest.inputs, &case.inputs)?;
    check_outputs(&manifest.outputs, &case.outputs)?;
    Ok(case)
}

fn check_outputs(specs: &[TensorSpec], outputs: &[NamedTensor]) -> Result<(), ReadError> {
    for output in outputs {
        let wrong = |why| ReadError::Output { name: output.name.clone(), why };
        let spec = specs.iter().find(|spec| spec.name == output.name);
        let spec = spec.ok_or_else(|| wrong("the package has none of this name".to_owned()))?;
        let (datatype, shape) = (output.tensor.datatype(), output.tensor.shape());
        if spec.datatype != datatype || !check::fits(&spec.shape, shape) {
            return Err(wrong(format!(
                "the case expects {datatype} {shape:?}, the manifest says {} {:?}",
                spec.datatype, spec.shape
            )));
        }
    }
    if outputs.is_empty() { Err(ReadError::Empty) } else { Ok(()) }
}

fn tensors(
    lexer: &mut Lexer<'_>,
    what: &'static str,
    limits: &Limits,
    files: FileReader<'_>,
) -> Result<Vec<NamedTensor>, ReadError> {
    let mut list: Vec<NamedTensor> = Vec::new();
    lexer.array(|lexer, index| -> Result<(), ReadError> {
        if index == limits.tensors {
            return Err(Refusal::TooMany { what: "tensors", limit: limits.tensors }.into());
        }
        let described = tensor_json::read(lexer, what, index, Beside::Files, limits)?;
        if list.iter().any(|tensor| tensor.name == described.name) {
            return Err(Refusal::Twice { what, name: described.name }.into());
        }
        list.push(tensor(described, limits, files)?);
        Ok(())
    })?;
    Ok(list)
}

fn tensor(described: Described, limits: &Limits, files: FileReader<'_>) -> Result<NamedTensor, ReadError> {
    let Described { name, datatype, shape, content, .. } = described;
    let file: FilePath = match content {
        Content::Data(tensor) => return Ok(NamedTensor::new(name, tensor)),
        Content::File(file) => file.parse()?,
        // Not read so from a case file.
        Content::Binary(_) => return Err(Refusal::Missing("data").into()),
    };
    let wrong = |why| ReadError::Tensor { tensor: name.clone(), file: file.clone(), why };
    elements::count(&shape, datatype, limits.tensor_bytes).map_err(wrong)?;
    let bytes = files(&file).map_err(ReadError::File)?;
    let tensor = if datatype == Datatype::Bytes {
        Tensor::bytes(shape, Strings::from_iter([bytes]))
    } else {
        Tensor::fixed(datatype, shape, bytes)
    };
    let tensor = tensor.map_err(|error| wrong(error.to_string()))?;
    Ok(NamedTensor::new(name, tensor))
}

fn tolerance(lexer: &mut Lexer<'_>) -> Result<Tolerance, ReadError> {
    let (mut absolute, mut relative) = (None, None);
    lexer.object(|lexer, key| -> Result<(), ReadError> {
        let part = match &*key {
            "absolute" => &mut absolute,
            "relative" => &mut relative,
            other => return Err(lexer.error(format!("a tolerance has no field `{other}`")).into()),
        };
        let at = lexer.clone();
        let value = match lexer.number()? {
            Number::Integer(digits) | Number::Decimal(digits) => digits.parse().unwrap_or(f64::NAN),
            Number::NotFinite(value) => value,
        };
        if !(value.is_finite() && value >= 0.0) {
            return Err(at.error("a tolerance has to be finite and not negative").into());
        }
        Ok(once(&key, part, value)?)
    })?;
    Ok(Tolerance {
        absolute: absolute.ok_or(Refusal::Missing("absolute"))?,
        relative: relative.ok_or(Refusal::Missing("relative"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        serde_json::from_value(serde_json::json!({
            "format": 1, "name": "m", "version": "1.0.0", "release": 1,
            "models": [{"name": "m", "file": "m.onnx"}],
            "inputs": [
                {"name": "bytes", "datatype": "BYTES", "shape": [1]},
                {"name": "n", "datatype": "INT32", "shape": [-1]}
            ],
            "outputs": [
                {"name": "label", "datatype": "BYTES", "shape": [1]},
                {"name": "score", "datatype": "FP32", "shape": [1]}
            ],
            "acceptance": {"cases": ["cases/a.json"]}
        }))
        .unwrap()
    }

    fn read(text: &str) -> Result<Case, String> {
        let files = |path: &FilePath| match path.as_str() {
            "cases/a.pdf" => Ok(b"%PDF".to_vec()),
            "cases/n.bin" => Ok(vec![1, 0, 0, 0, 2, 0, 0, 0]),
            other => Err(format!("no `{other}`")),
        };
        parse(text.as_bytes(), &manifest(), &files).map_err(|error| error.to_string())
    }

    const INPUTS: &str = r#""inputs":[
        {"name":"bytes","datatype":"BYTES","shape":[1],"file":"cases/a.pdf"},
        {"name":"n","datatype":"INT32","shape":[2],"file":"cases/n.bin"}]"#;
    const SCORE: &str = r#"{"name":"score","datatype":"FP32","shape":[1],"data":[0.99]}"#;

    #[test]
    fn reads_files_and_data() {
        let case = read(&format!(
            r#"{{"name":"pdf",{INPUTS},"outputs":[{SCORE}],"tolerance":{{"absolute":0,"relative":1e-3}}}}"#
        ))
        .unwrap();
        assert_eq!(case.name, "pdf");
        assert_eq!(case.inputs[0].tensor.as_strings().unwrap().get(0), Some(&b"%PDF"[..]));
        assert_eq!(case.inputs[1].tensor.as_fixed().unwrap().len(), 8);
        assert_eq!(case.outputs[0].tensor.as_fixed(), Some(&0.99_f32.to_le_bytes()[..]));
        assert_eq!(case.tolerance, Some(Tolerance { absolute: 0.0, relative: 1e-3 }));
    }

    #[test]
    fn refuses_what_is_no_case() {
        let check = |text: &str, expected: &str| {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("", "expected an object");
        check("{}", "`name` is missing");
        check(r#"{"nam":"x"}"#, "a case has no field `nam`");
        check(&format!(r#"{{"name":"a",{INPUTS}}}"#), "`outputs` is missing");
        check(&format!(r#"{{"name":"a",{INPUTS},"outputs":[]}}"#), "could not fail");
        check(&format!(r#"{{"name":"a","inputs":[],"outputs":[{SCORE}]}}"#), "input `bytes` is missing");
        check(&format!(r#"{{"name":"a",{INPUTS},"outputs":[{SCORE},{SCORE}]}}"#), "comes twice");
        let output = |output: &str, expected| {
            check(&format!(r#"{{"name":"a",{INPUTS},"outputs":[{output}]}}"#), expected);
        };
        output(&SCORE.replace("score", "scores"), "`scores`: the package has none");
        output(&SCORE.replace("[1]", "[]"), "expects FP32 [], the manifest says FP32 [1]");
        output(&SCORE.replace("FP32", "FP64"), "expects FP64 [1]");
        output(&SCORE.replace("\"data\"", "\"datum\""), "a tensor has no field `datum`");
        output(&SCORE.replace(r#""data":[0.99]"#, r#""file":"../x""#), "is not a path");
        output(&SCORE.replace(r#""data":[0.99]"#, r#""file":"gone""#), "no `gone`");
        output(&SCORE.replace(r#""data":[0.99]"#, r#""file":"cases/n.bin""#), "takes 4 bytes, and 8 came");
        output(&SCORE.replace(r#""data""#, r#""file":"cases/n.bin","data""#), "exactly one");
        output(&SCORE.replace(r#","data":[0.99]"#, ""), "exactly one");
        for tolerance in ["-1", "NaN", "Infinity", "1e999"] {
            let text = format!(r#"{{"tolerance":{{"absolute":{tolerance},"relative":0}}}}"#);
            check(&text, "finite and not negative");
        }
    }
}
