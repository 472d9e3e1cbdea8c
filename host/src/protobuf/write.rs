//! Writes messages.

/// A message as it is written. Fields without a value (0, empty) are left out, as protobuf has it.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// An empty one with room for so many bytes.
    pub fn with_room(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Bytes that a field of `length` bytes takes, with what stands in front of them.
    pub fn takes(field: u32, length: usize) -> usize {
        (varint_length(tag(field, 2)) + varint_length(length as u64)).saturating_add(length)
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn tag(&mut self, field: u32, kind: u32) {
        put_varint(&mut self.0, tag(field, kind));
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

    /// Numbers, packed; left out where there are none.
    pub fn packed(&mut self, field: u32, values: impl Iterator<Item = u64> + Clone) -> &mut Self {
        let length = packed_length(values.clone());
        if length > 0 {
            self.open(field, length);
            values.for_each(|value| put_varint(&mut self.0, value));
        }
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes of packed numbers.
pub fn packed_length(values: impl Iterator<Item = u64>) -> usize {
    values.map(varint_length).sum()
}

/// Bytes of a number: one for each seven bits, and one for 0.
fn varint_length(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

fn tag(field: u32, kind: u32) -> u64 {
    u64::from(field << 3 | kind)
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

    #[test]
    fn what_is_written_is_as_long_as_was_counted() {
        for bits in 0..=64 {
            let number = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(varint_length(number), bytes.len(), "{number}");
        }
        for (field, length) in [(1, 0), (15, 127), (16, 128), (2047, 16_383), (2048, 16_384)] {
            let mut message = Message::default();
            message.part(field, vec![7; length]);
            assert_eq!(Message::takes(field, length), message.as_ref().len());
        }
        let mut message = Message::default();
        message.packed(1, [].into_iter()).packed(2, [0, 1, 300, u64::MAX].into_iter());
        assert_eq!((message.as_ref().len(), packed_length([0, 1, 300, u64::MAX].into_iter())), (2 + 14, 14));
    }
}
