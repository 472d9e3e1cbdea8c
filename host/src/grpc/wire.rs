//! Protobuf's wire format, both ways and by hand: fields are looked at one by one, in place, so that a
//! message is bounded before anything is made of it. A generated reader makes a list of two hundred bytes
//! for every two bytes of a message that consists of empty inputs.

/// What is wrong with a message, in words.
pub type Wrong = String;

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
    pub fn number(self) -> Result<u64, Wrong> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err("a number is expected".to_owned()),
        }
    }

    /// Bytes.
    pub fn bytes(self) -> Result<&'a [u8], Wrong> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err("bytes are expected".to_owned()),
        }
    }

    /// Text of at most `most` bytes.
    pub fn text(self, most: usize) -> Result<&'a str, Wrong> {
        let bytes = self.bytes()?;
        if bytes.len() > most {
            return Err(format!("longer than {most} bytes"));
        }
        std::str::from_utf8(bytes).map_err(|_| "text that is not UTF-8".to_owned())
    }
}

/// The fields of a message, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Of a message.
    pub fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or("a field goes past the end of its message")?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Wrong> {
        let tag = varint(&mut self.0)?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number @ 1..=0x1fff_ffff) => number,
            _ => return Err("a field has no number: this is no protobuf message".to_owned()),
        };
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut self.0)?),
            1 => Value::Wide(self.take(8)?.try_into().map_err(|_| "cut off")?),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).unwrap_or(usize::MAX);
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Narrow(self.take(4)?.try_into().map_err(|_| "cut off")?),
            _ => return Err(format!("field {number} is of a kind that protobuf does not have any more")),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Wrong>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// The number that `bytes` begin with; what follows it is left.
pub fn varint(bytes: &mut &[u8]) -> Result<u64, Wrong> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        if index == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Ok(value);
        }
    }
    Err("a number is cut off, or has more than 64 bits".to_owned())
}

/// A message as it is written. Fields without a value (0, empty) are left out, as protobuf has it.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn tag(&mut self, field: u32, kind: u32) {
        put_varint(&mut self.0, u64::from(field << 3 | kind));
    }

    /// A number, or a boolean as 0 and 1.
    pub fn number(&mut self, field: u32, value: u64) -> &mut Self {
        if value != 0 {
            self.chosen_number(field, value);
        }
        self
    }

    /// A number that is one of several fields of which one is there: 0 is written too.
    pub fn chosen_number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        put_varint(&mut self.0, value);
    }

    /// A `double` that is one of several.
    pub fn chosen_double(&mut self, field: u32, value: f64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Text or bytes; left out where they are empty.
    pub fn bytes(&mut self, field: u32, value: impl AsRef<[u8]>) -> &mut Self {
        if !value.as_ref().is_empty() {
            self.part(field, value);
        }
        self
    }

    /// A message, text or bytes, one of a list or one of several: written when it is empty too.
    pub fn part(&mut self, field: u32, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        self.open(field, value.len());
        self.0.extend_from_slice(value);
        self
    }

    /// What stands in front of `length` bytes, which come next and from somewhere else.
    pub fn open(&mut self, field: u32, length: usize) {
        self.tag(field, 2);
        put_varint(&mut self.0, length as u64);
    }

    /// Appends the bytes that [`Message::open`] announced.
    pub fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        write(&mut self.0)
    }

    /// A message.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        let mut message = Self::default();
        write(&mut message);
        self.part(field, message.0)
    }

    /// Numbers, packed.
    pub fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Vec::new();
        values.into_iter().for_each(|value| put_varint(&mut packed, value));
        self.bytes(field, packed)
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Wrong> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn every_kind_of_field_comes_back() {
        let mut message = Message::default();
        message.number(1, 150).number(2, 0).bytes(3, "hi").bytes(4, "").packed(5, [1, 300]);
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
    fn what_is_cut_off_or_no_message_is_refused() {
        for bad in [
            &[0x08][..],
            &[0x12, 5, b'h', b'i'],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x0b],
            &[0x00, 0x00],
            &[0x09, 1, 2],
            b"{\"inputs\":[]}",
        ] {
            assert!(read(bad).is_err(), "{bad:x?}");
        }
        assert_eq!(Value::Bytes(b"abc").text(2).unwrap_err(), "longer than 2 bytes");
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
