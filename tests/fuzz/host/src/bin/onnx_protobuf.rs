//! An ONNX file, looked into for external data.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_strangers::onnx_protobuf::check(bytes));
