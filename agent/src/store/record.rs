//! How a record is written: eight bytes of SHA-256 over the rest, then CBOR of a versioned enum.
//!
//! The database checks its pages only when it repairs; this check is made at every read, since a
//! torn trust state that reads as "no state" would open the door to a rollback.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

const CHECK: usize = 8;

/// The bytes of a record.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; CHECK];
    ciborium::into_writer(value, &mut bytes).map_err(|error| error.to_string())?;
    let check = Sha256::digest(&bytes[CHECK..]);
    bytes[..CHECK].copy_from_slice(&check[..CHECK]);
    Ok(bytes)
}

/// The record in these bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (check, body) = bytes.split_at_checked(CHECK).ok_or("it is too short")?;
    if Sha256::digest(body)[..CHECK] != *check {
        return Err("its check sum is wrong".to_owned());
    }
    ciborium::from_reader(body).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found() {
        let bytes = encode(&("name", 7u64, vec![1u8, 2, 3])).unwrap();
        assert_eq!(decode::<(String, u64, Vec<u8>)>(&bytes), Ok(("name".to_owned(), 7, vec![1, 2, 3])));
        for n in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[n] ^= 1;
            assert!(decode::<(String, u64, Vec<u8>)>(&changed).is_err(), "byte {n}");
        }
        assert!(decode::<u64>(&bytes[..7]).is_err());
        assert!(decode::<u64>(&[]).is_err());
    }
}
