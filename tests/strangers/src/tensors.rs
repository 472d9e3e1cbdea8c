//! What holds for every request that was taken, and when two requests say the same.

use half::{bf16, f16};
use selvedge_host::oip::refusal::Refusal;
use selvedge_host::oip::request::{InferRequest, Limits, NOT_OFFERED, Parameter, Parameters};
use selvedge_host::tensor::{MAX_RANK, NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;

use crate::LIMITS;

/// A request that was taken is within the limits, and its tensors are what their shapes say.
pub fn check(request: &InferRequest) {
    assert!(request.inputs.len() <= LIMITS.tensors && request.outputs.len() <= LIMITS.tensors);
    assert!(request.id.as_ref().is_none_or(|id| id.len() <= LIMITS.name_bytes));
    check_parameters(&request.parameters);
    let footprint: usize = request.inputs.iter().map(|input| input.tensor.footprint()).sum();
    assert!(footprint <= LIMITS.tensor_bytes, "{footprint} bytes of tensors");
    names(request.inputs.iter().map(|input| input.name.as_str()));
    names(request.outputs.iter().map(|output| output.name.as_str()));
    request.inputs.iter().for_each(|input| check_tensor(&input.tensor));
}

fn names<'a>(names: impl Iterator<Item = &'a str> + Clone) {
    for (index, name) in names.clone().enumerate() {
        assert!(name.len() <= LIMITS.name_bytes, "a name of {} bytes", name.len());
        assert!(names.clone().skip(index + 1).all(|other| other != name), "`{name}` twice");
    }
}

fn check_parameters(parameters: &Parameters) {
    assert!(parameters.len() <= LIMITS.parameters);
    for (name, value) in parameters {
        assert!(name.len() <= LIMITS.name_bytes);
        assert!(!matches!(value, Parameter::Number(number) if !number.is_finite()), "{name}: {value:?}");
        if NOT_OFFERED.iter().any(|(refused, _)| refused == name) {
            assert!(matches!(value, Parameter::Boolean(false) | Parameter::Integer(0)), "{name}: {value:?}");
        }
    }
}

/// The data of a tensor is as long as its shape says, counted without any of the host's own arithmetic.
pub fn check_tensor(tensor: &Tensor) {
    assert!(tensor.shape().len() <= MAX_RANK);
    let none = tensor.shape().contains(&0);
    let product = |product: u128, extent: &u64| product.saturating_mul(u128::from(*extent));
    let count = if none { 0 } else { tensor.shape().iter().fold(1, product) };
    assert_eq!(count, tensor.elements() as u128, "{:?}", tensor.shape());
    match tensor.datatype().size() {
        Some(size) => {
            let bytes = tensor.as_fixed().expect("elements of fixed size");
            assert_eq!(count * size as u128, bytes.len() as u128);
            assert!(tensor.datatype() != Datatype::Bool || bytes.iter().all(|byte| *byte <= 1));
        }
        None => {
            let strings = tensor.as_strings().expect("elements of BYTES");
            assert_eq!(strings.len() as u128, count);
            assert_eq!(strings.iter().map(<[u8]>::len).sum::<usize>(), tensor.byte_length());
        }
    }
}

/// A request is taken within the limits that it just reaches, and not within any less. `parse` reads it.
pub fn check_limits(request: &InferRequest, parse: impl Fn(&Limits) -> Result<InferRequest, Refusal>) {
    let tensor_bytes = request.inputs.iter().map(|input| input.tensor.footprint()).sum();
    let tensors = request.inputs.len().max(request.outputs.len());
    let reached = Limits { tensor_bytes, tensors, ..LIMITS };
    check_same(request, &parse(&reached).expect("it is taken within what it takes"));
    if tensor_bytes > 0 {
        let refused = parse(&Limits { tensor_bytes: tensor_bytes - 1, ..LIMITS }).is_err();
        assert!(refused, "{tensor_bytes} bytes of tensors are taken where there may be one less");
    }
    if tensors > 0 {
        let refused = parse(&Limits { tensors: tensors - 1, ..LIMITS }).is_err();
        assert!(refused, "{tensors} tensors are taken where there may be one less");
    }
}

/// Two requests say the same. Which NaN it is does not count: text has one only.
pub fn check_same(one: &InferRequest, other: &InferRequest) {
    assert_eq!(one.id, other.id);
    assert_eq!(one.parameters, other.parameters);
    assert_eq!((one.form, &one.outputs), (other.form, &other.outputs));
    check_same_inputs(&one.inputs, &other.inputs);
}

/// Two lists of tensors are the same.
pub fn check_same_inputs(one: &[NamedTensor], other: &[NamedTensor]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one.name, other.name);
        assert!(
            same(&one.tensor, &other.tensor),
            "`{}`: {} and {}",
            one.name,
            shown(&one.tensor),
            shown(&other.tensor)
        );
    }
}

fn shown(tensor: &Tensor) -> String {
    let elements: Option<Vec<&[u8]>> = tensor.as_strings().map(|strings| strings.iter().collect());
    format!("{} {:?} {:?} {:?}", tensor.datatype(), tensor.shape(), tensor.as_fixed(), elements)
}

fn same(one: &Tensor, other: &Tensor) -> bool {
    if one.datatype() != other.datatype() || one.shape() != other.shape() {
        return false;
    }
    match (one.as_fixed(), other.as_fixed()) {
        (Some(bytes), Some(others)) => {
            let size = one.datatype().size().unwrap_or(1);
            let mut pairs = bytes.chunks(size).zip(others.chunks(size));
            bytes.len() == others.len()
                && pairs.all(|(one_, other)| {
                    one_ == other || is_nan(one.datatype(), one_) && is_nan(one.datatype(), other)
                })
        }
        (None, None) => {
            let strings = |tensor: &Tensor| -> Vec<Vec<u8>> {
                tensor.as_strings().into_iter().flat_map(|all| all.iter().map(<[u8]>::to_vec)).collect()
            };
            strings(one) == strings(other)
        }
        _ => false,
    }
}

/// Whether an element is NaN.
pub fn is_nan(datatype: Datatype, element: &[u8]) -> bool {
    wide(datatype, element).is_some_and(f64::is_nan)
}

/// The value of an element of floating point.
pub fn wide(datatype: Datatype, element: &[u8]) -> Option<f64> {
    match datatype {
        Datatype::Fp16 => Some(f16::from_le_bytes(element.try_into().ok()?).to_f64()),
        Datatype::Bf16 => Some(bf16::from_le_bytes(element.try_into().ok()?).to_f64()),
        Datatype::Fp32 => Some(f32::from_le_bytes(element.try_into().ok()?).into()),
        Datatype::Fp64 => Some(f64::from_le_bytes(element.try_into().ok()?)),
        _ => None,
    }
}

/// Whether every number in it has a form in JSON.
pub fn is_finite(tensor: &Tensor) -> bool {
    let size = tensor.datatype().size().unwrap_or(1);
    let elements = tensor.as_fixed().unwrap_or_default().chunks(size);
    elements.into_iter().all(|element| wide(tensor.datatype(), element).is_none_or(f64::is_finite))
}
