//! `ModelInferRequest`: a message becomes the request that the JSON form gives, too.
//!
//! First the message's parts are told apart in place, and bounded (the names of a [`Head`] before the
//! package is known, the rest within its limits); elements are made of them only when memory for those is held.

mod head;
mod input;
mod place;
#[cfg(test)]
mod tests;

use bytes::Bytes;
pub use head::Head;
use input::{Described, Problem};
pub use place::raw_begins;
use selvedge_package::tensor::Datatype;

use super::Wrong;
use super::contents;
use super::parameters::{Place, parameters};
use crate::oip::binary;
use crate::oip::refusal::Refusal;
use crate::oip::request::{Form, InferRequest, Limits, Parameters, RequestedOutput};
use crate::oip::tensor_json::offered;
use crate::protobuf::{Fault, Fields, Value};
use crate::tensor::{NamedTensor, Tensor};

/// Most bytes of a message beside its elements: names, shapes, parameters, and what nobody knows. They are read one
/// by one, whatever the package allows its tensors, and on the thread that serves.
pub const BESIDE: usize = 1 << 20;

/// Longest name of a model or a version that is looked for.
const MOST_NAME: usize = 1024;

/// A request whose elements are still where they came.
#[derive(Debug)]
pub struct Parts {
    id: Option<String>,
    parameters: Parameters,
    inputs: Vec<Described>,
    outputs: Vec<RequestedOutput>,
    raw: Vec<Bytes>,
    /// Bytes read so far that are no elements.
    beside: usize,
}

impl Parts {
    /// Tells the parts of a message apart, within the limits of the package that is asked.
    pub fn of(message: &Bytes, limits: &Limits) -> Result<Self, Refusal> {
        let mut parts = Self {
            id: None,
            parameters: Parameters::new(),
            inputs: vec![],
            outputs: vec![],
            raw: vec![],
            beside: 0,
        };
        let mut fields = Fields::new(message);
        let mut end = 0;
        while let Some(field) = fields.next() {
            let (number, value) = field?;
            let elements = match value {
                // An input is counted while it is read.
                Value::Bytes(bytes) if matches!(number, 5 | 7) => bytes.len(),
                _ => 0,
            };
            parts.beside += fields.at() - end - elements;
            if parts.beside > BESIDE {
                return Err(too_much_beside());
            }
            end = fields.at();
            let wrong = |what: &str, fault: Fault| Refusal::Message(format!("{what}: {fault}"));
            match number {
                3 => {
                    let id = value.text(limits.name_bytes).map_err(|fault| wrong("the id", fault))?;
                    parts.id = (!id.is_empty()).then(|| id.to_owned());
                }
                4 => parameters(&mut parts.parameters, value, Place::Request, limits)?,
                5 => parts.input(value, message, limits)?,
                6 => parts.output(value, limits)?,
                7 => {
                    more("raw_input_contents", parts.raw.len(), limits)?;
                    let bytes = value.bytes().map_err(|fault| wrong("raw_input_contents", fault))?;
                    parts.raw.push(message.slice_ref(bytes));
                }
                _ => {}
            }
        }
        offered(&parts.parameters)?;
        if !parts.raw.is_empty() && parts.raw.len() != parts.inputs.len() {
            let (raw, inputs) = (parts.raw.len(), parts.inputs.len());
            return Err(Refusal::Message(format!(
                "{raw} raw_input_contents came for {inputs} inputs: one for each, in their order, or none"
            )));
        }
        Ok(parts)
    }

    fn input(&mut self, value: Value<'_>, message: &Bytes, limits: &Limits) -> Result<(), Refusal> {
        let index = self.inputs.len();
        more("inputs", index, limits)?;
        let mut name = None;
        let described =
            self.described(value, message, limits, &mut name).map_err(|problem| match problem {
                Problem::Refused(refusal) => refusal,
                Problem::Wrong(problem) => {
                    Refusal::Tensor { what: "input", index, name: name.map(str::to_owned), problem }
                }
            })?;
        if self.inputs.iter().any(|input| input.name == described.name) {
            return Err(Refusal::Twice { what: "input", name: described.name });
        }
        self.inputs.push(described);
        Ok(())
    }

