//! Values as a case has them and as ONNX Runtime gives them, how they are compared, and the tensors that
//! `docs/oip.md` says they are for a client. Written anew here: nothing of the host's is used for it.

use half::{bf16, f16};
use selvedge_host::tensor::{NamedTensor, Strings, Tensor};
use selvedge_package::tensor::Datatype;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Array(Array),
    Sequence(Vec<Array>),
}

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub shape: Vec<u64>,
    pub elements: Elements,
}

/// Elements: by ONNX's number of their type, little-endian, those smaller than a byte with one byte each.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    Strings(Vec<Vec<u8>>),
    Fixed(i32, Vec<u8>),
}

/// The protocol's type for ONNX's, by its number in `TensorProto.DataType`.
pub fn datatype(element: i32) -> Datatype {
    match element {
        1 => Datatype::Fp32,
        // FLOAT8 of all kinds, UINT4, FLOAT4, UINT2.
        2 | 17..=21 | 23..=25 => Datatype::Uint8,
        // INT4, INT2.
        3 | 22 | 26 => Datatype::Int8,
        4 => Datatype::Uint16,
        5 => Datatype::Int16,
        6 => Datatype::Int32,
        7 => Datatype::Int64,
        9 => Datatype::Bool,
        10 => Datatype::Fp16,
        11 => Datatype::Fp64,
        12 => Datatype::Uint32,
        13 => Datatype::Uint64,
        16 => Datatype::Bf16,
        other => panic!("element type {other}"),
    }
}

impl Array {
    fn tensor(&self) -> Tensor {
        match &self.elements {
            Elements::Strings(strings) => {
                Tensor::bytes(self.shape.clone(), Strings::from_iter(strings)).unwrap()
            }
            Elements::Fixed(element, bytes) => {
                Tensor::fixed(datatype(*element), self.shape.clone(), bytes.clone()).unwrap()
            }
        }
    }

    /// The elements as numbers, where they are some.
    fn reals(&self) -> Option<Vec<f64>> {
        let Elements::Fixed(element, bytes) = &self.elements else { return None };
        fn of<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.chunks_exact(N).map(|bytes| number(bytes.try_into().unwrap())).collect()
        }
        Some(match element {
            1 => of(bytes, |bytes| f32::from_le_bytes(bytes).into()),
            10 => of(bytes, |bytes| f16::from_le_bytes(bytes).into()),
            11 => of(bytes, f64::from_le_bytes),
            16 => of(bytes, |bytes| bf16::from_le_bytes(bytes).into()),
            _ => return None,
        })
    }

    /// Whether a case that expects this is content with `actual`, as ONNX's own runner has it.
    fn close(&self, actual: &Self, rtol: f64, atol: f64) -> bool {
        let kind = |array: &Self| match &array.elements {
            Elements::Strings(_) => 8,
            Elements::Fixed(element, _) => *element,
        };
        if self.shape != actual.shape || kind(self) != kind(actual) {
            return false;
        }
        // Two units in the last place of a BF16.
        let rtol = if kind(self) == 16 { rtol.max(1.0 / 64.0) } else { rtol };
        if let (Elements::Fixed(element @ 17..=20, one), Elements::Fixed(_, other)) =
            (&self.elements, &actual.elements)
        {
            let same = |(&one, &other): (&u8, &u8)| {
                one == other || (is_nan(*element, one) && is_nan(*element, other))
            };
            return one.iter().zip(other).all(same);
        }
        let close = |(&expected, &actual): (&f64, &f64)| {
            (expected.is_nan() && actual.is_nan())
                || expected == actual
                || (expected.is_finite() && (actual - expected).abs() <= atol + rtol * expected.abs())
        };
        match (self.reals(), actual.reals()) {
            (Some(expected), Some(actual)) => expected.iter().zip(&actual).all(close),
            _ if self.elements == actual.elements => true,
            // Integers may differ by the same tolerance; it is below one for all that are small.
            _ => self
                .integers()
                .zip(actual.integers())
                .is_some_and(|(expected, actual)| expected.iter().zip(&actual).all(close)),
        }
    }

    /// The greatest difference, for people.
    fn distance(&self, actual: &Self) -> String {
        if self.shape != actual.shape {
            return format!("{:?} instead of {:?}", actual.shape, self.shape);
        }
        let numbers = |array: &Self| array.reals().or_else(|| array.integers());
        let (Some(expected), Some(actual)) = (numbers(self), numbers(actual)) else {
            return "other elements".to_owned();
        };
        let apart = |(expected, actual): (&f64, &f64)| (actual - expected).abs();
        let most = expected.iter().zip(&actual).map(apart).fold(0.0, f64::max);
        let count = expected.iter().zip(&actual).filter(|(expected, actual)| expected != actual).count();
        format!("{count} of {} elements differ, by at most {most:e}", expected.len())
    }

    fn integers(&self) -> Option<Vec<f64>> {
        let Elements::Fixed(element @ 2..=7 | element @ 12..=13, bytes) = &self.elements else { return None };
        let size = datatype(*element).size().unwrap();
        let signed = matches!(element, 3 | 5 | 6 | 7);
        let number = |bytes: &[u8]| {
            let fill = if signed && bytes[size - 1] >= 0x80 { 0xff } else { 0 };
            let mut wide = [fill; 16];
            wide[..size].copy_from_slice(bytes);
            i128::from_le_bytes(wide) as f64
        };
        Some(bytes.chunks_exact(size).map(number).collect())
    }
}

