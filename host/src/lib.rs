//! The sandbox and the inference server: packages in, answers out.
//!
//! `runtime` is the meeting point. Below it lies what executes a package (`engine`, `sandbox`,
//! `session`, `onnx`), above it what serves it. It never fetches anything and opens no connection.

pub mod clock;
pub mod failure;
pub mod runtime;
pub mod tensor;
