//! The `data` of a tensor from and to JSON.
//!
//! Elements go straight into the buffer that the model will see. Data is flat, or nested exactly as
//! the shape says; nothing in between. A scalar may stand bare or in one pair of brackets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use half::{bf16, f16};
use selvedge_package::tensor::Datatype;

use super::lexer::{JsonError, Lexer};
use super::number::{Boolean, Element};
use crate::tensor::{MAX_RANK, Strings, Tensor};

/// How BYTES elements stand in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As strings, whose UTF-8 is the element.
    #[default]
    Text,
    /// As standard base64 with padding.
    Base64,
}

/// Calls the generic function `$f::<T>` for the Rust type of a fixed-size datatype.
macro_rules! for_element {
    ($datatype:expr, $bytes:expr, $f:ident($($argument:expr),*)) => {
        match $datatype {
            Datatype::Bool => $f::<Boolean>($($argument),*),
            Datatype::Uint8 => $f::<u8>($($argument),*),
            Datatype::Uint16 => $f::<u16>($($argument),*),
            Datatype::Uint32 => $f::<u32>($($argument),*),
            Datatype::Uint64 => $f::<u64>($($argument),*),
            Datatype::Int8 => $f::<i8>($($argument),*),
            Datatype::Int16 => $f::<i16>($($argument),*),
            Datatype::Int32 => $f::<i32>($($argument),*),
            Datatype::Int64 => $f::<i64>($($argument),*),
            Datatype::Fp16 => $f::<f16>($($argument),*),
            Datatype::Bf16 => $f::<bf16>($($argument),*),
            Datatype::Fp32 => $f::<f32>($($argument),*),
            Datatype::Fp64 => $f::<f64>($($argument),*),
            Datatype::Bytes => $bytes,
        }
    };
}

/// Reads the data of a tensor of `shape`, which may hold at most `limit` bytes.
pub fn read(
    lexer: &mut Lexer<'_>,
    datatype: Datatype,
    shape: &[u64],
    encoding: Encoding,
    limit: usize,
) -> Result<Tensor, JsonError> {
    let count = count(shape, datatype, limit).map_err(|problem| lexer.error(problem))?;
    let at = lexer.clone();
    let tensor = for_element!(
        datatype,
        strings(lexer, shape, count, encoding, limit).map(|strings| Tensor::bytes(shape, strings)),
        fixed(lexer, datatype, shape, count)
    );
    tensor?.map_err(|error| at.error(error.to_string()))
}

/// Elements of `shape`, refused where a tensor of them would be larger than `limit` bytes.
pub fn count(shape: &[u64], datatype: Datatype, limit: usize) -> Result<usize, String> {
    if shape.len() > MAX_RANK {
        return Err(format!("{} dimensions: at most {MAX_RANK} are allowed", shape.len()));
    }
    // An element of BYTES costs at least its end.
    let size = datatype.size().unwrap_or(size_of::<usize>());
    let empty = shape.contains(&0);
    shape
        .iter()
        .filter(|&&extent| extent != 0)
        .try_fold(1_usize, |product, &extent| product.checked_mul(usize::try_from(extent).ok()?))
        .filter(|count| count.checked_mul(size).is_some_and(|bytes| empty || bytes <= limit))
        .map(|count| if empty { 0 } else { count })
        .ok_or_else(|| {
            format!("shape {shape:?} of {datatype} is larger than the package's limit of {limit} bytes")
        })
}

type FixedResult = Result<Result<Tensor, crate::tensor::TensorError>, JsonError>;

fn fixed<T: Element>(lexer: &mut Lexer<'_>, datatype: Datatype, shape: &[u64], count: usize) -> FixedResult {
    // Every element takes two bytes of text at least, so that a small body reserves little.
    let expected = count.min(lexer.left() / 2 + 1);
    let mut data = Vec::with_capacity(expected * size_of::<T::Bytes>());
    walk(lexer, shape, count, |lexer, most| {
        let mut take = |element: T| data.extend_from_slice(element.to_bytes().as_ref());
        let found = lexer.run(most, T::plain, &mut take);
        if found > 0 {
            return Ok(found);
        }
        match T::read(lexer) {
            Ok(element) => take(element),
            Err(error) => return Err(error.of_element(data.len() / size_of::<T::Bytes>())),
        }
        Ok(1)
    })?;
    Ok(Tensor::fixed(datatype, shape, data))
}

