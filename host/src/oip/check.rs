//! A request held against the package's manifest: names, types and shapes, and which outputs go back.

use selvedge_package::tensor::{Datatype, TensorSpec};

use super::elements::Encoding;
use super::refusal::Refusal;
use super::request::RequestedOutput;
use crate::tensor::{NamedTensor, Tensor};

/// Every input of the manifest is there once, with its type and a shape that fits, and no other.
pub fn inputs(specs: &[TensorSpec], inputs: &[NamedTensor]) -> Result<(), Refusal> {
    for (index, input) in inputs.iter().enumerate() {
        let spec = specs
            .iter()
            .find(|spec| spec.name == input.name)
            .ok_or_else(|| Refusal::UnknownInput { name: input.name.clone(), known: known(specs) })?;
        if inputs[..index].iter().any(|other| other.name == input.name) {
            return Err(Refusal::Twice { what: "input", name: input.name.clone() });
        }
        if spec.datatype != input.tensor.datatype() {
            return Err(Refusal::Datatype {
                name: input.name.clone(),
                expected: spec.datatype,
                actual: input.tensor.datatype(),
            });
        }
        if !fits(&spec.shape, input.tensor.shape()) {
            return Err(Refusal::Shape {
                name: input.name.clone(),
                expected: spec.shape.clone(),
                actual: input.tensor.shape().to_vec(),
            });
        }
    }
    match specs.iter().find(|spec| inputs.iter().all(|input| input.name != spec.name)) {
        Some(spec) => Err(Refusal::MissingInput { name: spec.name.clone(), known: known(specs) }),
        None => Ok(()),
    }
}

/// Whether `shape` is one that `spec` allows.
pub fn fits(spec: &[i64], shape: &[u64]) -> bool {
    spec.len() == shape.len()
        && spec.iter().zip(shape).all(|(&spec, &extent)| spec == -1 || u64::try_from(spec) == Ok(extent))
}

/// The outputs that a request asks for exist.
pub fn outputs(specs: &[TensorSpec], requested: &[RequestedOutput]) -> Result<(), Refusal> {
    for output in requested {
        if specs.iter().all(|spec| spec.name != output.name) {
            return Err(Refusal::UnknownOutput { name: output.name.clone(), known: known(specs) });
        }
    }
    Ok(())
}

/// The outputs that go back, in the order of the request, or of the manifest where it asks for none.
/// What the module did not give is named in the error.
pub fn select(
    specs: &[TensorSpec],
    requested: &[RequestedOutput],
    mut outputs: Vec<NamedTensor>,
) -> Result<Vec<(NamedTensor, Encoding)>, String> {
    let mut take = |name: &str, encoding| {
        let at = outputs.iter().position(|output| output.name == name);
        at.map(|at| (outputs.swap_remove(at), encoding)).ok_or_else(|| name.to_owned())
    };
    if requested.is_empty() {
        specs.iter().map(|spec| take(&spec.name, Encoding::Text)).collect()
    } else {
        requested.iter().map(|output| take(&output.name, output.encoding)).collect()
    }
}

/// The inputs of a raw request: the manifest's only input, BYTES, of one element, is the body.
pub fn raw(specs: &[TensorSpec], body: impl AsRef<[u8]>) -> Result<Vec<NamedTensor>, Refusal> {
    match specs {
        [spec] if spec.datatype == Datatype::Bytes && spec.shape.iter().all(|&n| n == 1 || n == -1) => {
            let elements = std::iter::once(body).collect();
            let tensor = Tensor::bytes(vec![1; spec.shape.len()], elements);
            let tensor = tensor.map_err(|error| Refusal::NotRaw(error.to_string()))?;
            Ok(vec![NamedTensor::new(spec.name.clone(), tensor)])
        }
        _ => Err(Refusal::NotRaw(known(specs))),
    }
}

