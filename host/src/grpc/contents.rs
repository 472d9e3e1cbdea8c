//! Elements of a tensor as numbers and texts of a message (`InferTensorContents`), both ways.
//!
//! FP16 and BF16 have no such form: they come and go as raw bytes only.

use selvedge_package::tensor::Datatype;

use super::Wrong;
use crate::oip::elements;
use crate::protobuf::{Fields, Message, Value, packed_length, varint};
use crate::tensor::{Strings, Tensor};

/// Fields of the message, by number from 1.
const NAMES: [&str; 8] = [
    "bool_contents",
    "int_contents",
    "int64_contents",
    "uint_contents",
    "uint64_contents",
    "fp32_contents",
    "fp64_contents",
    "bytes_contents",
];

/// The field that the elements of a type stand in.
pub fn field(datatype: Datatype) -> Option<u32> {
    match datatype {
        Datatype::Bool => Some(1),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => Some(2),
        Datatype::Int64 => Some(3),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => Some(4),
        Datatype::Uint64 => Some(5),
        Datatype::Fp32 => Some(6),
        Datatype::Fp64 => Some(7),
        Datatype::Bytes => Some(8),
        Datatype::Fp16 | Datatype::Bf16 => None,
    }
}

fn name(field: u32) -> &'static str {
    NAMES.get((field as usize).wrapping_sub(1)).copied().unwrap_or("a field")
}

/// Bytes that a tensor of `shape` takes beside the message that its elements stand in; refused where those
/// are more than `limit`.
pub fn takes(datatype: Datatype, shape: &[u64], contents: usize, limit: usize) -> Result<usize, Wrong> {
    let count = elements::count(shape, datatype, limit)?;
    Ok(match datatype.size() {
        Some(size) => count.saturating_mul(size),
        None => count.saturating_mul(size_of::<usize>()).saturating_add(contents),
    })
}

/// Reads a tensor of `shape`, which may hold at most `limit` bytes.
pub fn read(datatype: Datatype, shape: &[u64], contents: &[u8], limit: usize) -> Result<Tensor, Wrong> {
    let count = elements::count(shape, datatype, limit)?;
    let Some(wanted) = field(datatype) else {
        return Err(format!("{datatype} has no form in `contents`: send it in `raw_input_contents`"));
    };
    let mut elements = Elements::of(datatype, count, contents.len(), limit);
    for found in Fields::new(contents) {
        let (number, value) = found?;
        match (number, value) {
            (number, value) if number == wanted => elements.add(value)?,
            // An empty list of another kind says nothing.
            (1..=8, Value::Bytes([])) if number != 8 => {}
            (1..=8, _) => {
                let (came, wanted) = (name(number), name(wanted));
                return Err(format!("elements are in `{came}`, and those of {datatype} stand in `{wanted}`"));
            }
            _ => {}
        }
    }
    elements.tensor(shape)
}

/// Elements read so far.
struct Elements {
    datatype: Datatype,
    count: usize,
    limit: usize,
    /// Elements of fixed size, or those of BYTES one after another.
    fixed: Vec<u8>,
    /// Ends of those of BYTES.
    ends: Vec<usize>,
}

impl Elements {
    /// Room for all that can be in so many bytes, so that nothing grows: a number takes a byte of them at least,
    /// an element of BYTES two.
    fn of(datatype: Datatype, count: usize, contents: usize, limit: usize) -> Self {
        let (fixed, ends) = match datatype.size() {
            Some(size) => (count.min(contents) * size, 0),
            None => {
                let ends = count.min(contents / 2);
                (contents - 2 * ends, ends)
            }
        };
        let (fixed, ends) = (Vec::with_capacity(fixed.min(limit)), Vec::with_capacity(ends));
        Self { datatype, count, limit, fixed, ends }
    }

    fn have(&self) -> usize {
        self.datatype.size().map_or(self.ends.len(), |size| self.fixed.len() / size)
    }

