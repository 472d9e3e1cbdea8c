//! What came against what was promised.
//!
//! Floating point may differ by the tolerance, NaN equals NaN and an infinity equals only itself.
//! Everything else is compared exactly, types and shapes too.

use half::{bf16, f16};
use selvedge_package::manifest::Tolerance;
use selvedge_package::tensor::Datatype;

use crate::oip::elements::show;
use crate::oip::number::Element;
use crate::tensor::{NamedTensor, Tensor};

/// An output that is not what was promised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// It did not come.
    #[error("output `{0}` did not come")]
    Missing(String),
    /// It came with another type or shape.
    #[error("output `{name}`: expected {expected}, got {actual}")]
    Form {
        /// The output.
        name: String,
        /// Type and shape.
        expected: String,
        /// Type and shape.
        actual: String,
    },
    /// An element differs.
    #[error("output `{name}`, {difference}")]
    Element {
        /// The output.
        name: String,
        /// Where, and by how much.
        difference: Box<Difference>,
    },
}

/// The first element of an output that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Its row-major index.
    pub index: usize,
    /// The same as a position in each dimension.
    pub place: Vec<u64>,
    /// What was promised.
    pub expected: String,
    /// What came.
    pub actual: String,
    /// By how much it differs, and how much is allowed; floating point only.
    pub amount: Option<(f64, f64)>,
    /// Elements that differ.
    pub differing: usize,
    /// Elements there are.
    pub count: usize,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, place, expected, actual, differing, count, .. } = self;
        write!(f, "element {index} (at {place:?}): expected {expected}, got {actual}")?;
        if let Some((found, allowed)) = self.amount {
            write!(f, " (differs by {found:.3e}, allowed {allowed:.3e})")?;
        }
        write!(f, "; {differing} of {count} elements differ")
    }
}

/// Every expected output came, and is within the tolerance.
pub fn compare(
    expected: &[NamedTensor],
    actual: &[NamedTensor],
    tolerance: Tolerance,
) -> Result<(), Mismatch> {
    for output in expected {
        let found = actual.iter().find(|found| found.name == output.name);
        let found = found.ok_or_else(|| Mismatch::Missing(output.name.clone()))?;
        tensor(&output.name, &output.tensor, &found.tensor, tolerance)?;
    }
    Ok(())
}

fn tensor(name: &str, expected: &Tensor, actual: &Tensor, tolerance: Tolerance) -> Result<(), Mismatch> {
    if (expected.datatype(), expected.shape()) != (actual.datatype(), actual.shape()) {
        let form = |tensor: &Tensor| format!("{} {:?}", tensor.datatype(), tensor.shape());
        return Err(Mismatch::Form { name: name.to_owned(), expected: form(expected), actual: form(actual) });
    }
    let differing = differing(expected, actual, tolerance);
    let Some(&index) = differing.first() else { return Ok(()) };
    let amount = reals(expected, index).zip(reals(actual, index)).map(|(expected, actual)| {
        ((actual - expected).abs(), tolerance.absolute + tolerance.relative * expected.abs())
    });
    let shown = |tensor| show(tensor, index).unwrap_or_default();
    let difference = Box::new(Difference {
        index,
        place: place(index, expected.shape()),
        expected: shown(expected),
        actual: shown(actual),
        amount: amount.filter(|(found, _)| found.is_finite()),
        differing: differing.len(),
        count: expected.elements(),
    });
    Err(Mismatch::Element { name: name.to_owned(), difference })
}

/// Indices of the elements that differ.
fn differing(expected: &Tensor, actual: &Tensor, tolerance: Tolerance) -> Vec<usize> {
    fn among(pairs: impl Iterator<Item = bool>) -> Vec<usize> {
        pairs.enumerate().filter(|(_, same)| !same).map(|(index, _)| index).collect()
    }
    fn close<T: Element + Into<f64>>(expected: &[u8], actual: &[u8], tolerance: Tolerance) -> Vec<usize> {
        let values = |bytes: &'_ [u8]| -> Vec<f64> {
            bytes.chunks_exact(size_of::<T::Bytes>()).map(|b| T::from_bytes(b).into()).collect()
        };
        let pairs = values(expected).into_iter().zip(values(actual));
        among(pairs.map(|(expected, actual)| within(expected, actual, tolerance)))
    }
    if let (Some(expected), Some(actual)) = (expected.as_strings(), actual.as_strings()) {
        return among(expected.iter().zip(actual.iter()).map(|(expected, actual)| expected == actual));
    }
    let (a, b) = (expected.as_fixed().unwrap_or_default(), actual.as_fixed().unwrap_or_default());
    match expected.datatype() {
        Datatype::Fp16 => close::<f16>(a, b, tolerance),
        Datatype::Bf16 => close::<bf16>(a, b, tolerance),
        Datatype::Fp32 => close::<f32>(a, b, tolerance),
        Datatype::Fp64 => close::<f64>(a, b, tolerance),
        other => {
            let size = other.size().unwrap_or(1);
            among(a.chunks_exact(size).zip(b.chunks_exact(size)).map(|(a, b)| a == b))
        }
    }
}

