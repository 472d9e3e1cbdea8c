//! What a model takes and gives, and the tensors that stand for it with modules and clients.
//!
//! A tensor stands for itself. Elements that the protocol has no name for are bytes: those of eight bits
//! UINT8, smaller ones one to a byte (`element`). A sequence of tensors is two tensors (`sequence`), and so
//! are a map, and a sequence of maps as scikit-learn's classifiers give it (`map`). An optional value is what
//! is inside, or nothing; other values are refused when the model is opened. The rules are in `docs/oip.md`.

mod element;
mod map;
mod sequence;

use std::ffi::{CStr, CString};
use std::sync::Arc;

use ort::memory::Allocator;
use ort::session::SharedSessionInner;
use ort::value::ValueType;
use selvedge_package::tensor::{Datatype, TensorSpec};

use self::element::Element;
use super::lent::Handle;
use super::values::{self, Value, ValueError};
use crate::tensor::Tensor;

/// Items of a sequence.
const MOST_ITEMS: usize = 1 << 16;

/// Whether a model takes a value or gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It takes it.
    Input,
    /// It gives it.
    Output,
}

/// An input or output of a model.
#[derive(Debug)]
pub struct Outlet {
    name: String,
    /// The same as ONNX Runtime takes it at every run.
    symbol: CString,
    kind: Kind,
    specs: Vec<TensorSpec>,
    optional: bool,
}

#[derive(Debug)]
enum Kind {
    /// A tensor that crosses without a copy, but for strings.
    Plain(Element),
    /// A tensor that is copied: of elements without a name in the protocol, or of memory that may be lent.
    Packed(Element),
    Sequence(Element),
    Map(map::Types),
    /// A sequence of maps with the same keys.
    Rows(map::Types),
}

impl Outlet {
    /// What ONNX Runtime says about an input or output, or why no tensors can stand for it.
    pub fn new(direction: Direction, name: &str, of: &ValueType) -> Result<Self, ValueError> {
        let refused = || ValueError::Kind(format!("a {of}"));
        let spec = |name: String, datatype: Datatype, shape: &[i64]| TensorSpec::new(name, datatype, shape);
        let two = |second: &str, first: (Datatype, &[i64]), other: (Datatype, &[i64])| {
            vec![spec(name.to_owned(), first.0, first.1), spec(format!("{name}.{second}"), other.0, other.1)]
        };
        let (kind, specs) = match of {
            ValueType::Tensor { ty, shape, .. } => {
                let element =
                    Element::of(*ty).ok_or_else(|| ValueError::Kind(format!("a tensor of {ty}")))?;
                // ONNX Runtime says -1 for every extent that is not fixed.
                let shape: Vec<i64> = shape.iter().map(|&extent| extent.max(-1)).collect();
                let kind = if element.is_named() { Kind::Plain(element) } else { Kind::Packed(element) };
                (kind, vec![spec(name.to_owned(), element.datatype(), &shape)])
            }
            ValueType::Sequence(item) => match &**item {
                ValueType::Tensor { ty, .. } => {
                    let element = Element::of(*ty).ok_or_else(refused)?;
                    let specs = two("shapes", (element.datatype(), &[-1]), (Datatype::Int64, &[-1, -1]));
                    (Kind::Sequence(element), specs)
                }
                // No operator takes one.
                ValueType::Map { key, value } if direction == Direction::Output => {
                    let types = map::Types::of(*key, *value).ok_or_else(refused)?;
                    let specs = two("keys", (types.value(), &[-1, -1]), (types.key(), &[-1]));
                    (Kind::Rows(types), specs)
                }
                _ => return Err(refused()),
            },
            ValueType::Map { key, value } => {
                let types = map::Types::of(*key, *value).ok_or_else(refused)?;
                let specs = two("keys", (types.value(), &[-1]), (types.key(), &[-1]));
                (Kind::Map(types), specs)
            }
            ValueType::Optional(inner) => {
                // ONNX Runtime may pass on what it is lent; here it gets a copy of its own.
                return Ok(Self::new(direction, name, inner)?.optional().copied());
            }
        };
        let symbol = CString::new(name).map_err(|_| ValueError::Kind("a name with a NUL".to_owned()))?;
        Ok(Self { name: name.to_owned(), symbol, kind, specs, optional: false })
    }

    /// The same, which may be left out.
    pub fn optional(self) -> Self {
        let specs = self.specs.into_iter().map(TensorSpec::optional).collect();
        Self { specs, optional: true, ..self }
    }

    /// The same, with a copy of every tensor: no memory is lent to ONNX Runtime for it, nor kept of what it gives.
    pub fn copied(mut self) -> Self {
        if let Kind::Plain(element) = self.kind {
            self.kind = Kind::Packed(element);
        }
        self
    }

    /// Its name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name as ONNX Runtime takes it.
    pub fn symbol(&self) -> &CStr {
        &self.symbol
    }

    /// Whether it may be left out.
    pub fn is_optional(&self) -> bool {
        self.optional
    }

    /// The tensors that stand for it.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// Whether a tensor stands for itself.
    pub fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Plain(_))
    }

    /// The value that ONNX Runtime takes, from the tensors that stand for it, in the order of `specs`.
    pub fn to_value<'a>(&self, tensors: &[&'a Tensor]) -> Result<Value<'a>, ValueError> {
        let value = match (&self.kind, tensors) {
            (Kind::Plain(_), [tensor]) => return values::to_value(tensor),
            (Kind::Packed(element), [tensor]) => element.whole(tensor)?,
            (Kind::Sequence(element), [items, shapes]) => sequence::to_value(*element, items, shapes)?,
            (Kind::Map(types), [values, keys]) => types.to_value(values, keys)?,
            _ => return Err(ValueError::Kind("a value that no such tensors stand for".to_owned())),
        };
        Ok(Value::Made(value))
    }

    /// The tensors that stand for what ONNX Runtime gave, in the order of `specs`.
    pub fn tensors_of(
        &self,
        value: Handle,
        session: &Arc<SharedSessionInner>,
        allocator: &Allocator,
    ) -> Result<Vec<Tensor>, ValueError> {
        match &self.kind {
            Kind::Plain(_) => Ok(vec![values::from_value(value, session, allocator)?]),
            Kind::Packed(element) => Ok(vec![element.tensor(&value.into_value(allocator))?]),
            Kind::Sequence(element) => {
                sequence::from_value(*element, value.into_value(allocator)).map(Vec::from)
            }
            Kind::Map(types) => types.tensors_of(value.into_value(allocator)).map(Vec::from),
            Kind::Rows(types) => types.table_of(value.into_value(allocator)).map(Vec::from),
        }
    }
}

/// Tensors that stand for no value, or a value that no tensors can stand for.
fn malformed(why: impl Into<String>) -> ValueError {
    ValueError::Parts(why.into())
}