    /// Adds an element, or a packed list of them.
    fn add(&mut self, value: Value<'_>) -> Result<(), Wrong> {
        match (self.datatype, value) {
            (Datatype::Bytes, Value::Bytes(element)) => {
                self.room()?;
                self.fixed.extend_from_slice(element);
                self.ends.push(self.fixed.len());
                let takes = self.fixed.len().saturating_add(self.ends.len() * size_of::<usize>());
                if takes > self.limit {
                    return Err(format!("larger than the package's limit of {} bytes", self.limit));
                }
                Ok(())
            }
            (Datatype::Fp32, Value::Narrow(bytes)) => self.packed(&bytes, 4),
            (Datatype::Fp32, Value::Bytes(bytes)) => self.packed(bytes, 4),
            (Datatype::Fp64, Value::Wide(bytes)) => self.packed(&bytes, 8),
            (Datatype::Fp64, Value::Bytes(bytes)) => self.packed(bytes, 8),
            (_, Value::Number(number)) => self.number(number),
            (_, Value::Bytes(mut numbers)) => {
                while !numbers.is_empty() {
                    let number = varint(&mut numbers).map_err(|fault| self.at(&fault.to_string()))?;
                    self.number(number)?;
                }
                Ok(())
            }
            _ => Err(self.at("of another kind than its list")),
        }
    }

    fn at(&self, problem: &str) -> Wrong {
        format!("element {}: {problem}", self.have())
    }

    fn room(&self) -> Result<(), Wrong> {
        if self.have() == self.count {
            return Err(format!("its shape takes {} elements, and more came", self.count));
        }
        Ok(())
    }

    fn packed(&mut self, bytes: &[u8], size: usize) -> Result<(), Wrong> {
        if !bytes.len().is_multiple_of(size) {
            return Err(self.at("cut off"));
        }
        if bytes.len() / size > self.count - self.have() {
            return Err(format!("its shape takes {} elements, and more came", self.count));
        }
        self.fixed.extend_from_slice(bytes);
        Ok(())
    }

    fn number(&mut self, number: u64) -> Result<(), Wrong> {
        self.room()?;
        // `int32` is written with all 64 bits of its sign.
        let signed = number.cast_signed();
        let fits = match self.datatype {
            Datatype::Bool => number <= 1,
            Datatype::Uint8 => u8::try_from(number).is_ok(),
            Datatype::Uint16 => u16::try_from(number).is_ok(),
            Datatype::Uint32 => u32::try_from(number).is_ok(),
            Datatype::Int8 => i8::try_from(signed).is_ok(),
            Datatype::Int16 => i16::try_from(signed).is_ok(),
            Datatype::Int32 => i32::try_from(signed).is_ok(),
            Datatype::Int64 | Datatype::Uint64 => true,
            // Their lists hold no such numbers.
            _ => false,
        };
        let Some(size) = self.datatype.size().filter(|_| fits) else {
            let shown = match self.datatype {
                Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => signed.to_string(),
                _ => number.to_string(),
            };
            return Err(self.at(&format!("{shown} does not fit {}", self.datatype)));
        };
        self.fixed.extend_from_slice(&number.to_le_bytes()[..size]);
        Ok(())
    }

    fn tensor(self, shape: &[u64]) -> Result<Tensor, Wrong> {
        let have = self.have();
        if have != self.count {
            return Err(format!("its shape takes {} elements, and {have} came", self.count));
        }
        let tensor = match self.datatype {
            Datatype::Bytes => {
                // The ends grow and the last one is the length, as every element was appended.
                let strings =
                    Strings::packed(self.ends, self.fixed).ok_or("the elements are no BYTES tensor")?;
                Tensor::bytes(shape, strings)
            }
            datatype => Tensor::fixed(datatype, shape, self.fixed),
        };
        tensor.map_err(|error| error.to_string())
    }
}

