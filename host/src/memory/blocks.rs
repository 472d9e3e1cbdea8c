//! Blocks of some kilobytes that a thread has freed, kept for what it allocates next.
//!
//! glibc keeps small blocks for each thread, and takes the lock of their arena for larger ones. Those that a request
//! needs (the buffers of its connection, the futures that answer it) are larger, and are often freed by another thread
//! than the one whose arena they are of: without this the threads that serve wait for each other.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;

/// Sizes: powers of two from this one on.
const SMALLEST: usize = 1 << SMALLEST_BITS;
const SMALLEST_BITS: u32 = 11;
const SIZES: usize = 5;
const LARGEST: usize = SMALLEST << (SIZES - 1);

/// glibc keeps these itself.
const SMALL: usize = 1 << 10;

/// glibc's own alignment: blocks of more are not kept.
const ALIGNED: usize = 16;

/// Blocks of each size that a thread keeps: 8 KiB of the smallest and 248 KiB in all at most.
const KEPT: usize = 4;

/// The system's allocator, with blocks kept for each thread.
#[derive(Debug, Default)]
pub struct Blocks;

/// What a thread keeps.
struct Kept {
    blocks: UnsafeCell<[[*mut u8; KEPT]; SIZES]>,
    counts: UnsafeCell<[usize; SIZES]>,
}

thread_local! {
    static OWN: Kept = const {
        Kept { blocks: UnsafeCell::new([[ptr::null_mut(); KEPT]; SIZES]), counts: UnsafeCell::new([0; SIZES]) }
    };
}

/// Which size a block of this layout has; `None`: it is not kept.
fn size(layout: Layout) -> Option<usize> {
    if layout.size() <= SMALL || layout.size() > LARGEST || layout.align() > ALIGNED {
        return None;
    }
    let bits = layout.size().next_power_of_two().trailing_zeros();
    Some(bits.saturating_sub(SMALLEST_BITS) as usize)
}

/// The layout of all blocks of a size.
fn whole(size: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no size overflows when it is rounded up to it.
    unsafe { Layout::from_size_align_unchecked(SMALLEST << size, ALIGNED) }
}

impl Kept {
    /// A block that was freed.
    fn take(&self, size: usize) -> Option<*mut u8> {
        // SAFETY: only this thread gets at what is its own, and nothing here calls back.
        let (blocks, counts) = unsafe { (&mut *self.blocks.get(), &mut *self.counts.get()) };
        counts[size] = counts[size].checked_sub(1)?;
        Some(blocks[size][counts[size]])
    }

    /// Keeps a block; says whether there was room for it.
    fn keep(&self, size: usize, block: *mut u8) -> bool {
        // SAFETY: as above.
        let (blocks, counts) = unsafe { (&mut *self.blocks.get(), &mut *self.counts.get()) };
        let room = counts[size] < KEPT;
        if room {
            blocks[size][counts[size]] = block;
            counts[size] += 1;
        }
        room
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for size in 0..SIZES {
            while let Some(block) = self.take(size) {
                // SAFETY: every block that is kept came from there with this layout.
                unsafe { System.dealloc(block, whole(size)) };
            }
        }
    }
}

// SAFETY: every block comes from the system's allocator, those of a kept size always with the layout of that size, so
// that it does not matter which of the two ways one goes. A block that is kept was freed by its owner, and is kept once.
// A thread that ends gives back what it kept; what it frees after that goes the other way.
unsafe impl GlobalAlloc for Blocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(size) = size(layout) else {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.alloc(layout) };
        };
        let kept = OWN.try_with(|own| own.take(size)).ok().flatten();
        // SAFETY: a layout of a size is not empty.
        kept.unwrap_or_else(|| unsafe { System.alloc(whole(size)) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let whole = match size(layout) {
            None => layout,
            Some(size) if OWN.try_with(|own| own.keep(size, block)) == Ok(true) => return,
            Some(size) => whole(size),
        };
        // SAFETY: it was allocated with this layout, above.
        unsafe { System.dealloc(block, whole) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if size(layout).is_none() {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the block has at least the layout's size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                ptr::write_bytes(block, 0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is a layout's.
        let wanted = unsafe { Layout::from_size_align_unchecked(new, layout.align()) };
        match (size(layout), size(wanted)) {
            // SAFETY: the caller's promise is passed on.
            (None, None) => unsafe { System.realloc(block, layout, new) },
            // It is as large as that already.
            (Some(before), Some(after)) if before == after => block,
            // SAFETY: both blocks have at least as many bytes as are copied, and are not the same.
            _ => unsafe {
                let other = self.alloc(wanted);
                if !other.is_null() {
                    ptr::copy_nonoverlapping(block, other, layout.size().min(new));
                    self.dealloc(block, layout);
                }
                other
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// Blocks of this size that this thread keeps.
    fn kept(bytes: usize) -> usize {
        // SAFETY: only this thread gets at what is its own.
        OWN.with(|own| unsafe { (*own.counts.get())[size(layout(bytes)).unwrap()] })
    }

    #[test]
    fn a_block_is_as_large_as_was_asked_for_and_keeps_its_bytes() {
        let sizes =
            [1, SMALL, SMALL + 1, SMALLEST, SMALLEST + 1, 5000, LARGEST - 1, LARGEST, LARGEST + 1, 100_000];
        for from in sizes {
            for to in sizes {
                // SAFETY: the layouts are those that the blocks were allocated with, and nothing is read or written
                // outside of them.
                unsafe {
                    let block = Blocks.alloc_zeroed(layout(from));
                    assert!(std::slice::from_raw_parts(block, from).iter().all(|&byte| byte == 0), "{from}");
                    ptr::write_bytes(block, 7, from);
                    let block = Blocks.realloc(block, layout(from), to);
                    let both = from.min(to);
                    assert!(
                        std::slice::from_raw_parts(block, both).iter().all(|&byte| byte == 7),
                        "{from} {to}"
                    );
                    ptr::write_bytes(block, 9, to);
                    Blocks.dealloc(block, layout(to));
                }
            }
        }
    }

    #[test]
    fn what_is_freed_comes_again_and_no_block_twice() {
        // SAFETY: as above.
        let some = || (0..3 * KEPT).map(|_| unsafe { Blocks.alloc(layout(6000)) }).collect::<Vec<_>>();
        let first = some();
        let mut apart = first.clone();
        apart.sort();
        apart.dedup();
        assert_eq!(apart.len(), first.len());
        // SAFETY: as above.
        first.iter().for_each(|&block| unsafe { Blocks.dealloc(block, layout(6000)) });
        assert_eq!(kept(6000), KEPT);
        let second = some();
        let mut apart = second.clone();
        apart.sort();
        apart.dedup();
        assert_eq!(apart.len(), second.len(), "each was given once");
        assert_eq!(kept(6000), 0);
        assert_eq!(second[..KEPT].iter().filter(|block| first.contains(block)).count(), KEPT);
        // A thread that has nothing kept frees what another one allocated.
        let second: Vec<usize> = second.into_iter().map(|block| block as usize).collect();
        let freeing = std::thread::spawn(move || {
            // SAFETY: as above; nobody else has these blocks.
            second.into_iter().for_each(|block| unsafe { Blocks.dealloc(block as *mut u8, layout(6000)) });
        });
        freeing.join().unwrap();
    }
}
