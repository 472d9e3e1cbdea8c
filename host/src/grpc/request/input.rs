//! An input as its message describes it: its elements stay where they came.

use bytes::Bytes;
use selvedge_package::tensor::Datatype;

use super::{BESIDE, MOST_NAME, Parts, too_much_beside};
use crate::grpc::Wrong;
use crate::grpc::parameters::{Place, parameters};
use crate::oip::refusal::Refusal;
use crate::oip::request::{Limits, Parameters};
use crate::oip::tensor_json::{DATATYPES, offered, parse_datatype};
use crate::protobuf::{Fault, Fields, Value, varint};
use crate::tensor::MAX_RANK;

/// A tensor as a message describes it.
#[derive(Debug)]
pub struct Described {
    pub name: String,
    pub datatype: Datatype,
    pub shape: Vec<u64>,
    /// The message with its elements, if it has one.
    pub contents: Option<Bytes>,
}

impl Parts {
    /// Reads one; its name is told whatever else is wrong.
    pub(super) fn described<'a>(
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
}

/// What is wrong with it.
pub enum Problem {
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
