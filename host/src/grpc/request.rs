//! `ModelInferRequest`: a message becomes the request that the JSON form gives, too.
//!
//! First the message's parts are told apart in place, and bounded (the names of a [`Head`] before the
//! package is known, the rest within its limits); elements are made of them only when memory for those is held.

use bytes::Bytes;
use selvedge_package::tensor::Datatype;

use super::Wrong;
use super::contents;
use super::parameters::{Place, parameters};
use crate::oip::binary;
use crate::oip::refusal::Refusal;
use crate::oip::request::{Form, InferRequest, Limits, Parameters, RequestedOutput};
use crate::oip::tensor_json::{DATATYPES, offered, parse_datatype};
use crate::protobuf::{Fault, Fields, Value, varint};
use crate::tensor::{MAX_RANK, NamedTensor, Tensor};

/// Most fields of a message: every list of a request at its longest.
const MOST_FIELDS: usize = 1024;

/// Most bytes of a message beside its elements: names, shapes, parameters, and what nobody knows. They are read one
/// by one, whatever the package allows its tensors, and on the thread that serves.
pub const BESIDE: usize = 1 << 20;

/// Longest name of a model or a version that is looked for.
const MOST_NAME: usize = 1024;

/// Who is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its version; `None`: the routed one.
    pub version: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// Of a message whose first two fields are a name and a version, as several messages begin.
    pub fn of(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut head = Self::default();
        for (count, field) in Fields::new(message).enumerate() {
            if count == MOST_FIELDS {
                return Err(Refusal::TooMany { what: "fields in the message", limit: MOST_FIELDS });
            }
            let (number, value) = field?;
            let text = |what: &str| {
                value.text(MOST_NAME).map_err(|wrong| Refusal::Message(format!("{what}: {wrong}")))
            };
            match number {
                1 => head.model = text("the model's name")?,
                // As clients write it that do not care.
                2 => head.version = Some(text("the version")?).filter(|version| !version.is_empty()),
                _ => {}
            }
        }
        Ok(head)
    }
}

/// A tensor as a message describes it.
#[derive(Debug)]
struct Described {
    name: String,
    datatype: Datatype,
    shape: Vec<u64>,
    /// The message with its elements, if it has one.
    contents: Option<Bytes>,
}

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

    fn described<'a>(
        &mut self,
        value: Value<'a>,
        message: &Bytes,
        limits: &Limits,
        name: &mut Option<&'a str>,
    ) -> Result<Described, Problem> {
        let (mut datatype, mut shape, mut own, mut contents) = (None, Vec::new(), Parameters::new(), None);
        let mut fields = Fields::new(value.bytes()?);
        let mut end = 0;
        while let Some(field) = fields.next() {
            let (number, value) = field?;
            let elements = match value {
                Value::Bytes(bytes) if number == 5 => bytes.len(),
                _ => 0,
            };
            self.beside += fields.at() - end - elements;
            if self.beside > BESIDE {
                return Err(too_much_beside().into());
            }
            end = fields.at();
            match number {
                1 => *name = Some(value.text(limits.name_bytes)?),
                2 => datatype = Some(known(value)?),
                3 => extents(value, &mut shape)?,
                4 => parameters(&mut own, value, Place::Input, limits)?,
                5 => {
                    let before = contents.replace(message.slice_ref(value.bytes()?));
                    before.map_or(Ok(()), |_| Err("`contents` comes twice".to_owned()))?;
                }
                _ => {}
            }
        }
        offered(&own)?;
        let name = name.filter(|name| !name.is_empty()).ok_or("`name` is missing".to_owned())?;
        let datatype = datatype.ok_or("`datatype` is missing".to_owned())?;
        Ok(Described { name: name.to_owned(), datatype, shape, contents })
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

enum Problem {
    Refused(Refusal),
    Wrong(Wrong),
}

impl From<Wrong> for Problem {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Wrong(fault.to_string())
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn known(value: Value<'_>) -> Result<Datatype, Wrong> {
    let text = value.text(MOST_NAME)?;
    parse_datatype(text).ok_or_else(|| {
        let text: String = text.chars().take(40).collect();
        format!("`{text}` is no datatype; there are {}", DATATYPES.map(Datatype::name).join(", "))
    })
}

/// Adds extents, packed or one by one.
fn extents(value: Value<'_>, shape: &mut Vec<u64>) -> Result<(), Wrong> {
    let mut add = |extent: u64| {
        if shape.len() == MAX_RANK {
            return Err(format!("more than {MAX_RANK} dimensions"));
        }
        if i64::try_from(extent).is_err() {
            return Err("an extent has to be a whole number from 0 up".to_owned());
        }
        shape.push(extent);
        Ok(())
    };
    match value {
        Value::Number(extent) => add(extent),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                add(varint(&mut packed)?)?;
            }
            Ok(())
        }
        _ => Err("`shape` is no list of whole numbers".to_owned()),
    }
}