fn strings(
    lexer: &mut Lexer<'_>,
    shape: &[u64],
    count: usize,
    encoding: Encoding,
    limit: usize,
) -> Result<Strings, JsonError> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    walk(lexer, shape, count, |lexer, _| {
        let at = lexer.clone();
        let index = ends.len();
        let wrong = |problem: String| at.error(problem).of_element(index);
        let text = lexer.string().map_err(|error| error.of_element(index))?;
        match encoding {
            Encoding::Text => bytes.extend_from_slice(text.as_bytes()),
            Encoding::Base64 => BASE64
                .decode_vec(&*text, &mut bytes)
                .map_err(|error| wrong(format!("not base64: {error}")))?,
        }
        ends.push(bytes.len());
        if bytes.len() + ends.len() * size_of::<usize>() > limit {
            return Err(wrong(format!("larger than the package's limit of {limit} bytes")));
        }
        Ok(1)
    })?;
    // The ends grow and the last one is the length, as every element appended to `bytes`.
    Strings::packed(ends, bytes).ok_or_else(|| lexer.error("the elements are no BYTES tensor"))
}

/// Goes through data that is flat or nested as `shape`, calling `elements` before elements: it goes past one or more,
/// at most so many, and says past how many.
fn walk(
    lexer: &mut Lexer<'_>,
    shape: &[u64],
    count: usize,
    mut elements: impl FnMut(&mut Lexer<'_>, u64) -> Result<u64, JsonError>,
) -> Result<(), JsonError> {
    if shape.is_empty() && lexer.peek() != Some(b'[') {
        return elements(lexer, 1).map(drop);
    }
    let start = lexer.at();
    let nested = shape.len() > 1 && lexer.eat(b'[') && lexer.peek() == Some(b'[');
    lexer.go_to(start);
    let mut elements = |lexer: &mut Lexer<'_>, most| {
        // No element begins so: say what is wrong before it says that it is none.
        if lexer.peek() == Some(b'[') {
            return Err(lexer.error("nested otherwise than the shape"));
        }
        elements(lexer, most)
    };
    if nested { dimension(lexer, shape, &mut elements) } else { list(lexer, count as u64, &mut elements) }
}