/// Bytes that [`write`] takes for a tensor.
pub fn length(tensor: &Tensor) -> usize {
    let Some(field) = field(tensor.datatype()) else { return 0 };
    if let Some(strings) = tensor.as_strings() {
        return strings.iter().map(|element| Message::takes(field, element.len())).sum();
    }
    let packed = match tensor.datatype() {
        Datatype::Fp32 | Datatype::Fp64 => tensor.byte_length(),
        _ => packed_length(numbers(tensor)),
    };
    if packed == 0 { 0 } else { Message::takes(field, packed) }
}

/// Elements that are whole numbers, as they are written: a negative one with all bits of its sign.
fn numbers(tensor: &Tensor) -> impl Iterator<Item = u64> + Clone {
    let size = tensor.datatype().size().unwrap_or(1);
    let signed = matches!(tensor.datatype(), Datatype::Int8 | Datatype::Int16 | Datatype::Int32);
    tensor.as_fixed().unwrap_or_default().chunks_exact(size).map(move |element| {
        let negative = signed && element.last().is_some_and(|last| *last >= 0x80);
        let mut whole = if negative { [0xff; 8] } else { [0; 8] };
        whole[..size].copy_from_slice(element);
        u64::from_le_bytes(whole)
    })
}

/// Writes the elements of a tensor into a message; there is a [`field`] for its type.
pub fn write(tensor: &Tensor, message: &mut Message) {
    let Some(field) = field(tensor.datatype()) else { return };
    if let Some(strings) = tensor.as_strings() {
        strings.iter().for_each(|element| {
            message.part(field, element);
        });
        return;
    }
    match tensor.datatype() {
        Datatype::Fp32 | Datatype::Fp64 => message.bytes(field, tensor.as_fixed().unwrap_or_default()),
        _ => message.packed(field, numbers(tensor)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::tensor_json::DATATYPES;

    const LIMIT: usize = 1 << 16;

    fn written(tensor: &Tensor) -> Vec<u8> {
        let mut message = Message::default();
        write(tensor, &mut message);
        message.into_bytes()
    }

    #[test]
    fn every_type_that_has_a_form_comes_back() {
        for datatype in DATATYPES {
            let tensor = match datatype.size() {
                None => Tensor::bytes([3], Strings::from_iter([&b"a"[..], b"", b"\xff\0"])).unwrap(),
                Some(size) => {
                    // The least, the greatest, and something between.
                    let sign = |byte| [&vec![0; size - 1][..], &[byte]].concat();
                    let bytes = match datatype {
                        Datatype::Bool => vec![0, 1, 1],
                        _ => [sign(0x80), sign(0x7f), vec![0xff; size]].concat(),
                    };
                    Tensor::fixed(datatype, [3], bytes).unwrap()
                }
            };
            let contents = written(&tensor);
            assert_eq!(contents.len(), length(&tensor), "{datatype}");
            let came = read(datatype, &[3], &contents, LIMIT);
            if field(datatype).is_none() {
                assert!(contents.is_empty() && came.unwrap_err().contains("raw_input_contents"));
                continue;
            }
            let came = came.unwrap_or_else(|wrong| panic!("{datatype}: {wrong}"));
            assert_eq!(came.as_fixed(), tensor.as_fixed(), "{datatype}");
            let all = |tensor: &Tensor| -> Vec<Vec<u8>> {
                tensor
                    .as_strings()
                    .into_iter()
                    .flat_map(|s| s.iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
                    .collect()
            };
            assert_eq!(all(&came), all(&tensor));
            let takes = takes(datatype, &[3], contents.len(), LIMIT).unwrap();
            assert!(takes >= came.footprint(), "{datatype}: {takes}");
            assert!(
                read(datatype, &[2], &contents, LIMIT).is_err()
                    && read(datatype, &[4], &contents, LIMIT).is_err()
            );
        }
    }

    fn check(datatype: Datatype, shape: &[u64], contents: &[u8], says: &str) {
        match read(datatype, shape, contents, LIMIT) {
            Err(wrong) => assert!(wrong.contains(says), "{wrong}"),
            Ok(_) => assert_eq!(says, "", "{contents:x?}"),
        }
    }

    #[test]
    fn lists_may_be_packed_or_not_and_stand_in_their_field() {
        check(Datatype::Int8, &[3], &[0x10, 1, 0x12, 1, 2, 0x10, 3], "");
        check(Datatype::Fp32, &[2], &[0x35, 0, 0, 0, 0, 0x32, 4, 0, 0, 0, 0], "");
        check(Datatype::Fp64, &[1], &[0x39, 0, 0, 0, 0, 0, 0, 0, 0], "");
        check(Datatype::Int8, &[0], &[], "");
        check(Datatype::Int8, &[1], &[0x32, 0, 0x10, 1], "");
        check(
            Datatype::Int8,
            &[1],
            &[0x20, 1],
            "elements are in `uint_contents`, and those of INT8 stand in `int_contents`",
        );
        check(Datatype::Int8, &[1], &[0x42, 0], "`bytes_contents`");
        check(Datatype::Int8, &[1], &[0x15, 0, 0, 0, 0], "element 0: of another kind");
        check(Datatype::Fp32, &[1], &[0x32, 3, 0, 0, 0], "element 0: cut off");
        check(Datatype::Fp32, &[1], &[0x32, 8, 0, 0, 0, 0, 0, 0, 0, 0], "takes 1 elements, and more came");
        check(Datatype::Int8, &[2], &[0x12, 1, 2], "takes 2 elements, and 1 came");
        check(Datatype::Int8, &[1], &[0x12, 2, 1, 2], "takes 1 elements, and more came");
        check(Datatype::Uint8, &[2], &[0x22, 3, 1, 0x80, 2], "element 1: 256 does not fit UINT8");
        check(Datatype::Bool, &[1], &[0x0a, 1, 2], "element 0: 2 does not fit BOOL");
        let minus_129 = [0x10, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        check(Datatype::Int8, &[1], &minus_129, "element 0: -129 does not fit INT8");
        check(Datatype::Int16, &[1], &minus_129, "");
        check(Datatype::Int8, &[1], &[0x12, 1, 0x80], "element 0: a number is cut off");
        check(Datatype::Int8, &[u64::MAX, 2], &[], "larger than the package's limit");
        check(Datatype::Bytes, &[1 << 13], &[], "and 0 came");
        check(Datatype::Bytes, &[1 << 14], &[], "larger than the package's limit");
    }

    #[test]
    fn nothing_grows_while_it_is_read() {
        let check = |datatype, count: usize, contents: &[u8], expected: (usize, usize)| {
            let mut elements = Elements::of(datatype, count, contents.len(), LIMIT);
            let room = |elements: &Elements| (elements.fixed.capacity(), elements.ends.capacity());
            assert_eq!(room(&elements), expected);
            for field in Fields::new(contents) {
                elements.add(field.unwrap().1).unwrap();
            }
            assert_eq!((elements.have(), room(&elements)), (count, expected), "{datatype}");
        };
        check(Datatype::Int64, 300, &[0x18, 1].repeat(300), (2400, 0));
        check(Datatype::Int64, 300, &[&[0x1a, 0xac, 2][..], &[1; 300]].concat(), (2400, 0));
        check(Datatype::Fp32, 300, &[0x35, 0, 0, 0, 0].repeat(300), (1200, 0));
        check(Datatype::Bytes, 300, &[0x42, 1, b'a'].repeat(300), (300, 300));
        check(Datatype::Bytes, 300, &[0x42, 0].repeat(300), (0, 300));
        // A shape alone gets no room.
        assert_eq!(Elements::of(Datatype::Fp64, 8000, 3, LIMIT).fixed.capacity(), 24);
    }

    proptest::proptest! {
        #[test]
        fn bytes_from_anywhere_never_panic(bytes: Vec<u8>, count in 0_u64..6, kind in 0_usize..14) {
            let _ = read(DATATYPES[kind], &[count], &bytes, LIMIT);
        }
    }
}
