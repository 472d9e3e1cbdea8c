//! One tensor of a request, an answer or a case file, in JSON.
//!
//! The fields come in any order. Data that stands before what it needs to be read is gone past
//! once and read when the object has ended.

use std::borrow::Cow;

use selvedge_package::tensor::Datatype;

use super::elements::{self, Encoding};
use super::lexer::{JsonError, Lexer, Number};
use super::refusal::Refusal;
use super::request::{Limits, NOT_OFFERED, Parameter, Parameters};
use crate::tensor::{MAX_RANK, Tensor};

/// A tensor as an object describes it.
#[derive(Debug)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Extents.
    pub shape: Vec<u64>,
    /// Its parameters.
    pub parameters: Parameters,
    /// Where its elements are.
    pub content: Content,
}

/// Where the elements of a described tensor are.
#[derive(Debug)]
pub enum Content {
    /// In its `data`.
    Data(Tensor),
    /// In a file (case files only).
    File(String),
    /// So many bytes after the JSON (binary requests only).
    Binary(u64),
}

/// What else than `data` may hold the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing: requests that are JSON from end to end.
    Nothing,
    /// Bytes after the JSON: binary requests.
    Binary,
    /// `file`: case files, in which unknown fields are refused too.
    Files,
}

#[derive(Default)]
struct Fields {
    name: Option<String>,
    datatype: Option<Datatype>,
    shape: Option<Vec<u64>>,
    parameters: Option<Parameters>,
    file: Option<String>,
    data: Option<Tensor>,
    /// Where data stands that could not be read yet.
    later: Option<usize>,
}

/// Reads one tensor, the `index`-th of its list of `what`.
pub fn read(
    lexer: &mut Lexer<'_>,
    what: &'static str,
    index: usize,
    beside: Beside,
    limits: &Limits,
) -> Result<Described, Refusal> {
    let mut fields = Fields::default();
    let result = fields.read(lexer, beside, limits).and_then(|()| fields.finish(lexer, beside, limits));
    result.map_err(|error| match error {
        // Where the JSON itself breaks, the tensor says more than the offset alone.
        Refusal::Json(error) => wrong(what, index, &fields, error.to_string()),
        Refusal::Missing(field) => wrong(what, index, &fields, format!("`{field}` is missing")),
        other => other,
    })
}

fn wrong(what: &'static str, index: usize, fields: &Fields, problem: String) -> Refusal {
    Refusal::Tensor { what, index, name: fields.name.clone(), problem }
}

impl Fields {
    fn read(&mut self, lexer: &mut Lexer<'_>, beside: Beside, limits: &Limits) -> Result<(), Refusal> {
        lexer.object(|lexer, key| match &*key {
            "name" => once("name", &mut self.name, name(lexer, limits)?),
            "datatype" => once("datatype", &mut self.datatype, datatype(lexer)?),
            "shape" => once("shape", &mut self.shape, shape(lexer)?),
            "parameters" => once("parameters", &mut self.parameters, parameters(lexer, limits)?),
            "file" if beside == Beside::Files => once("file", &mut self.file, name(lexer, limits)?),
            "data" if self.data.is_some() || self.later.is_some() => Err(twice("data")),
            "data" => {
                let ready = match (self.datatype, &self.shape) {
                    (Some(Datatype::Bytes), Some(_)) => self.parameters.is_some(),
                    (datatype, shape) => datatype.is_some() && shape.is_some(),
                };
                if ready {
                    self.data = Some(self.elements(lexer, limits)?);
                } else {
                    lexer.peek();
                    self.later = Some(lexer.at());
                    lexer.put_off()?;
                }
                Ok(())
            }
            other if beside == Beside::Files => {
                Err(lexer.error(format!("a tensor has no field `{other}`")).into())
            }
            _ => Ok(lexer.skip()?),
        })
    }

    fn elements(&self, lexer: &mut Lexer<'_>, limits: &Limits) -> Result<Tensor, Refusal> {
        let datatype = self.datatype.ok_or(Refusal::Missing("datatype"))?;
        let shape = self.shape.as_deref().ok_or(Refusal::Missing("shape"))?;
        let none = Parameters::new();
        let encoding = encoding(self.parameters.as_ref().unwrap_or(&none))?;
        Ok(elements::read(lexer, datatype, shape, encoding, limits.tensor_bytes)?)
    }

