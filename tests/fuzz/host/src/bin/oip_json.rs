//! A request for inference in JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_strangers::oip_json::check(bytes));
