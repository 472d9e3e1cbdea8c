//! The sandbox and the inference server: packages in, answers out.
//!
//! `runtime` is the meeting point. Below it lies what executes a package (`engine`, `sandbox`,
//! `nn`, `session`, `onnx`), above it what serves it; `sequence` is what lives on between requests. It never fetches anything and opens no connection.

pub mod cases;
pub mod clock;
pub mod confine;
pub mod control;
pub mod deadline;
pub mod engine;
pub mod failure;
pub mod folder;
pub mod grpc;
pub mod limits;
pub mod memory;
pub mod nn;
pub mod oip;
pub mod onnx;
pub mod probe;
pub mod protobuf;
pub mod runtime;
pub mod sandbox;
pub mod sequence;
pub mod serve;
pub mod session;
pub mod tensor;
pub mod threads;