fn within(expected: f64, actual: f64, tolerance: Tolerance) -> bool {
    if expected.is_nan() || actual.is_nan() {
        return expected.is_nan() && actual.is_nan();
    }
    if expected.is_infinite() || actual.is_infinite() {
        return expected == actual;
    }
    (actual - expected).abs() <= tolerance.absolute + tolerance.relative * expected.abs()
}

/// One element of a floating-point tensor.
fn reals(tensor: &Tensor, index: usize) -> Option<f64> {
    let size = tensor.datatype().size()?;
    let bytes = tensor.as_fixed()?.chunks_exact(size).nth(index)?;
    match tensor.datatype() {
        Datatype::Fp16 => Some(f16::from_bytes(bytes).into()),
        Datatype::Bf16 => Some(bf16::from_bytes(bytes).into()),
        Datatype::Fp32 => Some(f32::from_bytes(bytes).into()),
        Datatype::Fp64 => Some(f64::from_bytes(bytes)),
        _ => None,
    }
}

/// The position of a row-major index in each dimension.
fn place(index: usize, shape: &[u64]) -> Vec<u64> {
    let mut left = index as u64;
    let mut place: Vec<u64> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let here = left % extent.max(1);
            left /= extent.max(1);
            here
        })
        .collect();
    place.reverse();
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Buffer, Strings};

    fn fp32(shape: &[u64], values: &[f32]) -> Vec<NamedTensor> {
        let tensor = Tensor::fixed(Datatype::Fp32, shape, Buffer::from(values)).unwrap();
        vec![NamedTensor::new("y", tensor)]
    }

    fn text(values: &[&str]) -> Vec<NamedTensor> {
        let tensor = Tensor::bytes([values.len() as u64], values.iter().collect::<Strings>()).unwrap();
        vec![NamedTensor::new("y", tensor)]
    }

    const TOLERANCE: Tolerance = Tolerance { absolute: 0.01, relative: 0.1 };

    fn check(expected: &[NamedTensor], actual: &[NamedTensor], says: &str) {
        match compare(expected, actual, TOLERANCE) {
            Ok(()) => assert_eq!(says, ""),
            Err(mismatch) => assert_eq!(mismatch.to_string(), says),
        }
    }

    #[test]
    fn says_which_element_and_by_how_much() {
        check(&fp32(&[2], &[1.0, 2.0]), &fp32(&[2], &[1.1, 1.8]), "");
        check(
            &fp32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            &fp32(&[2, 2], &[1.0, 2.0, 2.0, 5.0]),
            "output `y`, element 2 (at [1, 0]): expected 3.0, got 2.0 \
             (differs by 1.000e0, allowed 3.100e-1); 2 of 4 elements differ",
        );
        check(
            &text(&["pdf"]),
            &text(&["txt"]),
            "output `y`, element 0 (at [0]): expected \"pdf\", got \"txt\"; 1 of 1 elements differ",
        );
        check(&fp32(&[2], &[1.0, 2.0]), &[], "output `y` did not come");
        check(
            &fp32(&[2], &[1.0, 2.0]),
            &fp32(&[1, 2], &[1.0, 2.0]),
            "output `y`: expected FP32 [2], got FP32 [1, 2]",
        );
        check(&text(&["1"]), &fp32(&[1], &[1.0]), "output `y`: expected BYTES [1], got FP32 [1]");
    }

    #[test]
    fn nan_equals_nan_and_infinity_itself() {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        check(&fp32(&[3], &special), &fp32(&[3], &special), "");
        let differ = |expected: f32, actual: f32| {
            assert!(compare(&fp32(&[1], &[expected]), &fp32(&[1], &[actual]), TOLERANCE).is_err());
        };
        differ(f32::NAN, 0.0);
        differ(0.0, f32::NAN);
        differ(f32::INFINITY, f32::NEG_INFINITY);
        differ(f32::INFINITY, f32::MAX);
        differ(1.0, f32::INFINITY);
    }

    #[test]
    fn more_outputs_than_expected_are_no_matter() {
        let mut actual = fp32(&[1], &[1.0]);
        actual.extend(text(&["x"]).into_iter().map(|output| NamedTensor::new("z", output.tensor)));
        check(&fp32(&[1], &[1.0]), &actual, "");
    }

    #[test]
    fn small_floats_and_integers_are_compared_in_their_type() {
        let one = |datatype, bytes: &[u8]| {
            vec![NamedTensor::new("y", Tensor::fixed(datatype, [1], bytes).unwrap())]
        };
        let f = |value: f32| one(Datatype::Fp16, &f16::from_f32(value).to_le_bytes());
        check(&f(1.0), &f(1.05), "");
        assert!(compare(&f(1.0), &f(1.2), TOLERANCE).is_err());
        check(
            &one(Datatype::Int8, &[255]),
            &one(Datatype::Int8, &[1]),
            "output `y`, element 0 (at [0]): expected -1, got 1; 1 of 1 elements differ",
        );
    }
}
