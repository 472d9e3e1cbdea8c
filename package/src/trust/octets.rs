//! How signed bytes are written: as a byte string where the format has one, as text in JSON (TUF
//! metadata is JSON itself, so it is UTF-8).

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::Error as _;
use serde::{Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        let text = std::str::from_utf8(bytes).map_err(|_| S::Error::custom("metadata is not UTF-8"))?;
        serializer.serialize_str(text)
    } else {
        serializer.serialize_bytes(bytes)
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Octets)
}

struct Octets;

impl<'de> Visitor<'de> for Octets {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes or text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_vec())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Vec<u8>, E> {
        Ok(text.into_bytes())
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Vec<u8>, A::Error> {
        Err(A::Error::custom("a list of numbers in place of bytes"))
    }
}

/// One element of a list of signed bytes.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct One(#[serde(with = "super::octets")] Vec<u8>);

/// The same for a list.
pub(super) mod list {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::One;

    pub(in super::super) fn serialize<S: Serializer>(
        list: &[Vec<u8>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|bytes| One(bytes.clone())))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        Ok(Vec::<One>::deserialize(deserializer)?.into_iter().map(|one| one.0).collect())
    }
}

/// The same for bytes that may be absent.
pub(super) mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::One;

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(One).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<One>::deserialize(deserializer)?.map(|one| one.0))
    }
}

/// The same for bytes by name.
pub(super) mod map {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::One;

    pub(in super::super) fn serialize<S: Serializer>(
        map: &BTreeMap<String, Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(name, bytes)| (name, One(bytes.clone()))))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        let read = BTreeMap::<String, One>::deserialize(deserializer)?;
        Ok(read.into_iter().map(|(name, one)| (name, one.0)).collect())
    }
}
