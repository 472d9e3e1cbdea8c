//! What the C library's allocator keeps: as little as it can.
//!
//! ONNX Runtime allocates with it too, and a package's load leaves tens of megabytes behind. Left alone,
//! glibc makes an arena for each thread, each as large as the largest load that it saw, and raises the
//! size from which memory comes from the system and goes back to it with every large block that is
//! freed: a host that changed its packages a few times would hold several times what it uses. (Measured
//! with `file-type`: 67 MiB after the first load, 88 after the sixth; as set here 61 and 62.)
//!
//! One arena for all is not enough, though: whoever allocates and frees without pause, as a module with ten
//! thousand tensors does, holds its lock, and everybody else waits (ADR 33). So there are as many as threads that
//! serve and compute.
#![allow(unsafe_code)]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub mod blocks;
pub mod share;

use crate::serve::{reserve, shares};

/// Blocks from this size on come from the system one by one, and go back when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OF_ITS_OWN: libc::c_int = 1 << 20;

/// What may stay free at the end of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 4 << 20;

/// Most arenas, however many processors there are.
const MOST_ARENAS: usize = 64;

/// One for each thread that has much to do: the first, the one that keeps deadlines, those that serve, and as many
/// as requests have seats.
fn arenas() -> usize {
    (2 + reserve::serving_threads() + shares::usual_seats()).min(MOST_ARENAS)
}

/// Sets the allocator up, for good.
///
/// # Safety
/// No other thread may exist yet: it could allocate meanwhile.
pub unsafe fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, arenas() as libc::c_int),
        (libc::M_MMAP_THRESHOLD, OF_ITS_OWN),
        (libc::M_TRIM_THRESHOLD, KEPT),
    ] {
        // SAFETY: the caller promises that this is the only thread; the parameters are glibc's own, and
        // one that it does not know changes nothing.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Bytes of memory that this process has to itself: what it allocated and touched, without files that it
/// maps. 0 where the system does not say.
pub fn own() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Gives what is free back to the system. Takes milliseconds, in which nobody allocates: call it when
/// much was freed.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` may be called by any thread at any time; it moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_touched_is_counted() {
        let before = super::own();
        let block = vec![1_u8; 64 << 20];
        let after = super::own();
        assert!(before > 0 && after >= before + (48 << 20), "{before} and {after}");
        drop(block);
    }
}
