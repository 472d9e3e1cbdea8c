//! Requests put together along their first extent, and the answer taken apart again.

use selvedge_package::tensor::TensorSpec;

use crate::tensor::{Data, NamedTensor, Strings, Tensor};

/// The inputs in the manifest's order, so that those of two requests can be compared.
pub fn ordered(specs: &[TensorSpec], mut inputs: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let place = |name: &str| specs.iter().position(|spec| spec.name == name).unwrap_or(usize::MAX);
    inputs.sort_by_key(|input| place(&input.name));
    inputs
}

/// The first extent that all inputs have. `None`: they differ or there is none, and the request goes alone.
pub fn rows(inputs: &[NamedTensor]) -> Option<u64> {
    let mut firsts = inputs.iter().map(|input| input.tensor.shape().first().copied());
    let rows = firsts.next()??;
    (rows > 0 && firsts.all(|first| first == Some(rows))).then_some(rows)
}

/// Whether two requests can be put together: the same inputs, of the same shapes but for the first extent.
pub fn alike(one: &[NamedTensor], other: &[NamedTensor]) -> bool {
    let alike = |(one, other): (&NamedTensor, &NamedTensor)| {
        let rest = |tensor: &Tensor| tensor.shape().get(1..).map(<[u64]>::to_vec);
        one.name == other.name
            && one.tensor.datatype() == other.tensor.datatype()
            && rest(&one.tensor) == rest(&other.tensor)
    };
    one.len() == other.len() && one.iter().zip(other).all(alike)
}

/// Bytes of all inputs.
pub fn footprint(inputs: &[NamedTensor]) -> usize {
    inputs.iter().map(|input| input.tensor.footprint()).sum()
}

/// The requests one after another, as one. They have to be [`alike`].
pub fn join(requests: &[Vec<NamedTensor>]) -> Result<Vec<NamedTensor>, String> {
    let Some(first) = requests.first() else { return Ok(Vec::new()) };
    let mut joined = Vec::with_capacity(first.len());
    for (at, input) in first.iter().enumerate() {
        let tensors: Vec<&Tensor> =
            requests.iter().filter_map(|request| Some(&request.get(at)?.tensor)).collect();
        let mut shape = input.tensor.shape().to_vec();
        let rows = tensors.iter().filter_map(|tensor| tensor.shape().first()).sum();
        *shape.first_mut().ok_or("a scalar has no rows")? = rows;
        let tensor = match input.tensor.data() {
            Data::Fixed(_) => {
                let mut bytes = Vec::with_capacity(tensors.iter().map(|tensor| tensor.byte_length()).sum());
                tensors
                    .iter()
                    .filter_map(|tensor| tensor.as_fixed())
                    .for_each(|of| bytes.extend_from_slice(of));
                Tensor::fixed(input.tensor.datatype(), shape, bytes)
            }
            Data::Bytes(_) => {
                let strings = tensors.iter().filter_map(|tensor| tensor.as_strings());
                Tensor::bytes(shape, strings.flat_map(Strings::iter).collect())
            }
        };
        joined.push(NamedTensor::new(input.name.clone(), tensor.map_err(|error| error.to_string())?));
    }
    Ok(joined)
}

/// Each request's part of the answer, by its rows. An error says which output does not have as many.
pub fn split(outputs: &[NamedTensor], rows: &[u64]) -> Result<Vec<Vec<NamedTensor>>, String> {
    let all: u64 = rows.iter().sum();
    let mut parts: Vec<Vec<NamedTensor>> = rows.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for NamedTensor { name, tensor } in outputs {
        if tensor.shape().first() != Some(&all) {
            let shape = tensor.shape();
            return Err(format!(
                "its output `{name}` has the shape {shape:?} where {all} rows were asked for"
            ));
        }
        let mut start = 0;
        for (part, &count) in parts.iter_mut().zip(rows) {
            let range = start..start + count;
            start += count;
            part.push(NamedTensor::new(name.clone(), take(tensor, range, all)?));
        }
    }
    Ok(parts)
}

