//! Reads protobuf's wire format, field by field, without copying and without a schema.

use super::OnnxError;

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of any width.
    Number,
    /// Bytes: text, a message or packed numbers; and where they begin in the file.
    Message(&'a [u8], usize),
}

/// The fields of a message, in order. Ends after the first error.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the message in `bytes`, which begins at byte `at` of the file.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { rest: bytes, at }
    }

    fn error<T>(&self, what: &'static str) -> Result<T, OnnxError> {
        Err(OnnxError::Protobuf(what, self.at))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], OnnxError> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return self.error("a field that goes past the end");
        };
        self.rest = rest;
        self.at += length;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, OnnxError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = u64::from(self.take(1)?[0]);
            if shift == 63 && byte > 1 {
                break;
            }
            value |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        self.error("a number of more than 64 bits")
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), OnnxError> {
        let tag = self.varint()?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number @ 1..=0x1fff_ffff) => number,
            _ => return self.error("a field without a number"),
        };
        let value = match tag & 7 {
            0 => {
                self.varint()?;
                Value::Number
            }
            1 => {
                self.take(8)?;
                Value::Number
            }
            2 => {
                let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                let at = self.at;
                Value::Message(self.take(length)?, at)
            }
            5 => {
                self.take(4)?;
                Value::Number
            }
            _ => return self.error("a field of an unknown kind"),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), OnnxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, OnnxError> {
        Fields::new(bytes, 0).collect()
    }

    #[test]
    fn reads_every_kind_of_field() {
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(
            read(&[0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 0, 0, 0, 0, 0, 0, 0, 0]),
            Ok(vec![
                (1, Value::Number),
                (2, Value::Message(b"hi", 5)),
                (3, Value::Number),
                (4, Value::Number),
            ])
        );
    }

    #[test]
    fn refuses_what_is_cut_off_or_no_protobuf() {
        for bad in [
            &[0x08][..],
            &[0x12, 5, b'h', b'i'],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x0b],
            &[0x00, 0x00],
            b"<html>not a model</html>",
        ] {
            assert!(read(bad).is_err(), "{bad:x?}");
        }
    }
}