/// The tensors that there are, as an error lists them.
fn known(specs: &[TensorSpec]) -> String {
    if specs.is_empty() {
        return "nothing".to_owned();
    }
    let list: Vec<String> =
        specs.iter().map(|spec| format!("`{}` ({} {:?})", spec.name, spec.datatype, spec.shape)).collect();
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn int8(name: &str, shape: &[u64]) -> NamedTensor {
        let data = vec![0; shape.iter().product::<u64>() as usize];
        NamedTensor::new(name, Tensor::fixed(Datatype::Int8, shape, data).unwrap())
    }

    #[test]
    fn inputs_are_those_of_the_manifest() {
        let specs = [spec("a", Datatype::Int8, &[-1, 2]), spec("b", Datatype::Int8, &[])];
        let check = |given: &[NamedTensor], expected: &str| match inputs(&specs, given) {
            Ok(()) => assert_eq!(expected, ""),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}");
            }
        };
        check(&[int8("b", &[]), int8("a", &[3, 2])], "");
        check(&[int8("b", &[]), int8("a", &[0, 2])], "");
        check(&[int8("b", &[])], "input `a` is missing; the package takes `a` (INT8 [-1, 2]), `b` (INT8 [])");
        check(&[int8("b", &[]), int8("A", &[3, 2])], "no input `A`; it takes `a`");
        check(&[int8("b", &[1]), int8("a", &[3, 2])], "`b` has the shape [1] and has to have []");
        check(&[int8("b", &[]), int8("a", &[2, 3])], "shape [2, 3] and has to have [-1, 2]");
        check(&[int8("b", &[]), int8("a", &[2])], "shape [2]");
        check(&[int8("b", &[]), int8("b", &[]), int8("a", &[3, 2])], "`b` comes twice");
        let text = NamedTensor::new("b", Tensor::single("x"));
        check(&[text, int8("a", &[3, 2])], "`b` is BYTES and has to be INT8");
    }

    #[test]
    fn outputs_are_selected_in_the_order_asked() {
        let specs = [spec("a", Datatype::Int8, &[1]), spec("b", Datatype::Int8, &[1])];
        let given = || vec![int8("b", &[1]), int8("a", &[1])];
        let ask = |names: &[&str]| -> Vec<RequestedOutput> {
            let one = |name: &&str| RequestedOutput { name: (*name).to_owned(), encoding: Encoding::Text };
            names.iter().map(one).collect()
        };
        let names = |asked: &[&str], given| {
            select(&specs, &ask(asked), given)
                .map(|outputs| outputs.into_iter().map(|(output, _)| output.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], given()), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(&["b"], given()), Ok(vec!["b".to_owned()]));
        assert_eq!(names(&["b", "a"], given()), Ok(vec!["b".to_owned(), "a".to_owned()]));
        assert_eq!(names(&[], vec![int8("a", &[1])]), Err("b".to_owned()));
        assert!(outputs(&specs, &ask(&["c"])).is_err());
        assert!(outputs(&specs, &ask(&["b"])).is_ok());
    }

    #[test]
    fn a_raw_body_is_the_only_element_of_the_only_input() {
        let check = |specs: &[TensorSpec], shape: Option<&[u64]>| {
            let inputs = raw(specs, b"\0\xff").ok();
            assert_eq!(inputs.as_ref().map(|inputs| inputs[0].tensor.shape()), shape);
        };
        check(&[spec("a", Datatype::Bytes, &[1])], Some(&[1]));
        check(&[spec("a", Datatype::Bytes, &[-1])], Some(&[1]));
        check(&[spec("a", Datatype::Bytes, &[])], Some(&[]));
        check(&[spec("a", Datatype::Bytes, &[-1, 1])], Some(&[1, 1]));
        check(&[spec("a", Datatype::Bytes, &[2])], None);
        check(&[spec("a", Datatype::Uint8, &[-1])], None);
        check(&[spec("a", Datatype::Bytes, &[1]), spec("b", Datatype::Bytes, &[1])], None);
        check(&[], None);
    }
}
