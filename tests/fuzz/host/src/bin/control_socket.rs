//! Requests to the control socket, one after another.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_strangers::control_socket::check(bytes));
