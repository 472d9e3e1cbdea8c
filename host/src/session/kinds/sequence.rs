//! A sequence of tensors `s` as two tensors: `s`, the elements of all items one after another, and
//! `s.shapes`, INT64, the extents of each item in a row of its own, filled up with -1 at its end.

use ort::value::{DynTensorValueType, DynValue, Sequence};
use selvedge_package::tensor::Datatype;

use super::element::{Element, part_of};
use super::{MOST_ITEMS, malformed};
use crate::session::values::ValueError;
use crate::tensor::{Buffer, MAX_RANK, Strings, Tensor};

/// A sequence of copies of the items.
pub fn to_value(element: Element, items: &Tensor, shapes: &Tensor) -> Result<DynValue, ValueError> {
    element.check(items)?;
    let rows = rows(shapes, items.elements())?;
    // ONNX Runtime makes none from outside.
    if rows.is_empty() {
        return Err(malformed("an empty sequence, which ONNX Runtime does not take"));
    }
    let mut start = 0;
    let mut values = Vec::with_capacity(rows.len());
    for (extents, count) in rows {
        values.push(part_of(element.part(items, start, count, &extents)?)?);
        start += count;
    }
    Ok(Sequence::new(values)?.into_dyn())
}

/// Extents and number of elements of each item; together they are `elements`.
fn rows(shapes: &Tensor, elements: usize) -> Result<Vec<(Vec<i64>, usize)>, ValueError> {
    let ([items, columns], Datatype::Int64) = (shapes.shape(), shapes.datatype()) else {
        return Err(malformed("`shapes` is no INT64 of two dimensions"));
    };
    let many = || malformed(format!("a sequence of {items} items; at most {MOST_ITEMS} are allowed"));
    let items = usize::try_from(*items).ok().filter(|&items| items <= MOST_ITEMS).ok_or_else(many)?;
    let rank = || malformed(format!("items of {columns} dimensions; at most {MAX_RANK} are allowed"));
    let columns = usize::try_from(*columns).ok().filter(|&columns| columns <= MAX_RANK).ok_or_else(rank)?;
    let bytes = shapes.as_fixed().unwrap_or_default();
    let extent = |at: usize| {
        let bytes = bytes.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(-1, i64::from_le_bytes)
    };
    let (mut rows, mut sum) = (Vec::with_capacity(items), 0_usize);
    for item in 0..items {
        let row: Vec<i64> = (0..columns).map(|column| extent(item * columns + column)).collect();
        let filled = row.iter().position(|&extent| extent == -1).unwrap_or(columns);
        let (extents, rest) = row.split_at(filled);
        if extents.iter().any(|&extent| extent < 0) || rest.iter().any(|&extent| extent != -1) {
            return Err(malformed(format!("item {item}: {row:?} are no extents")));
        }
        // What would overflow but for an extent of zero is refused, too, as it is of any tensor.
        let count = extents
            .iter()
            .filter(|&&extent| extent != 0)
            .try_fold(1_usize, |count, &extent| count.checked_mul(usize::try_from(extent).ok()?))
            .map(|count| if extents.contains(&0) { 0 } else { count });
        sum = count.and_then(|count| sum.checked_add(count)).filter(|&sum| sum <= elements).ok_or_else(
            || malformed(format!("item {item}: {extents:?} goes past the {elements} elements")),
        )?;
        rows.push((extents.to_vec(), count.unwrap_or_default()));
    }
    if sum != elements {
        return Err(malformed(format!("{elements} elements, of which its items have {sum}")));
    }
    Ok(rows)
}

/// What ONNX Runtime gave: elements, and shapes.
pub fn from_value(element: Element, value: DynValue) -> Result<[Tensor; 2], ValueError> {
    let sequence: Sequence<DynTensorValueType> = value.downcast()?;
    if sequence.len() > MOST_ITEMS {
        return Err(malformed(format!("a sequence of {} items; at most {MOST_ITEMS} cross", sequence.len())));
    }
    let items = sequence.try_extract_sequence::<DynTensorValueType>()?;
    let items: Vec<Tensor> =
        items.into_iter().map(|item| element.tensor(&item.into_dyn())).collect::<Result<_, _>>()?;
    let columns = items.iter().map(|item| item.shape().len()).max().unwrap_or(0);
    let mut shapes = Vec::with_capacity(items.len() * columns);
    for item in &items {
        let extents = item.shape().iter().map(|&extent| extent.cast_signed());
        shapes.extend(extents.chain(std::iter::repeat(-1)).take(columns));
    }
    let count = [items.iter().map(|item| item.elements() as u64).sum::<u64>()];
    let all = if element.datatype() == Datatype::Bytes {
        Tensor::bytes(
            count,
            Strings::from_iter(items.iter().filter_map(Tensor::as_strings).flat_map(Strings::iter)),
        )
    } else {
        let bytes: Vec<u8> = items.iter().filter_map(Tensor::as_fixed).flatten().copied().collect();
        Tensor::fixed(element.datatype(), count, bytes)
    };
    let shape = [items.len() as u64, columns as u64];
    let shapes = Tensor::fixed(Datatype::Int64, shape, Buffer::from(&shapes[..]));
    Ok([all.map_err(ValueError::Malformed)?, shapes.map_err(ValueError::Malformed)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: [u64; 2], extents: &[i64], elements: usize) -> Result<Vec<(Vec<i64>, usize)>, String> {
        let shapes = Tensor::fixed(Datatype::Int64, shape, Buffer::from(extents)).unwrap();
        rows(&shapes, elements).map_err(|error| error.to_string())
    }

    #[test]
    fn every_row_is_the_shape_of_an_item() {
        let expected = vec![(vec![2, 3], 6), (vec![4], 4), (vec![], 1), (vec![0, 9], 0)];
        assert_eq!(check([4, 2], &[2, 3, 4, -1, -1, -1, 0, 9], 11), Ok(expected));
        assert_eq!(check([2, 0], &[], 2), Ok(vec![(vec![], 1), (vec![], 1)]));
        assert_eq!(check([0, 0], &[], 0), Ok(vec![]));
    }

    #[test]
    fn what_is_no_list_of_shapes_is_refused() {
        for (shape, extents, elements, says) in [
            ([1, 2], &[-1, 2][..], 2, "item 0: [-1, 2] are no extents"),
            ([1, 1], &[-2], 2, "item 0: [-2] are no extents"),
            ([2, 1], &[2, 2], 3, "item 1: [2] goes past the 3 elements"),
            ([1, 1], &[2], 3, "3 elements, of which its items have 2"),
            ([1, 2], &[i64::MAX, i64::MAX], 3, "goes past the 3 elements"),
            ([1, 3], &[i64::MAX, 0, i64::MAX], 0, "goes past the 0 elements"),
            ([1 << 40, 0], &[], 3, "a sequence of 1099511627776 items"),
            ([0, 1 << 40], &[], 0, "items of 1099511627776 dimensions"),
        ] {
            let error = check(shape, extents, elements).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