    fn output(&mut self, value: Value<'_>, limits: &Limits) -> Result<(), Refusal> {
        let index = self.outputs.len();
        more("outputs", index, limits)?;
        let wrong = |problem| Refusal::Tensor { what: "output", index, name: None, problem };
        let fault = |fault: Fault| wrong(fault.to_string());
        let (mut name, mut own) = ("", Parameters::new());
        for field in Fields::new(value.bytes().map_err(fault)?) {
            match field.map_err(fault)? {
                (1, value) => name = value.text(limits.name_bytes).map_err(fault)?,
                (2, value) => parameters(&mut own, value, Place::Output(index), limits)?,
                _ => {}
            }
        }
        offered(&own)?;
        if name.is_empty() {
            return Err(wrong("`name` is missing".to_owned()));
        }
        if self.outputs.iter().any(|output| output.name == name) {
            return Err(Refusal::Twice { what: "output", name: name.to_owned() });
        }
        self.outputs.push(RequestedOutput { name: name.to_owned(), form: Form::Binary });
        Ok(())
    }

    /// Bytes that are read one by one, or left: all but those of raw contents.
    pub fn length(&self) -> usize {
        let contents = self.inputs.iter().filter_map(|input| input.contents.as_ref());
        contents.map(Bytes::len).fold(self.beside, usize::saturating_add)
    }

    /// Bytes of raw contents.
    pub fn raw_length(&self) -> usize {
        self.raw.iter().map(Bytes::len).fold(0, usize::saturating_add)
    }

    /// Whether its elements stand in the message as bytes. (A request without inputs says nothing of it.)
    pub fn is_raw(&self) -> bool {
        !self.raw.is_empty() || self.inputs.iter().all(|input| input.contents.is_none())
    }

    /// Bytes that its tensors take beside the message.
    pub fn beside(&self, limits: &Limits) -> Result<usize, Refusal> {
        let mut bytes = 0_usize;
        for (index, input) in self.inputs.iter().enumerate() {
            let came = self.bytes(index);
            let of_bytes = input.datatype == Datatype::Bytes;
            let copied = match &input.contents {
                // Elements of fixed size stay where they are, or are copied where they are not aligned.
                None if !of_bytes => Ok(came),
                _ => contents::takes(input.datatype, &input.shape, came, limits.tensor_bytes),
            };
            bytes = bytes.saturating_add(copied.map_err(|problem| self.wrong(index, problem))?);
        }
        // More is refused when they are made.
        Ok(bytes.min(limits.tensor_bytes))
    }

    fn bytes(&self, index: usize) -> usize {
        self.raw.get(index).or(self.inputs[index].contents.as_ref()).map_or(0, Bytes::len)
    }

    fn wrong(&self, index: usize, problem: String) -> Refusal {
        Refusal::Tensor { what: "input", index, name: Some(self.inputs[index].name.clone()), problem }
    }

    /// Makes its tensors.
    pub fn request(mut self, limits: &Limits) -> Result<InferRequest, Refusal> {
        let mut inputs = Vec::with_capacity(self.inputs.len());
        let mut bytes = 0_usize;
        for index in 0..self.inputs.len() {
            let tensor =
                self.tensor(index, limits.tensor_bytes).map_err(|problem| self.wrong(index, problem))?;
            bytes = bytes.saturating_add(tensor.footprint());
            if bytes > limits.tensor_bytes {
                return Err(Refusal::TooLarge { bytes, limit: limits.tensor_bytes });
            }
            inputs.push(NamedTensor::new(std::mem::take(&mut self.inputs[index].name), tensor));
        }
        let Self { id, parameters, outputs, .. } = self;
        Ok(InferRequest { id, parameters, inputs, outputs, form: Form::Binary })
    }

    fn tensor(&self, index: usize, limit: usize) -> Result<Tensor, Wrong> {
        let Described { datatype, shape, contents, .. } = &self.inputs[index];
        match (self.raw.get(index), contents) {
            (Some(_), Some(contents)) if !contents.is_empty() => {
                Err("it has both `contents` and `raw_input_contents`: one of them".to_owned())
            }
            (Some(raw), _) => binary::read(*datatype, shape, raw.clone(), limit),
            (None, contents) => {
                contents::read(*datatype, shape, contents.as_deref().unwrap_or_default(), limit)
            }
        }
    }
}

#[cold]
fn too_much_beside() -> Refusal {
    Refusal::TooMany { what: "bytes beside the tensors' elements", limit: BESIDE }
}

/// There may be one more.
fn more(what: &'static str, have: usize, limits: &Limits) -> Result<(), Refusal> {
    if have >= limits.tensors {
        return Err(Refusal::TooMany { what, limit: limits.tensors });
    }
    Ok(())
}