/// Whether a FLOAT8 of one of the kinds with a NaN is one: there are several for some.
fn is_nan(element: i32, byte: u8) -> bool {
    match element {
        17 => byte & 0x7f == 0x7f,
        18 | 20 => byte == 0x80,
        19 => byte & 0x7f > 0x7c,
        _ => false,
    }
}

/// How `actual` is not what a case is content with that expects `expected`.
pub fn difference(expected: Option<&Value>, actual: Option<&Value>, rtol: f64, atol: f64) -> Option<String> {
    match (expected, actual) {
        (Some(Value::Array(expected)), Some(Value::Array(actual))) => {
            (!expected.close(actual, rtol, atol)).then(|| expected.distance(actual))
        }
        (Some(Value::Sequence(expected)), Some(Value::Sequence(actual))) => {
            if expected.len() != actual.len() {
                return Some(format!("{} items instead of {}", actual.len(), expected.len()));
            }
            let apart = |(one, other): &(&Array, &Array)| !one.close(other, rtol, atol);
            expected.iter().zip(actual).find(apart).map(|(one, other)| one.distance(other))
        }
        (None, None) => None,
        _ => Some("nothing, or something else than a tensor or sequence".to_owned()),
    }
}

/// The tensors that a client sends or gets for a value under its name; nothing for what is absent.
pub fn tensors(name: &str, value: Option<&Value>) -> Vec<NamedTensor> {
    match value {
        None => Vec::new(),
        Some(Value::Array(array)) => vec![NamedTensor::new(name, array.tensor())],
        Some(Value::Sequence(items)) => sequence(name, items),
    }
}

/// The elements of all items one after another, and a row of extents for each, filled up with -1.
fn sequence(name: &str, items: &[Array]) -> Vec<NamedTensor> {
    let columns = items.iter().map(|item| item.shape.len()).max().unwrap_or(0);
    let mut shapes = Vec::new();
    for item in items {
        let row = item.shape.iter().map(|&extent| extent as i64).chain(std::iter::repeat(-1)).take(columns);
        shapes.extend(row.flat_map(i64::to_le_bytes));
    }
    let shapes = Tensor::fixed(Datatype::Int64, [items.len() as u64, columns as u64], shapes).unwrap();
    let mut all = items.first().expect("no case has an empty sequence that it names a type for").clone();
    for item in &items[1..] {
        match (&mut all.elements, &item.elements) {
            (Elements::Strings(all), Elements::Strings(more)) => all.extend(more.iter().cloned()),
            (Elements::Fixed(one, all), Elements::Fixed(other, more)) if one == other => all.extend(more),
            _ => panic!("items of different types"),
        }
    }
    all.shape = vec![items.iter().map(|item| item.shape.iter().product::<u64>()).sum()];
    vec![NamedTensor::new(name, all.tensor()), NamedTensor::new(format!("{name}.shapes"), shapes)]
}
