//! A request held against the package's manifest: names, types and shapes, and which outputs go back.

use bytes::Bytes;
use selvedge_package::tensor::{Datatype, TensorSpec};

use super::refusal::Refusal;
use super::request::{Form, RequestedOutput};
use crate::tensor::{NamedTensor, Strings, Tensor, TensorError};

/// Every input of the manifest that may not be left out is there, each once, with its type and a shape that
/// fits, and no other.
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
    let missing = |spec: &&TensorSpec| !spec.optional && inputs.iter().all(|input| input.name != spec.name);
    match specs.iter().find(missing) {
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

/// The outputs that go back, in the order of the request, or of the manifest and in `form` where it asks
/// for none. One that may be left out and did not come is not among them; any other that the module did not
/// give is named in the error.
pub fn select(
    specs: &[TensorSpec],
    requested: &[RequestedOutput],
    form: Form,
    mut outputs: Vec<NamedTensor>,
) -> Result<Vec<(NamedTensor, Form)>, String> {
    let optional = |name: &str| specs.iter().any(|spec| spec.name == name && spec.optional);
    let mut take = |name: &str, form| match outputs.iter().position(|output| output.name == name) {
        Some(at) => Some(Ok((outputs.swap_remove(at), form))),
        None if optional(name) => None,
        None => Some(Err(name.to_owned())),
    };
    if requested.is_empty() {
        specs.iter().filter_map(|spec| take(&spec.name, form)).collect()
    } else {
        requested.iter().filter_map(|output| take(&output.name, output.form)).collect()
    }
}

/// The input that may take the Content-Type of a raw body: BYTES of one element.
pub const CONTENT_TYPE: &str = "content_type";

/// Whether a package takes raw bodies: besides [`CONTENT_TYPE`] it has a single input, or a single one that
/// may not be left out, and the body's length says its shape.
pub fn takes_raw(specs: &[TensorSpec]) -> Result<&TensorSpec, Refusal> {
    let all = || specs.iter().filter(|spec| !(specs.len() > 1 && is_content_type(spec)));
    let needed = || all().filter(|spec| !spec.optional);
    let free = |spec: &TensorSpec| spec.shape.iter().filter(|&&extent| extent == -1).count();
    let (first, second) = match all().nth(1) {
        Some(_) => (needed().next(), needed().nth(1)),
        None => (all().next(), None),
    };
    match (first, second) {
        (Some(spec), None) if spec.datatype == Datatype::Bytes && is_single(spec) => Ok(spec),
        (Some(spec), None) if spec.datatype != Datatype::Bytes && free(spec) <= 1 => Ok(spec),
        _ => Err(Refusal::NotRaw(known(specs))),
    }
}

fn is_single(spec: &TensorSpec) -> bool {
    spec.datatype == Datatype::Bytes && spec.shape.iter().all(|&extent| extent == 1 || extent == -1)
}

fn is_content_type(spec: &TensorSpec) -> bool {
    spec.name == CONTENT_TYPE && is_single(spec)
}

/// The inputs of a raw request: the body is the only element of a BYTES input, or the elements of
/// another one. A package with an input [`CONTENT_TYPE`] gets that too, empty where there was none.
pub fn raw(specs: &[TensorSpec], body: Bytes, content_type: &[u8]) -> Result<Vec<NamedTensor>, Refusal> {
    let taking = takes_raw(specs)?;
    let wrong = |error: TensorError| Refusal::NotRaw(error.to_string());
    let single = |spec: &TensorSpec, element: &[u8]| {
        Tensor::bytes(vec![1; spec.shape.len()], Strings::from_iter([element])).map_err(wrong)
    };
    let of = |spec: &TensorSpec| match spec.datatype.size() {
        None if spec.name == taking.name => single(spec, &body),
        None => single(spec, content_type),
        Some(size) => {
            let shape = shape_of(spec, body.len(), size)?;
            Tensor::fixed(spec.datatype, shape, body.clone()).map_err(wrong)
        }
    };
    let taken = specs.iter().filter(|spec| spec.name == taking.name || is_content_type(spec));
    taken.map(|spec| Ok(NamedTensor::new(spec.name.clone(), of(spec)?))).collect()
}

/// The shape of a tensor that has so many bytes.
fn shape_of(spec: &TensorSpec, bytes: usize, size: usize) -> Result<Vec<u64>, Refusal> {
    let fixed = spec.shape.iter().filter(|&&extent| extent != -1);
    let each = fixed
        .map(|&extent| usize::try_from(extent).ok())
        .try_fold(size, |product, extent| product.checked_mul(extent?));
    let free = spec.shape.contains(&-1);
    let count = match each {
        Some(each) if !free && bytes == each => Some(1),
        Some(each @ 1..) if free && bytes.is_multiple_of(each) => Some((bytes / each) as u64),
        _ => None,
    };
    let Some(count) = count else {
        let each = each.map_or("more than there are".to_owned(), |each| format!("{each} bytes"));
        return Err(Refusal::RawLength {
            name: spec.name.clone(),
            datatype: spec.datatype,
            shape: spec.shape.clone(),
            expected: if free { format!("a multiple of {each}") } else { each },
            actual: bytes,
        });
    };
    // Checked above not to be negative, but for those that are free.
    Ok(spec.shape.iter().map(|&extent| u64::try_from(extent).unwrap_or(count)).collect())
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
        TensorSpec::new(name, datatype, shape)
    }

    fn int8(name: &str, shape: &[u64]) -> NamedTensor {
        let data = vec![0; shape.iter().product::<u64>() as usize];
        NamedTensor::new(name, Tensor::fixed(Datatype::Int8, shape, data).unwrap())
    }

    #[test]
    fn inputs_are_those_of_the_manifest() {
        let specs = [
            spec("a", Datatype::Int8, &[-1, 2]),
            spec("b", Datatype::Int8, &[]),
            spec("c", Datatype::Int8, &[7]).optional(),
        ];
        let check = |given: &[NamedTensor], expected: &str| match inputs(&specs, given) {
            Ok(()) => assert_eq!(expected, ""),
            Err(error) => {
                assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}");
            }
        };
        check(&[int8("b", &[]), int8("a", &[3, 2])], "");
        check(&[int8("b", &[]), int8("a", &[0, 2])], "");
        check(
            &[int8("b", &[])],
            "input `a` is missing; the package takes `a` (INT8 [-1, 2]), `b` (INT8 []), `c`",
        );
        check(&[int8("b", &[]), int8("a", &[3, 2]), int8("c", &[7])], "");
        check(&[int8("b", &[]), int8("a", &[3, 2]), int8("c", &[8])], "`c` has the shape [8]");
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
            let one = |name: &&str| RequestedOutput { name: (*name).to_owned(), form: Form::default() };
            names.iter().map(one).collect()
        };
        let names = |asked: &[&str], given| {
            select(&specs, &ask(asked), Form::default(), given)
                .map(|outputs| outputs.into_iter().map(|(output, _)| output.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], given()), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(&["b"], given()), Ok(vec!["b".to_owned()]));
        assert_eq!(names(&["b", "a"], given()), Ok(vec!["b".to_owned(), "a".to_owned()]));
        assert_eq!(names(&[], vec![int8("a", &[1])]), Err("b".to_owned()));
        let specs = [specs[0].clone().optional(), specs[1].clone()];
        let names = |asked: &[&str], given| {
            select(&specs, &ask(asked), Form::default(), given)
                .map(|outputs| outputs.into_iter().map(|(output, _)| output.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], vec![int8("b", &[1])]), Ok(vec!["b".to_owned()]));
        assert_eq!(names(&["a", "b"], vec![int8("b", &[1])]), Ok(vec!["b".to_owned()]));
        assert_eq!(names(&[], vec![int8("a", &[1])]), Err("b".to_owned()));
        assert!(outputs(&specs, &ask(&["c"])).is_err());
        assert!(outputs(&specs, &ask(&["b"])).is_ok());
    }

    #[test]
    fn a_raw_body_is_the_only_input() {
        let check = |specs: &[TensorSpec], shape: Option<&[u64]>| {
            let inputs = raw(specs, Bytes::from_static(b"\0\xff"), b"").ok();
            assert_eq!(inputs.as_ref().map(|inputs| inputs[0].tensor.shape()), shape);
        };
        check(&[spec("a", Datatype::Bytes, &[1])], Some(&[1]));
        check(&[spec("a", Datatype::Bytes, &[-1])], Some(&[1]));
        check(&[spec("a", Datatype::Bytes, &[])], Some(&[]));
        check(&[spec("a", Datatype::Bytes, &[-1, 1])], Some(&[1, 1]));
        check(&[spec("a", Datatype::Bytes, &[2])], None);
        check(&[spec("a", Datatype::Bytes, &[1]), spec("b", Datatype::Bytes, &[1])], None);
        check(&[], None);
        let optional = |name| spec(name, Datatype::Bytes, &[1]).optional();
        check(&[spec("a", Datatype::Bytes, &[1]), optional("b")], Some(&[1]));
        check(&[optional("a")], Some(&[1]));
        check(&[optional("a"), optional("b")], None);
        check(&[spec("a", Datatype::Uint8, &[-1])], Some(&[2]));
        check(&[spec("a", Datatype::Uint8, &[1, -1, 2])], Some(&[1, 1, 2]));
        check(&[spec("a", Datatype::Uint8, &[2, 1])], Some(&[2, 1]));
        check(&[spec("a", Datatype::Uint16, &[])], Some(&[]));
        check(&[spec("a", Datatype::Uint8, &[-1, -1])], None);
        check(&[spec("a", Datatype::Uint8, &[3])], None);
        check(&[spec("a", Datatype::Uint8, &[-1, 0])], None);
        check(&[spec("a", Datatype::Uint8, &[i64::MAX, -1, i64::MAX])], None);
        check(&[spec("a", Datatype::Uint32, &[-1])], None);
        check(&[spec("a", Datatype::Bool, &[-1])], None);
        let error =
            raw(&[spec("a", Datatype::Uint32, &[2, -1])], Bytes::from_static(b"ab"), b"").unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("2 bytes, and input `a` (UINT32 [2, -1]) takes a multiple of 8 bytes"),
            "{error}"
        );
    }

    #[test]
    fn the_content_type_goes_to_an_input_of_that_name() {
        let specs = [spec("content_type", Datatype::Bytes, &[1]), spec("a", Datatype::Bytes, &[1])];
        let inputs = raw(&specs, Bytes::from_static(b"x"), b"image/png").unwrap();
        let of = |index: usize| inputs[index].tensor.as_strings().unwrap().get(0).unwrap().to_vec();
        assert_eq!((of(0), of(1)), (b"image/png".to_vec(), b"x".to_vec()));
        // Alone it is an input as any other.
        let inputs = raw(&specs[..1], Bytes::from_static(b"x"), b"image/png").unwrap();
        assert_eq!(inputs[0].tensor.as_strings().unwrap().get(0), Some(&b"x"[..]));
    }
}