/// A copy of some of a tensor's rows: an answer that is taken slowly holds no other's.
fn take(tensor: &Tensor, range: std::ops::Range<u64>, all: u64) -> Result<Tensor, String> {
    let mut shape = tensor.shape().to_vec();
    if let Some(first) = shape.first_mut() {
        *first = range.end - range.start;
    }
    // Within the tensor's own size, which is addressed.
    let part = |length: usize| {
        let each = length / all.max(1) as usize;
        range.start as usize * each..range.end as usize * each
    };
    let taken = match tensor.data() {
        Data::Fixed(buffer) => Tensor::fixed(tensor.datatype(), shape, &buffer[part(buffer.len())]),
        Data::Bytes(strings) => {
            let part = part(strings.len());
            Tensor::bytes(shape, strings.iter().skip(part.start).take(part.len()).collect())
        }
    };
    taken.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::tensor::Datatype;

    fn int8(name: &str, shape: &[u64], start: u8) -> NamedTensor {
        let count = shape.iter().product::<u64>() as u8;
        let data: Vec<u8> = (start..start + count).collect();
        NamedTensor::new(name, Tensor::fixed(Datatype::Int8, shape, data).unwrap())
    }

    fn text(name: &str, elements: &[&str]) -> NamedTensor {
        let shape = [elements.len() as u64];
        NamedTensor::new(name, Tensor::bytes(shape, Strings::from_iter(elements)).unwrap())
    }

    #[test]
    fn what_is_joined_comes_apart_again() {
        let requests = [
            vec![int8("x", &[1, 2], 0), text("t", &["a"])],
            vec![int8("x", &[3, 2], 2), text("t", &["b", "", "cd"])],
            vec![int8("x", &[1, 2], 8), text("t", &["e"])],
        ];
        let joined = join(&requests).unwrap();
        assert_eq!(joined[0].tensor.shape(), [5, 2]);
        assert_eq!(joined[0].tensor.as_fixed(), Some(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..]));
        assert_eq!(
            joined[1].tensor.as_strings().unwrap().iter().collect::<Vec<_>>(),
            [&b"a"[..], b"b", b"", b"cd", b"e"]
        );
        let parts = split(&joined, &[1, 3, 1]).unwrap();
        for (part, request) in parts.iter().zip(&requests) {
            for (one, other) in part.iter().zip(request) {
                assert_eq!((&one.name, one.tensor.shape()), (&other.name, other.tensor.shape()));
                assert_eq!(one.tensor.as_fixed(), other.tensor.as_fixed());
                let strings = |tensor: &Tensor| {
                    tensor.as_strings().map(|it| it.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
                };
                assert_eq!(strings(&one.tensor), strings(&other.tensor));
            }
        }
    }

    #[test]
    fn an_answer_without_its_rows_is_no_answer() {
        for wrong in [int8("y", &[2, 5], 0), int8("y", &[], 0), int8("y", &[4], 0)] {
            assert!(split(&[wrong], &[1, 4]).unwrap_err().contains("`y`"));
        }
    }

    #[test]
    fn only_what_is_alike_goes_together() {
        let one = [int8("x", &[1, 2], 0), text("t", &["a"])];
        assert_eq!(rows(&one), Some(1));
        assert!(alike(&one, &[int8("x", &[7, 2], 0), text("t", &["b"])]));
        for other in [
            vec![int8("x", &[1, 3], 0), text("t", &["a"])],
            vec![int8("x", &[2], 0), text("t", &["a"])],
            vec![int8("z", &[1, 2], 0), text("t", &["a"])],
            vec![text("x", &["a"]), text("t", &["a"])],
            vec![int8("x", &[1, 2], 0)],
        ] {
            assert!(!alike(&one, &other), "{other:?}");
        }
        for alone in [
            vec![],
            vec![int8("x", &[], 0)],
            vec![int8("x", &[0, 2], 0)],
            vec![int8("x", &[1], 0), int8("y", &[2], 0)],
        ] {
            assert_eq!(rows(&alone), None, "{alone:?}");
        }
    }
}
