//! Reads messages, field by field and in place.

/// Why bytes are no message, or a field not what is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A number without its end, or of more than 64 bits.
    #[error("a number is cut off, or has more than 64 bits")]
    Number,
    /// A field whose number cannot be one.
    #[error("a field has no number: this is no protobuf message")]
    NoNumber,
    /// A group, or a kind that never was.
    #[error("field {0} is of a kind that protobuf does not have any more")]
    Kind(u32),
    /// A field that is longer than what is left of its message.
    #[error("field {0} goes past the end of its message")]
    PastTheEnd(u32),
    /// Something else where a number is looked for.
    #[error("a number is expected")]
    NotANumber,
    /// Something else where bytes are looked for.
    #[error("bytes are expected")]
    NotBytes,
    /// Text of more bytes than it may have.
    #[error("longer than {0} bytes")]
    Long(usize),
    /// Bytes where text is looked for.
    #[error("text that is not UTF-8")]
    NotText,
}

impl From<Fault> for String {
    fn from(fault: Fault) -> Self {
        fault.to_string()
    }
}

/// A field's value, as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of up to 64 bits.
    Number(u64),
    /// Four bytes: a `float`.
    Narrow([u8; 4]),
    /// Eight bytes: a `double`.
    Wide([u8; 8]),
    /// Text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// A number.
    pub fn number(self) -> Result<u64, Fault> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(Fault::NotANumber),
        }
    }

    /// Bytes.
    pub fn bytes(self) -> Result<&'a [u8], Fault> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Fault::NotBytes),
        }
    }

    /// Text of at most `most` bytes.
    pub fn text(self, most: usize) -> Result<&'a str, Fault> {
        let bytes = self.bytes()?;
        if bytes.len() > most {
            return Err(Fault::Long(most));
        }
        std::str::from_utf8(bytes).map_err(|_| Fault::NotText)
    }
}

/// The fields of a message, in order. Ends after the first fault.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
    /// Where it ends in what it is a part of.
    end: usize,
    broken: bool,
}

impl<'a> Fields<'a> {
    /// Of a message.
    pub fn new(message: &'a [u8]) -> Self {
        Self::within(message, 0)
    }

    /// Of a message that begins at byte `at` of something larger.
    pub fn within(message: &'a [u8], at: usize) -> Self {
        Self { rest: message, end: at + message.len(), broken: false }
    }

    /// The byte up to which they were read: the end of the last field; behind a fault, the place of that.
    pub fn at(&self) -> usize {
        self.end - self.rest.len()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Fault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.broken {
            return None;
        }
        // By its own name while it is read: it need not be in memory then.
        let mut rest = self.rest;
        let field = field(&mut rest);
        self.rest = rest;
        self.broken = field.is_err();
        Some(field)
    }
}

/// The field that `rest` begins with; what follows it is left, or what follows the place of a fault.
#[inline]
fn field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), Fault> {
    let tag = varint(rest)?;
    let number = match u32::try_from(tag >> 3) {
        Ok(number @ 1..=0x1fff_ffff) => number,
        _ => return Err(Fault::NoNumber),
    };
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        1 => Value::Wide(chunk(rest, number)?),
        2 => {
            let length = usize::try_from(varint(rest)?).unwrap_or(usize::MAX);
            let (bytes, after) = rest.split_at_checked(length).ok_or(Fault::PastTheEnd(number))?;
            *rest = after;
            Value::Bytes(bytes)
        }
        5 => Value::Narrow(chunk(rest, number)?),
        _ => return Err(Fault::Kind(number)),
    };
    Ok((number, value))
}

#[inline]
fn chunk<const LENGTH: usize>(rest: &mut &[u8], field: u32) -> Result<[u8; LENGTH], Fault> {
    let (taken, after) = rest.split_first_chunk().ok_or(Fault::PastTheEnd(field))?;
    *rest = after;
    Ok(*taken)
}

/// The number that `bytes` begin with; what follows it is left.
#[inline]
pub fn varint(bytes: &mut &[u8]) -> Result<u64, Fault> {
    // Nearly all are of one byte.
    let (number, length) = match **bytes {
        [byte @ ..0x80, ..] => (byte.into(), 1),
        _ => long_varint(bytes)?,
    };
    *bytes = &bytes[length..];
    Ok(number)
}

fn long_varint(bytes: &[u8]) -> Result<(u64, usize), Fault> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        if index == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Ok((value, index + 1));
        }
    }
    Err(Fault::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Message;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Fault> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn every_kind_of_field_comes_back() {
        let mut message = Message::default();
        message.number(1, 150).number(2, 0).bytes(3, "hi").bytes(4, "").packed(5, [1, 300].into_iter());
        message.chosen_number(6, 0);
        message.chosen_double(7, 1.5);
        message.message(8, |inner| {
            inner.number(1, u64::MAX);
        });
        message.part(9, "");
        let bytes = message.into_bytes();
        let mut inner = vec![8];
        inner.extend([0xff; 9]);
        inner.push(1);
        assert_eq!(
            read(&bytes).unwrap(),
            [
                (1, Value::Number(150)),
                (3, Value::Bytes(b"hi")),
                (5, Value::Bytes(&[1, 0xac, 2])),
                (6, Value::Number(0)),
                (7, Value::Wide(1.5_f64.to_le_bytes())),
                (8, Value::Bytes(&inner)),
                (9, Value::Bytes(b"")),
            ]
        );
        assert_eq!(read(&[0x0d, 0, 0, 0x80, 0x3f]).unwrap(), [(1, Value::Narrow(1_f32.to_le_bytes()))]);
        assert_eq!(&bytes[..3], [0x08, 0x96, 0x01], "as the standard's own example has it");
    }

    #[test]
    fn what_is_cut_off_or_no_message_is_refused_and_where() {
        let check = |bytes: &[u8], fault, at: usize| {
            let mut fields = Fields::within(bytes, 100);
            let found = fields.find_map(Result::err);
            assert_eq!((found, fields.at()), (Some(fault), 100 + at), "{bytes:x?}");
            assert!(fields.next().is_none(), "nothing comes behind a fault");
        };
        let past = Fault::PastTheEnd;
        check(&[0x08], Fault::Number, 1);
        check(&[0x10, 1, 0x12, 5, b'h', b'i'], past(2), 4);
        check(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], past(2), 11);
        check(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], Fault::Number, 1);
        check(&[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0], Fault::Number, 1);
        check(&[0x0b], Fault::Kind(1), 1);
        check(&[0x0c], Fault::Kind(1), 1);
        check(&[0x0e], Fault::Kind(1), 1);
        check(&[0x00, 0x00], Fault::NoNumber, 1);
        check(&[0x80, 0x80, 0x80, 0x80, 0x10, 0], Fault::NoNumber, 5);
        check(&[0x09, 1, 2], past(1), 1);
        check(&[0x0d, 1, 2, 3], past(1), 1);
        for bad in [&b"{\"inputs\":[]}"[..], b"<html>not a model</html>"] {
            assert!(read(bad).is_err(), "{bad:x?}");
        }
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(Value::Bytes(b"abc").text(2).unwrap_err(), Fault::Long(2));
        assert!(Value::Bytes(b"\xff").text(2).is_err());
        assert!(Value::Number(1).text(2).is_err() && Value::Bytes(b"").number().is_err());
    }

    proptest::proptest! {
        #[test]
        fn bytes_from_anywhere_never_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
