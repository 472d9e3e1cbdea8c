//! A map `m` as two tensors: `m`, its values, and `m.keys`, both of one dimension and in the same order.
//! A sequence of maps with the same keys, as scikit-learn's classifiers give probabilities, as a table:
//! `m`, a row for each map, and `m.keys`, what its columns are. Where the keys differ it is refused.

use std::collections::HashSet;

use ort::value::{DynMapValueType, DynValue, Map, Sequence, TensorElementType, Value};
use selvedge_package::tensor::Datatype;

use super::element::{Element, extents};
use super::{MOST_ITEMS, malformed};
use crate::session::values::ValueError;
use crate::tensor::{Buffer, Strings, Tensor};

/// Types of a map's keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    key: Element,
    value: Element,
    of: (TensorElementType, TensorElementType),
}

/// Calls `$f::<K, V>` for the Rust types of a map.
macro_rules! for_types {
    ($types:expr, $f:ident($($argument:expr),*)) => {
        match $types.of {
            (TensorElementType::Int64, TensorElementType::Float32) => $f::<i64, f32>($($argument),*),
            (TensorElementType::Int64, TensorElementType::Float64) => $f::<i64, f64>($($argument),*),
            (TensorElementType::Int64, _) => $f::<i64, i64>($($argument),*),
            (_, TensorElementType::Float32) => $f::<String, f32>($($argument),*),
            (_, TensorElementType::Float64) => $f::<String, f64>($($argument),*),
            _ => $f::<String, i64>($($argument),*),
        }
    };
}

impl Types {
    /// Those that ONNX Runtime's operators use, but for values that are strings.
    pub fn of(key: TensorElementType, value: TensorElementType) -> Option<Self> {
        use TensorElementType as T;
        let known =
            matches!(key, T::Int64 | T::String) && matches!(value, T::Float32 | T::Float64 | T::Int64);
        known.then_some(())?;
        Some(Self { key: Element::of(key)?, value: Element::of(value)?, of: (key, value) })
    }

    /// The protocol's type of the keys.
    pub fn key(self) -> Datatype {
        self.key.datatype()
    }

    /// The protocol's type of the values.
    pub fn value(self) -> Datatype {
        self.value.datatype()
    }

    /// The map that ONNX Runtime takes.
    pub fn to_value(self, values: &Tensor, keys: &Tensor) -> Result<DynValue, ValueError> {
        self.key.check(keys)?;
        self.value.check(values)?;
        if keys.shape().len() != 1 || values.shape() != keys.shape() {
            let (values, keys) = (values.shape(), keys.shape());
            return Err(malformed(format!(
                "values of {values:?} and keys of {keys:?}: a map has one of each"
            )));
        }
        if let Some(at) = repeated(keys) {
            return Err(malformed(format!("key {at} was there before")));
        }
        let extents = extents(keys.shape())?;
        let keys = self.key.part(keys, 0, keys.elements(), &extents)?;
        let values = self.value.part(values, 0, values.elements(), &extents)?;
        for_types!(self, make(keys, values))
    }

    /// Values and keys of a map.
    pub fn tensors_of(self, value: DynValue) -> Result<[Tensor; 2], ValueError> {
        let map: Value<DynMapValueType> = value.downcast()?;
        let (keys, values) = for_types!(self, entries(&map))?;
        let count = keys.len() as u64;
        Ok([self.values(&[count], values)?, keys.tensor()?])
    }

    /// The table of a sequence of maps, and its columns.
    pub fn table_of(self, value: DynValue) -> Result<[Tensor; 2], ValueError> {
        let sequence: Sequence<DynMapValueType> = value.downcast()?;
        let maps = sequence.try_extract_sequence::<DynMapValueType>()?;
        if maps.len() > MOST_ITEMS {
            return Err(malformed(format!("a sequence of {} maps; at most {MOST_ITEMS} cross", maps.len())));
        }
        let (mut columns, mut table) = (None, Vec::new());
        for (row, map) in maps.iter().enumerate() {
            let (keys, values) = for_types!(self, entries(map))?;
            if *columns.get_or_insert_with(|| keys.clone()) != keys {
                return Err(malformed(format!("a sequence of maps of which number {row} has other keys")));
            }
            table.extend(values);
        }
        let keys = columns.unwrap_or_else(|| Keys::none(self.of.0));
        Ok([self.values(&[maps.len() as u64, keys.len() as u64], table)?, keys.tensor()?])
    }

    fn values(self, shape: &[u64], bytes: Vec<u8>) -> Result<Tensor, ValueError> {
        Tensor::fixed(self.value.datatype(), shape, bytes).map_err(ValueError::Malformed)
    }
}

/// The place of the first key that is there twice.
fn repeated(keys: &Tensor) -> Option<usize> {
    let mut seen = HashSet::new();
    match keys.as_strings() {
        Some(strings) => strings.iter().position(|key| !seen.insert(key)),
        None => keys.as_fixed().unwrap_or_default().chunks(8).position(|key| !seen.insert(key)),
    }
}

/// Keys of a map, in the order that ONNX Runtime gives them in.
#[derive(Debug, Clone, PartialEq)]
enum Keys {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl Keys {
    fn none(of: TensorElementType) -> Self {
        if of == TensorElementType::Int64 { Self::Numbers(Vec::new()) } else { Self::Texts(Vec::new()) }
    }

    fn len(&self) -> usize {
        match self {
            Self::Numbers(keys) => keys.len(),
            Self::Texts(keys) => keys.len(),
        }
    }

    fn tensor(&self) -> Result<Tensor, ValueError> {
        let shape = [self.len() as u64];
        let tensor = match self {
            Self::Numbers(keys) => Tensor::fixed(Datatype::Int64, shape, Buffer::from(&keys[..])),
            Self::Texts(keys) => Tensor::bytes(shape, Strings::from_iter(keys)),
        };
        tensor.map_err(ValueError::Malformed)
    }
}

/// Rust types of keys.
trait Key: ort::value::IntoTensorElementType + std::fmt::Debug + Clone + std::hash::Hash + Eq + 'static {
    fn all(keys: Vec<Self>) -> Keys;
}

impl Key for i64 {
    fn all(keys: Vec<Self>) -> Keys {
        Keys::Numbers(keys)
    }
}

impl Key for String {
    fn all(keys: Vec<Self>) -> Keys {
        Keys::Texts(keys)
    }
}

/// Rust types of values.
trait Number: ort::value::PrimitiveTensorElementType + std::fmt::Debug + Copy + 'static {
    fn append(self, bytes: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
        }
    )*};
}
numbers!(f32, f64, i64);

fn make<K: Key, V: Number>(keys: DynValue, values: DynValue) -> Result<DynValue, ValueError> {
    Ok(Map::<K, V>::new_kv(keys.downcast()?, values.downcast()?)?.into_dyn())
}

fn entries<K: Key, V: Number>(map: &Value<DynMapValueType>) -> Result<(Keys, Vec<u8>), ValueError> {
    let (keys, values): (Vec<K>, Vec<V>) = map.try_extract_key_values::<K, V>()?.into_iter().unzip();
    let mut bytes = Vec::with_capacity(values.len() * 8);
    values.into_iter().for_each(|value| value.append(&mut bytes));
    Ok((K::all(keys), bytes))
}