/// There may be one more.
fn more(what: &'static str, have: usize, limits: &Limits) -> Result<(), Refusal> {
    if have >= limits.tensors {
        return Err(Refusal::TooMany { what, limit: limits.tensors });
    }
    Ok(())
}

/// Where the first raw contents begin in a message of which `begun` is here, if their end is not: that
/// place shall lie at an address for elements of any type.
pub fn raw_begins(begun: &[u8]) -> Option<usize> {
    let mut fields = Fields::new(begun);
    match fields.find_map(Result::err)? {
        Fault::PastTheEnd(7) => Some(fields.at()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::request::Parameter;
    use crate::protobuf::Message;

    fn limits() -> Limits {
        Limits::for_package(1)
    }

    /// A request for an input `x` of a type and a shape.
    fn request(datatype: &str, shape: &[u64], more: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::default();
        message.bytes(1, "m").bytes(3, "7").message(5, |input| {
            input.bytes(1, "x").bytes(2, datatype).packed(3, shape.iter().copied());
            more(input);
        });
        message.into_bytes()
    }

    fn read(message: &[u8]) -> Result<InferRequest, Refusal> {
        let parts = Parts::of(&Bytes::copy_from_slice(message), &limits())?;
        let beside = parts.beside(&limits())?;
        let request = parts.request(&limits())?;
        let takes: usize = request.inputs.iter().map(|input| input.tensor.footprint()).sum();
        assert!(takes <= beside, "{takes} bytes, and {beside} were expected");
        Ok(request)
    }

    #[test]
    fn elements_come_as_numbers_or_as_bytes() {
        let typed = request("INT16", &[2], |input| {
            input.message(5, |it| {
                it.packed(2, [1, 300].into_iter());
            });
        });
        let mut raw = Message::default();
        raw.part(7, [1, 0, 44, 1]);
        let raw = [request("INT16", &[2], |_| {}), raw.into_bytes()].concat();
        for message in [typed, raw] {
            let request = read(&message).unwrap();
            assert_eq!(request.id.as_deref(), Some("7"));
            assert_eq!(request.inputs[0].name, "x");
            assert_eq!(request.inputs[0].tensor.shape(), [2]);
            assert_eq!(request.inputs[0].tensor.as_fixed(), Some(&[1, 0, 44, 1][..]));
        }
        let empty = read(&request("INT16", &[0], |_| {})).unwrap();
        assert_eq!(empty.inputs[0].tensor.as_fixed(), Some(&[][..]));
    }

    #[test]
    fn the_head_says_who_is_asked() {
        let mut message = Message::default();
        message.bytes(1, "m").bytes(2, "7").bytes(99, "later");
        assert_eq!(Head::of(message.as_ref()), Ok(Head { model: "m", version: Some("7") }));
        assert_eq!(Head::of(&[]), Ok(Head::default()));
        let many = [0x2a, 0].repeat(MOST_FIELDS + 1);
        assert!(matches!(Head::of(&many), Err(Refusal::TooMany { .. })));
        assert!(Head::of(&[0x0a, 5]).is_err());
    }

    fn check(message: &[u8], says: &str) {
        match read(message) {
            Err(refusal) => assert!(refusal.to_string().contains(says), "{refusal}"),
            Ok(_) => panic!("{says}: taken"),
        }
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        check(b"\x0b", "the message is refused: field 1 is of a kind");
        check(&request("FLOAT", &[1], |_| {}), "input 0 (`x`): `FLOAT` is no datatype; there are BOOL");
        check(
            &request("INT8", &[u64::MAX], |_| {}),
            "input 0 (`x`): an extent has to be a whole number from 0",
        );
        check(&request("INT8", &[1; 65], |_| {}), "input 0 (`x`): more than 64 dimensions");
        check(&request("INT8", &[2], |_| {}), "input 0 (`x`): its shape takes 2 elements, and 0 came");
        check(&request("FP16", &[2], |_| {}), "FP16 has no form in `contents`");
        check(&request("INT8", &[1 << 30], |_| {}), "larger than the package's limit");
        let twice = |input: &mut Message| {
            input.part(5, "").part(5, "");
        };
        check(&request("INT8", &[0], twice), "`contents` comes twice");
        let x = request("INT8", &[0], |_| {});
        check(&[&x[..], &x].concat(), "input `x` comes twice");
        let mut raw = Message::default();
        raw.part(7, "a").part(7, "b");
        check(&[&x[..], raw.as_ref()].concat(), "2 raw_input_contents came for 1 inputs");
        let mut raw = Message::default();
        raw.part(7, "a");
        let both = request("INT8", &[1], |input| {
            input.message(5, |it| {
                it.packed(2, [1].into_iter());
            });
        });
        check(&[&both[..], raw.as_ref()].concat(), "it has both `contents` and `raw_input_contents`");
        check(&[&request("INT8", &[2], |_| {})[..], raw.as_ref()].concat(), "takes 2 bytes, and 1 came");
        check(&[0x2a, 0].repeat(300), "input 0: `name` is missing");
        check(&[0x3a, 0].repeat(300), "more than 256 raw_input_contents");
        check(&[0x32, 0], "output 0: `name` is missing");
        let outputs = [0x32, 3, 0x0a, 1, b'y'].repeat(2);
        check(&outputs, "output `y` comes twice");
    }

    #[test]
    fn what_stands_beside_elements_is_bounded_wherever_it_stands() {
        let x = request("INT8", &[0], |_| {});
        // What is around a field that fills the rest.
        let check_at = |build: &dyn Fn(&[u8]) -> Vec<u8>| {
            let around = build(&[0; 1 << 19]).len() - (1 << 19);
            for (more, taken) in [(0, true), (1, false)] {
                let message = build(&vec![0; BESIDE - around + more]);
                assert_eq!(message.len(), BESIDE + more);
                let parts = Parts::of(&message.into(), &limits());
                match parts {
                    Ok(parts) => assert!(taken && parts.length() == BESIDE),
                    Err(refusal) => {
                        let says = format!("more than {BESIDE} bytes beside the tensors' elements");
                        assert!(!taken && refusal.to_string() == says, "{refusal}");
                    }
                }
            }
        };
        let unknown = |bytes: &[u8]| {
            let mut message = Message::default();
            message.part(100, bytes);
            message.into_bytes()
        };
        check_at(&|bytes| [&x[..], &unknown(bytes)].concat());
        check_at(&|bytes| request("INT8", &[0], |input| input.append(|it| it.extend(unknown(bytes)))));
        check_at(&|bytes| {
            let mut output = Message::default();
            output.part(6, [&b"\x0a\x01y"[..], &unknown(bytes)].concat());
            [&x[..], output.as_ref()].concat()
        });
        check_at(&|bytes| {
            let mut parameter = Message::default();
            parameter.message(4, |entry| {
                entry.bytes(1, "a").message(2, |chosen| {
                    chosen.part(3, bytes);
                });
            });
            [&x[..], parameter.as_ref()].concat()
        });
        // Elements are not among it, in either form.
        let typed = request("FP32", &[1 << 18], |input| {
            input.message(5, |it| {
                it.bytes(6, vec![0; 1 << 20]);
            });
        });
        let parts = Parts::of(&typed.into(), &limits()).unwrap();
        assert!(parts.beside < 100 && parts.length() > 1 << 20 && parts.raw_length() == 0);
        let mut raw = Message::default();
        raw.part(7, vec![0; 1 << 20]);
        let parts =
            Parts::of(&[&request("INT8", &[1 << 20], |_| {})[..], raw.as_ref()].concat().into(), &limits());
        let parts = parts.unwrap();
        assert!(parts.length() < 100 && parts.raw_length() == 1 << 20);
    }

    #[test]
    fn parameters_are_those_of_the_json_form() {
        let region = |message: &mut Message| {
            message.bytes(1, "shared_memory_region").message(2, |value| {
                value.part(3, "r");
            });
        };
        check(
            &request("INT8", &[0], |input| {
                input.message(4, region);
            }),
            "shared memory",
        );
        let mut message = Message::default();
        message.message(6, |output| {
            output.bytes(1, "y").message(2, region);
        });
        check(message.as_ref(), "shared memory");
        let mut message = Message::default();
        message.message(4, |entry| {
            entry.bytes(1, "timeout").message(2, |it| it.chosen_number(2, 5));
        });
        assert_eq!(read(message.as_ref()).unwrap().parameters["timeout"], Parameter::Integer(5));
    }

    #[test]
    fn where_raw_contents_begin_is_known_before_their_end_is_here() {
        let mut raw = Message::default();
        raw.part(7, [7; 100]);
        let head = request("INT8", &[100], |_| {});
        let whole = [&head[..], raw.as_ref()].concat();
        for cut in 0..whole.len() {
            let known = (head.len() + 2 <= cut).then_some(head.len() + 2);
            assert_eq!(raw_begins(&whole[..cut]), known, "{cut}");
        }
        assert_eq!(raw_begins(&whole), None, "all is here");
    }

    proptest::proptest! {
        #[test]
        fn bytes_from_anywhere_never_panic(bytes: Vec<u8>) {
            let _ = Head::of(&bytes);
            let _ = read(&bytes);
            let _ = raw_begins(&bytes);
        }
    }
}
