//! A request for inference as a message of gRPC.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| selvedge_strangers::oip_grpc::check(bytes));
