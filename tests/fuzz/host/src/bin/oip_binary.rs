//! A request for inference with binary data behind its JSON, whose length comes first.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_strangers::oip_binary::check(bytes));
