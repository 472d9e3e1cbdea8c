//! Answers, and traps when the memory of the answer is freed: after the host has read it, in the clean-up
//! that every call ends with. The request must fail, and its instance must not serve another.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct TrapInDrop;

export!(TrapInDrop);

static ARMED: AtomicBool = AtomicBool::new(false);

struct Trapping;

// SAFETY: the system's allocator, but for a trap where memory is freed.
unsafe impl GlobalAlloc for Trapping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            core::arch::wasm32::unreachable();
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Trapping = Trapping;

/// Arms the allocator when `predict` is over: it is the last thing that is dropped there.
struct Arm;

impl Drop for Arm {
    fn drop(&mut self) {
        ARMED.store(true, Ordering::Relaxed);
    }
}

impl Guest for TrapInDrop {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let _arm = Arm;
        Ok(inputs)
    }
}