    fn finish(
        &mut self,
        lexer: &mut Lexer<'_>,
        beside: Beside,
        limits: &Limits,
    ) -> Result<Described, Refusal> {
        let parameters = self.parameters.get_or_insert_default();
        offered(parameters)?;
        encoding(parameters)?;
        let binary = binary_size(parameters, beside).map_err(|problem| lexer.error(problem))?;
        if self.name.is_none() {
            return Err(Refusal::Missing("name"));
        }
        if let Some(at) = self.later {
            let end = lexer.at();
            lexer.go_to(at);
            self.data = Some(self.elements(lexer, limits)?);
            lexer.go_to(end);
        }
        let content = match (self.data.take(), self.file.take(), binary) {
            (Some(data), None, None | Some(0)) => Content::Data(data),
            (None, Some(file), None) => Content::File(file),
            (None, None, Some(size)) => Content::Binary(size),
            (Some(_), _, Some(_)) => {
                return Err(lexer.error("it has both `data` and `binary_data_size`: one of them").into());
            }
            (None, None, None) if beside != Beside::Files => return Err(Refusal::Missing("data")),
            _ => return Err(lexer.error("exactly one of `data` and `file` is needed").into()),
        };
        Ok(Described {
            name: self.name.clone().ok_or(Refusal::Missing("name"))?,
            datatype: self.datatype.ok_or(Refusal::Missing("datatype"))?,
            shape: self.shape.take().ok_or(Refusal::Missing("shape"))?,
            parameters: self.parameters.take().unwrap_or_default(),
            content,
        })
    }
}

fn twice(field: &str) -> Refusal {
    Refusal::Twice { what: "field", name: field.to_owned() }
}

/// Sets a field that may come once.
pub fn once<T>(field: &str, slot: &mut Option<T>, value: T) -> Result<(), Refusal> {
    if slot.is_some() {
        return Err(twice(field));
    }
    *slot = Some(value);
    Ok(())
}

/// A name or an id, within its limit.
pub fn name(lexer: &mut Lexer<'_>, limits: &Limits) -> Result<String, JsonError> {
    let at = lexer.clone();
    let text = lexer.string()?;
    short(&at, text, limits)
}

fn short(at: &Lexer<'_>, text: Cow<'_, str>, limits: &Limits) -> Result<String, JsonError> {
    if text.len() > limits.name_bytes {
        return Err(at.error(format!("longer than {} bytes", limits.name_bytes)));
    }
    Ok(text.into_owned())
}

fn datatype(lexer: &mut Lexer<'_>) -> Result<Datatype, JsonError> {
    let at = lexer.clone();
    let text = lexer.string()?;
    parse_datatype(&text).ok_or_else(|| {
        let text: String = text.chars().take(40).collect();
        let known = DATATYPES.map(Datatype::name).join(", ");
        at.error(format!("`{text}` is no datatype; there are {known}"))
    })
}

/// All element types.
pub const DATATYPES: [Datatype; 14] = [
    Datatype::Bool,
    Datatype::Uint8,
    Datatype::Uint16,
    Datatype::Uint32,
    Datatype::Uint64,
    Datatype::Int8,
    Datatype::Int16,
    Datatype::Int32,
    Datatype::Int64,
    Datatype::Fp16,
    Datatype::Bf16,
    Datatype::Fp32,
    Datatype::Fp64,
    Datatype::Bytes,
];

/// The element type with the protocol's name `text`.
pub fn parse_datatype(text: &str) -> Option<Datatype> {
    DATATYPES.into_iter().find(|datatype| datatype.name() == text)
}

fn shape(lexer: &mut Lexer<'_>) -> Result<Vec<u64>, JsonError> {
    let mut shape = Vec::new();
    lexer.array(|lexer, index| {
        if index == MAX_RANK {
            return Err(lexer.error(format!("more than {MAX_RANK} dimensions")));
        }
        let at = lexer.clone();
        match lexer.number() {
            Ok(Number::Integer(digits)) if digits.parse::<u64>().is_ok() => {
                shape.extend(digits.parse::<u64>());
                Ok(())
            }
            _ => Err(at.error("an extent has to be a whole number from 0 up")),
        }
    })?;
    Ok(shape)
}

