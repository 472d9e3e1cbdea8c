//! Blocks on their way from the disk to the broker: read into memory that is used again.
//!
//! Answers of half a megabyte come and go hundreds of times a second. Memory that is fetched from the
//! kernel for each costs as much as reading the blocks does.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use selvedge_protocol::block::{self, HEADER, Span};

use crate::blobs::Reader;
use crate::error::Error;

/// Answers whose memory is kept for the next, and the smallest for which that is done.
const KEPT: usize = 4;
const LARGE: usize = 64 << 10;

/// Where the bytes of a blob are.
pub(super) enum Source {
    File(Reader),
    Memory(Arc<Vec<u8>>),
}

/// Memory of answers, most of them on their way.
#[derive(Debug, Default)]
pub(super) struct Frames(Mutex<Vec<Bytes>>);

impl Frames {
    /// Reads these blocks, each behind its header. It may wait for the disk.
    pub fn read(&self, source: &Source, transfer: u32, spans: &[Span]) -> Result<Vec<Bytes>, Error> {
        self.fill(transfer, spans, |place, offset| match source {
            Source::File(reader) => reader.read_at(place, offset),
            Source::Memory(bytes) => {
                copy(bytes, place, offset);
                Ok(())
            }
        })
    }

    /// The same where all of them are in memory; else nothing.
    pub fn read_now(&self, source: &Source, transfer: u32, spans: &[Span]) -> Option<Vec<Bytes>> {
        let filled = self.fill(transfer, spans, |place, offset| match source {
            Source::File(reader) => reader.read_now(place, offset).then_some(()).ok_or(()),
            Source::Memory(bytes) => {
                copy(bytes, place, offset);
                Ok(())
            }
        });
        filled.ok()
    }

    fn fill<E>(
        &self,
        transfer: u32,
        spans: &[Span],
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<Vec<Bytes>, E> {
        let length = |span: &Span| HEADER + span.length as usize;
        let mut answer = self.take(spans.iter().map(length).sum());
        let mut rest = &mut answer[..];
        let filled = spans.iter().try_for_each(|span| {
            let (header, behind) = std::mem::take(&mut rest).split_at_mut(HEADER);
            let (place, behind) = behind.split_at_mut(span.length as usize);
            header.copy_from_slice(&block::header(transfer, span.number));
            rest = behind;
            read(place, span.offset)
        });
        let mut answer = answer.freeze();
        self.keep(answer.clone());
        filled?;
        Ok(spans.iter().map(|span| answer.split_to(length(span))).collect())
    }

    /// So many bytes, whatever is in them.
    fn take(&self, length: usize) -> BytesMut {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = kept.iter().position(Bytes::is_unique).filter(|_| length >= LARGE);
        let mut bytes = idle.and_then(|at| kept.swap_remove(at).try_into_mut().ok()).unwrap_or_default();
        bytes.resize(length, 0);
        bytes
    }

    fn keep(&self, answer: Bytes) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answer.len() >= LARGE && kept.len() < KEPT {
            kept.push(answer);
        }
    }
}

/// The spans were made for these bytes.
fn copy(bytes: &[u8], place: &mut [u8], offset: u64) {
    place.copy_from_slice(&bytes[offset as usize..][..place.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::block::{BlockSize, Frame, Layout};

    #[test]
    fn memory_is_used_again_once_nothing_of_it_is_on_its_way() {
        let blob: Vec<u8> = (0..300_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let layout = Layout::new(300_000, BlockSize::PREFERRED).unwrap();
        let source = Source::Memory(Arc::new(blob.clone()));
        let frames = Frames::default();
        let read = |blocks: std::ops::Range<u32>| {
            let spans: Vec<Span> = blocks.clone().map(|number| layout.block(number).unwrap()).collect();
            let answer = frames.read(&source, 7, &spans).unwrap();
            for (number, frame) in blocks.zip(&answer) {
                let span = layout.block(number).unwrap();
                let bytes = &blob[span.offset as usize..][..span.length as usize];
                assert_eq!(Frame::decode(frame), Ok(Frame::Block { transfer: 7, number, bytes }));
            }
            answer
        };
        let first = read(0..8);
        let (second, at) = (read(8..19), first[0].as_ptr());
        assert_ne!(second[0].as_ptr(), at, "the first is on its way");
        drop(second);
        let third = first[3].clone();
        drop(first);
        assert_ne!(read(0..8)[0].as_ptr(), at, "a block of the first is on its way");
        drop(third);
        let again: Vec<_> = (0..3).map(|_| read(2..9)).collect();
        assert!(again.iter().any(|answer| answer[0].as_ptr() == at));
        // What is small comes and goes.
        let small = read(3..4);
        assert!(again.iter().all(|answer| answer[0].as_ptr() != small[0].as_ptr()));
        assert!(frames.0.lock().unwrap().len() <= KEPT);
    }
}
