//! Whether the kernel considers its clock synchronised, whichever program keeps it so.
//!
//! `adjtimex` with no mode set only reads; it needs no privilege. No maintained crate wraps it, so
//! this is the agent's one unsafe block.
#![allow(unsafe_code)]

/// Whether the kernel's clock is kept by a time source. Any doubt is a no.
pub fn is_synchronised() -> bool {
    // SAFETY: `timex` is a C struct of integers, for which all zeros is a valid value and, as
    // `modes`, asks the kernel to change nothing. The pointer is to a live local variable of the
    // type that the call fills.
    let (state, status) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        let state = libc::adjtimex(&mut timex);
        (state, timex.status)
    };
    state >= 0 && state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0
}