/// Parameters: an object of strings, numbers and booleans.
pub fn parameters(lexer: &mut Lexer<'_>, limits: &Limits) -> Result<Parameters, Refusal> {
    let mut parameters = Parameters::new();
    lexer.object(|lexer, key| {
        if parameters.len() == limits.parameters {
            return Err(Refusal::TooMany { what: "parameters", limit: limits.parameters });
        }
        let key = short(lexer, key, limits)?;
        let value = parameter(lexer)?;
        if parameters.insert(key.clone(), value).is_some() {
            return Err(Refusal::Twice { what: "parameter", name: key });
        }
        Ok(())
    })?;
    Ok(parameters)
}

fn parameter(lexer: &mut Lexer<'_>) -> Result<Parameter, JsonError> {
    match lexer.peek() {
        Some(b'"') => lexer.string().map(|text| Parameter::Text(text.into_owned())),
        Some(b't' | b'f') => lexer.boolean().map(Parameter::Boolean),
        Some(b'-' | b'0'..=b'9') => {
            let at = lexer.clone();
            match lexer.number()? {
                Number::Integer(digits) if digits.parse::<i64>().is_ok() => {
                    Ok(Parameter::Integer(digits.parse().unwrap_or_default()))
                }
                Number::Integer(digits) if digits.parse::<u64>().is_ok() => {
                    Ok(Parameter::Unsigned(digits.parse().unwrap_or_default()))
                }
                Number::Integer(digits) | Number::Decimal(digits) => match digits.parse::<f64>() {
                    Ok(value) if value.is_finite() => Ok(Parameter::Number(value)),
                    _ => Err(at.error("a number that does not fit")),
                },
                Number::NotFinite(_) => Err(at.error("a parameter has to be finite")),
            }
        }
        _ => Err(lexer.error("a parameter has to be a string, a number or a boolean")),
    }
}

/// Refuses parameters that change what a request means and are not offered.
pub fn offered(parameters: &Parameters) -> Result<(), Refusal> {
    for (name, extension) in NOT_OFFERED {
        match parameters.get(name) {
            // What clients send when they do not want it.
            None | Some(Parameter::Boolean(false) | Parameter::Integer(0)) => {}
            Some(_) => return Err(Refusal::NotOffered(format!("{extension} (parameter `{name}`)"))),
        }
    }
    Ok(())
}

/// The bytes of a tensor after the JSON. What is not 0 has no place where nothing follows the JSON.
fn binary_size(parameters: &Parameters, beside: Beside) -> Result<Option<u64>, &'static str> {
    match (parameters.get("binary_data_size"), beside) {
        (None, _) | (Some(Parameter::Boolean(false) | Parameter::Integer(0)), Beside::Nothing) => Ok(None),
        (Some(Parameter::Integer(size)), Beside::Binary) if *size >= 0 => Ok(Some(size.unsigned_abs())),
        (Some(_), Beside::Binary) => Err("`binary_data_size` has to be a whole number from 0 up"),
        (Some(_), Beside::Nothing) => {
            Err("`binary_data_size` is for requests with binary data: their header \
             Inference-Header-Content-Length says where the JSON ends")
        }
        (Some(_), Beside::Files) => Err("a case has no binary data: give `data` or `file`"),
    }
}

/// Whether parameters ask for binary data, with the parameter of this name.
pub fn binary(parameters: &Parameters, name: &'static str) -> Result<Option<bool>, Refusal> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Boolean(asked)) => Ok(Some(*asked)),
        // What some clients send for `false` and `true`.
        Some(Parameter::Integer(asked @ 0..=1)) => Ok(Some(*asked == 1)),
        Some(_) => Err(Refusal::NotOffered(format!("a `{name}` other than true and false"))),
    }
}

/// The encoding that parameters ask for.
pub fn encoding(parameters: &Parameters) -> Result<Encoding, Refusal> {
    match parameters.get("encoding") {
        None => Ok(Encoding::Text),
        Some(Parameter::Text(text)) if text == "text" => Ok(Encoding::Text),
        Some(Parameter::Text(text)) if text == "base64" => Ok(Encoding::Base64),
        Some(_) => Err(Refusal::NotOffered(
            "an encoding other than \"text\" and \"base64\" (parameter `encoding`)".to_owned(),
        )),
    }
}
