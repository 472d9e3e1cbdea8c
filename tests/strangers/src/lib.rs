//! What must hold whatever a stranger sends to the host: one function for each way in, which takes bytes and
//! panics where something does not hold.
//!
//! `tests/fuzz` feeds them from libFuzzer for as long as one likes; the tests of this crate feed them
//! from the same seeds with a generator of their own, for a fixed number of rounds. Nothing here opens a
//! socket or a model: the packages that answer are fakes that give back what came.

pub mod answers;
pub mod control_socket;
pub mod host;
pub mod mutate;
pub mod numbers;
pub mod oip_binary;
pub mod oip_grpc;
pub mod oip_json;
pub mod onnx_protobuf;
pub mod replies;
pub mod seeds;
pub mod tensors;
pub mod twin;
pub mod written;

use selvedge_host::oip::request::Limits;

/// Feeds bytes to a way in.
pub type Target = fn(&[u8]);

/// Every way in, by the name of its fuzz target and of its folder of seeds.
pub const TARGETS: [(&str, Target); 5] = [
    ("oip_json", oip_json::check),
    ("oip_binary", oip_binary::check),
    ("oip_grpc", oip_grpc::check),
    ("control_socket", control_socket::check),
    ("onnx_protobuf", onnx_protobuf::check),
];

/// Limits that short inputs reach.
pub const LIMITS: Limits = Limits { tensor_bytes: 2048, tensors: 6, name_bytes: 48, parameters: 5 };
