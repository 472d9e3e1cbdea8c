//! What travels on `dn/blk`: nine bytes of header, then raw bytes or a refusal.
//!
//! Header: one byte of kind (1 block, 2 refusal), the transfer's number and the block's number,
//! both u32 little-endian. A block's length is not checked here: only its receiver knows the blob.

use crate::envelope::{from_cbor, to_cbor};
use crate::message::Refusal;

use super::BlockSize;

/// Length of the header in bytes.
pub const HEADER: usize = 9;

const BLOCK: u8 = 1;
const REFUSAL: u8 = 2;
const LARGEST_REFUSAL: usize = 256;

/// One payload of `dn/blk`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A block.
    Block {
        /// The transfer's number.
        transfer: u32,
        /// The block's number.
        number: u32,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Why none comes.
    Refusal {
        /// The transfer's number.
        transfer: u32,
        /// Why.
        refusal: Refusal,
    },
}

/// A payload that is no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than the header.
    #[error("{0} bytes are shorter than a frame's header")]
    Short(usize),
    /// A kind that this version does not know.
    #[error("frame kind {0} is not known")]
    Kind(u8),
    /// No bytes, or more than the largest block has.
    #[error("a block of {0} bytes: it has 1 to 65536")]
    Length(usize),
    /// The refusal cannot be read or written.
    #[error("not a refusal: {0}")]
    Refusal(String),
}

impl<'a> Frame<'a> {
    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, FrameError> {
        let Some((head, rest)) = payload.split_first_chunk::<HEADER>() else {
            return Err(FrameError::Short(payload.len()));
        };
        let [kind, t0, t1, t2, t3, n0, n1, n2, n3] = *head;
        let transfer = u32::from_le_bytes([t0, t1, t2, t3]);
        match kind {
            BLOCK => {
                check_length(rest)?;
                let number = u32::from_le_bytes([n0, n1, n2, n3]);
                Ok(Self::Block { transfer, number, bytes: rest })
            }
            REFUSAL if rest.len() > LARGEST_REFUSAL => {
                Err(FrameError::Refusal(format!("{} bytes", rest.len())))
            }
            REFUSAL => Ok(Self::Refusal { transfer, refusal: from_cbor(rest).map_err(FrameError::Refusal)? }),
            other => Err(FrameError::Kind(other)),
        }
    }
}

/// The header of a block, for those who read its bytes from a file right behind it.
pub fn header(transfer: u32, number: u32) -> [u8; HEADER] {
    head(BLOCK, transfer, number)
}

/// The payload with a block.
pub fn block_frame(transfer: u32, number: u32, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    check_length(bytes)?;
    let mut payload = Vec::with_capacity(HEADER + bytes.len());
    payload.extend_from_slice(&header(transfer, number));
    payload.extend_from_slice(bytes);
    Ok(payload)
}

/// The payload with a refusal.
pub fn refusal_frame(transfer: u32, refusal: &Refusal) -> Result<Vec<u8>, FrameError> {
    let mut payload = head(REFUSAL, transfer, 0).to_vec();
    payload.extend_from_slice(&to_cbor(refusal).map_err(FrameError::Refusal)?);
    Ok(payload)
}

fn head(kind: u8, transfer: u32, number: u32) -> [u8; HEADER] {
    let [t0, t1, t2, t3] = transfer.to_le_bytes();
    let [n0, n1, n2, n3] = number.to_le_bytes();
    [kind, t0, t1, t2, t3, n0, n1, n2, n3]
}

fn check_length(bytes: &[u8]) -> Result<(), FrameError> {
    if bytes.is_empty() || bytes.len() > BlockSize::LARGEST.bytes() as usize {
        return Err(FrameError::Length(bytes.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let payload = block_frame(7, u32::MAX, b"abc").unwrap();
        assert_eq!(payload.len(), HEADER + 3);
        assert_eq!(
            Frame::decode(&payload),
            Ok(Frame::Block { transfer: 7, number: u32::MAX, bytes: b"abc" })
        );
        for refusal in [Refusal::Busy { retry_after_ms: 250 }, Refusal::Unknown] {
            let payload = refusal_frame(9, &refusal).unwrap();
            assert_eq!(Frame::decode(&payload), Ok(Frame::Refusal { transfer: 9, refusal }));
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        let mut deep = head(REFUSAL, 0, 0).to_vec();
        deep.extend([0x81; 200]);
        let mut long = header(0, 0).to_vec();
        long.resize(HEADER + 65_537, 0);
        for bad in [&b""[..], &[1; 8], &header(1, 1), &[0; 20], &[3; 20], &[2; 9], &deep, &long] {
            assert!(Frame::decode(bad).is_err(), "{:?}", &bad[..bad.len().min(12)]);
        }
        assert!(block_frame(0, 0, b"").is_err());
        assert!(block_frame(0, 0, &[0; 65_537]).is_err());
    }
}