/// One dimension of nested data. Recurses no deeper than the shape's rank.
fn dimension<F>(lexer: &mut Lexer<'_>, shape: &[u64], elements: &mut F) -> Result<(), JsonError>
where
    F: FnMut(&mut Lexer<'_>, u64) -> Result<u64, JsonError>,
{
    match shape {
        [] => elements(lexer, 1).map(drop),
        [extent] => list(lexer, *extent, elements),
        [extent, inner @ ..] => {
            list(lexer, *extent, &mut |lexer, _| dimension(lexer, inner, elements).map(|()| 1))
        }
    }
}

/// An array of exactly `count` values.
fn list<V>(lexer: &mut Lexer<'_>, count: u64, values: &mut V) -> Result<(), JsonError>
where
    V: FnMut(&mut Lexer<'_>, u64) -> Result<u64, JsonError>,
{
    let before = lexer.clone();
    let mut found = 0;
    lexer.array(|lexer, _| {
        if found == count {
            return Err(lexer.error(format!("more than the {count} values that the shape says")));
        }
        found += values(lexer, count - found)?;
        Ok(())
    })?;
    if found < count {
        return Err(before.error(format!("{found} values where the shape says {count}")));
    }
    Ok(())
}

/// Appends the elements of `tensor`, flat and in brackets. BYTES as `encoding` says; text that is
/// not UTF-8 does not occur, since [`encoding_of`] was asked.
pub fn write(tensor: &Tensor, encoding: Encoding, text: &mut Vec<u8>) {
    text.push(b'[');
    match tensor.as_strings() {
        Some(strings) => {
            for (index, element) in strings.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write_string(element, encoding, text);
            }
        }
        None => {
            let bytes = tensor.as_fixed().unwrap_or_default();
            for_element!(tensor.datatype(), (), write_fixed(bytes, text));
        }
    }
    text.push(b']');
}

fn write_fixed<T: Element>(bytes: &[u8], text: &mut Vec<u8>) {
    let size = size_of::<T::Bytes>();
    text.reserve(bytes.len() / size * 4);
    for (index, element) in bytes.chunks_exact(size).enumerate() {
        if index > 0 {
            text.push(b',');
        }
        T::from_bytes(element).write(text);
    }
}

fn write_string(element: &[u8], encoding: Encoding, text: &mut Vec<u8>) {
    match (encoding, std::str::from_utf8(element)) {
        // Writing into a vector does not fail.
        (Encoding::Text, Ok(element)) => drop(serde_json::to_writer(text, element)),
        _ => {
            text.push(b'"');
            text.extend_from_slice(BASE64.encode(element).as_bytes());
            text.push(b'"');
        }
    }
}

/// How a tensor has to be written: base64 where it was asked for, or where an element of it is not
/// UTF-8.
pub fn encoding_of(tensor: &Tensor, asked: Encoding) -> Encoding {
    match tensor.as_strings() {
        Some(strings) if strings.iter().any(|element| std::str::from_utf8(element).is_err()) => {
            Encoding::Base64
        }
        Some(_) => asked,
        None => Encoding::Text,
    }
}

/// One element as people read it in a message; `None` past the end. BYTES are cut to 60 characters.
pub fn show(tensor: &Tensor, index: usize) -> Option<String> {
    let mut text = Vec::new();
    match tensor.as_strings() {
        Some(strings) => {
            let lossy = String::from_utf8_lossy(strings.get(index)?).into_owned();
            let short: String = lossy.chars().take(60).collect();
            let dots = if short.len() < lossy.len() { "…" } else { "" };
            return Some(format!("{short:?}{dots}"));
        }
        None => {
            let size = tensor.datatype().size()?;
            let bytes = tensor.as_fixed()?.chunks_exact(size).nth(index)?;
            for_element!(tensor.datatype(), (), write_fixed(bytes, &mut text));
        }
    }
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn read_all(text: &str, datatype: Datatype, shape: &[u64], encoding: Encoding) -> Result<Tensor, String> {
        let mut lexer = Lexer::new(text);
        let tensor = read(&mut lexer, datatype, shape, encoding, LIMIT);
        let tensor = tensor.map_err(|error| error.problem)?;
        lexer.end().map_err(|error| error.problem)?;
        Ok(tensor)
    }

    fn int8(text: &str, shape: &[u64]) -> Result<Vec<u8>, String> {
        let tensor = read_all(text, Datatype::Int8, shape, Encoding::Text)?;
        Ok(tensor.as_fixed().unwrap().to_vec())
    }

    #[test]
    fn flat_or_nested_exactly() {
        let check = |text: &str, shape: &[u64], expected: Result<&[u8], &str>| {
            assert_eq!(int8(text, shape), expected.map(<[u8]>::to_vec).map_err(str::to_owned), "{text}");
        };
        check("[1,2,3,4]", &[2, 2], Ok(&[1, 2, 3, 4]));
        check(" [ [1 , 2] , [3,4] ] ", &[2, 2], Ok(&[1, 2, 3, 4]));
        check("[[[1,2]],[[3,4]]]", &[2, 1, 2], Ok(&[1, 2, 3, 4]));
        check("[]", &[0], Ok(&[]));
        check("[]", &[0, 2], Ok(&[]));
        check("[]", &[2, 0], Ok(&[]));
        check("[[],[]]", &[2, 0], Ok(&[]));
        check("[[],[]]", &[2, 0, 3], Ok(&[]));
        check("5", &[], Ok(&[5]));
        check("[5]", &[], Ok(&[5]));
        check("5", &[1], Err("expected an array, found `5`"));
        check("[[5]]", &[], Err("nested otherwise than the shape"));
        check("[[1,2]]", &[2], Err("nested otherwise than the shape"));
        check("[[[1,2]]]", &[1, 2], Err("nested otherwise than the shape"));
        check("[[1],[2],[3],[4]]", &[2, 2], Err("1 values where the shape says 2"));
        check("[[1,2,3,4]]", &[2, 2], Err("more than the 2 values that the shape says"));
        check("[[1,2],3,4]", &[2, 2], Err("expected an array, found `3`"));
        check("[1,2,[3,4]]", &[2, 2], Err("nested otherwise than the shape"));
        check("[1,2,3]", &[2, 2], Err("3 values where the shape says 4"));
        check("[1,2,3,4,5]", &[2, 2], Err("more than the 4 values that the shape says"));
        check("[1]", &[0], Err("more than the 0 values that the shape says"));
        check("[]", &[], Err("0 values where the shape says 1"));
        check("[[],[],[]]", &[2, 0], Err("more than the 2 values that the shape says"));
        check("[1,2", &[2], Err("expected `,` or `]`, found the end"));
        check("{}", &[1], Err("expected an array, found `{`"));
        check("\"AQ==\"", &[1], Err("expected an array, found `\\\"`"));
        check("[1,null]", &[2], Err("element 1: expected a number, found `n`"));
        check("[[1,2],[3,128]]", &[2, 2], Err("element 3: 128 does not fit INT8"));
        check("[1, 2 ,3,\t4\n]", &[4], Ok(&[1, 2, 3, 4]));
        check("[1,,2]", &[2], Err("element 1: expected a number, found `,`"));
        check("[1,2,]", &[3], Err("element 2: expected a number, found `]`"));
        check("[1,2 3]", &[3], Err("expected `,` or `]`, found `3`"));
        check("[1,2", &[3], Err("expected `,` or `]`, found the end"));
        check("[1,2,", &[3], Err("element 2: expected a number, found the end"));
        check("[1,-,3]", &[3], Err("element 1: expected a number, found `-`"));
        check("[1,02]", &[2], Err("expected `,` or `]`, found `2`"));
        check("[1,-0,3]", &[3], Ok(&[1, 0, 3]));
    }

    #[test]
    fn brackets_without_end_are_refused_at_once() {
        let brackets = "[".repeat(200_000);
        for shape in [&[1][..], &[1, 1], &[1; MAX_RANK]] {
            assert!(int8(&brackets, shape).is_err());
        }
    }

    #[test]
    fn a_shape_reserves_no_more_than_the_text_and_the_limit_allow() {
        assert!(int8("[1]", &[1 << 40]).unwrap_err().contains("limit of 1048576 bytes"));
        assert!(int8("[1]", &[u64::MAX, u64::MAX]).unwrap_err().contains("limit"));
        assert!(int8("[1]", &[1; MAX_RANK + 1]).unwrap_err().contains("dimensions"));
        assert_eq!(int8("[]", &[0, 1 << 20, 3]), Ok(Vec::new()));
        assert!(int8("[]", &[0, u64::MAX, u64::MAX]).unwrap_err().contains("limit"));
        let many = format!("[{}\"\"]", "\"\",".repeat(LIMIT / 8));
        let wide = [LIMIT as u64 / 8 + 1];
        assert!(read_all(&many, Datatype::Bytes, &wide, Encoding::Text).unwrap_err().contains("limit"));
    }

    #[test]
    fn bytes_are_strings_or_base64() {
        let check = |text: &str, encoding, expected: Result<&[&[u8]], &str>| {
            let shape = [expected.map_or(1, <[_]>::len) as u64];
            match (read_all(text, Datatype::Bytes, &shape, encoding), expected) {
                (Ok(tensor), Ok(expected)) => {
                    assert_eq!(tensor.as_strings().unwrap().iter().collect::<Vec<_>>(), expected);
                }
                (Err(actual), Err(expected)) => assert!(actual.contains(expected), "{actual}"),
                (actual, expected) => panic!("{text}: {actual:?}, {expected:?}"),
            }
        };
        check(r#"["grün","","\u0000"]"#, Encoding::Text, Ok(&["grün".as_bytes(), b"", b"\0"]));
        check(r#"["/wA=",""]"#, Encoding::Base64, Ok(&[&[0xff, 0], b""]));
        check(r#"["/wA"]"#, Encoding::Base64, Err("element 0: not base64"));
        check(r#"["%"]"#, Encoding::Base64, Err("element 0: not base64"));
        check("[1]", Encoding::Text, Err("element 0: expected a string"));
    }

    #[test]
    fn writes_text_where_it_can() {
        let check = |elements: &[&[u8]], asked, expected: &str| {
            let strings = elements.iter().collect::<Strings>();
            let tensor = Tensor::bytes([elements.len() as u64], strings).unwrap();
            let mut text = Vec::new();
            write(&tensor, encoding_of(&tensor, asked), &mut text);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        };
        check(&[b"a\"\n", b""], Encoding::Text, r#"["a\"\n",""]"#);
        check(&[b"a"], Encoding::Base64, r#"["YQ=="]"#);
        check(&[b"a", &[0xff]], Encoding::Text, r#"["YQ==","/w=="]"#);
    }

    mod round_trip {
        use super::*;
        use proptest::prelude::*;

        fn datatype() -> impl Strategy<Value = Datatype> {
            use Datatype::*;
            prop::sample::select(vec![
                Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Bf16, Fp32, Fp64,
            ])
        }

        proptest! {
            #[test]
            fn of_numbers(datatype in datatype(), words in prop::collection::vec(any::<u64>(), 0..64)) {
                let size = datatype.size().unwrap();
                let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let shape = [(data.len() / size) as u64];
                let tensor = Tensor::fixed(datatype, shape, data).unwrap();
                let mut text = Vec::new();
                write(&tensor, Encoding::Text, &mut text);
                let text = String::from_utf8(text).unwrap();
                let back = read_all(&text, datatype, &shape, Encoding::Text).unwrap();
                let mut again = Vec::new();
                write(&back, Encoding::Text, &mut again);
                // Text, since the payload of a NaN is not kept.
                prop_assert_eq!(text.as_bytes(), &again[..]);
                if !text.contains("NaN") {
                    prop_assert_eq!(tensor.as_fixed(), back.as_fixed());
                }
            }

            #[test]
            fn of_bytes(elements in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..8)) {
                let shape = [elements.len() as u64];
                let tensor = Tensor::bytes(shape, elements.iter().collect::<Strings>()).unwrap();
                let encoding = encoding_of(&tensor, Encoding::Text);
                let mut text = Vec::new();
                write(&tensor, encoding, &mut text);
                let text = String::from_utf8(text).unwrap();
                let back = read_all(&text, Datatype::Bytes, &shape, encoding).unwrap();
                prop_assert!(back.as_strings().unwrap().iter().eq(elements.iter().map(|e| &e[..])));
            }
        }
    }
}
