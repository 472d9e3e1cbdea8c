//! Memory for a module that frees everything between requests.
//!
//! Allocating moves a pointer up; freeing counts down, and at nothing allocated the pointer goes
//! back to the start. It never reuses memory within a request and grows linear memory as needed.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;

struct Bump {
    /// Next free address; 0 before the first allocation.
    next: Cell<usize>,
    /// End of the linear memory that is ours.
    end: Cell<usize>,
    /// Allocations that live.
    live: Cell<usize>,
}

// SAFETY: a component instance has one thread.
unsafe impl Sync for Bump {}

#[global_allocator]
static BUMP: Bump = Bump { next: Cell::new(0), end: Cell::new(0), live: Cell::new(0) };

const PAGE: usize = 65536;

unsafe extern "C" {
    /// First address after static data and stack, from the linker.
    static __heap_base: u8;
}

fn heap_base() -> usize {
    (&raw const __heap_base).addr()
}

// SAFETY: `alloc` gives ranges that do not overlap until all of them were freed, aligned as asked and
// inside of linear memory; null where memory cannot grow.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.next.get() == 0 {
            self.next.set(heap_base());
            self.end.set(core::arch::wasm32::memory_size(0) * PAGE);
        }
        let start = (self.next.get() + layout.align() - 1) & !(layout.align() - 1);
        let Some(next) = start.checked_add(layout.size()) else {
            return core::ptr::null_mut();
        };
        if next > self.end.get() {
            let pages = (next - self.end.get()).div_ceil(PAGE);
            if core::arch::wasm32::memory_grow(0, pages) == usize::MAX {
                return core::ptr::null_mut();
            }
            self.end.set(self.end.get() + pages * PAGE);
        }
        self.next.set(next);
        self.live.set(self.live.get() + 1);
        core::ptr::with_exposed_provenance_mut(start)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        let live = self.live.get() - 1;
        self.live.set(live);
        if live == 0 {
            self.next.set(heap_base());
        }
    }
}

/// What the host calls to place arguments and results. Only ever asks for new memory here: no value
/// that crosses this module's borders grows once it is placed.
///
/// # Safety
/// The host passes a power of two as `align`, and null as `old`.
#[unsafe(export_name = "cabi_realloc")]
unsafe extern "C" fn place(old: *mut u8, old_length: usize, align: usize, length: usize) -> *mut u8 {
    if !old.is_null() || old_length != 0 {
        core::arch::wasm32::unreachable();
    }
    if length == 0 {
        return core::ptr::without_provenance_mut(align);
    }
    // SAFETY: `align` is a power of two, and `length` fits an address.
    let placed = unsafe { BUMP.alloc(Layout::from_size_align_unchecked(length, align)) };
    if placed.is_null() {
        core::arch::wasm32::unreachable();
    }
    placed
}
