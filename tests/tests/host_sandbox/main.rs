//! The sandbox with real parts: packages made here, wasmtime, ONNX Runtime, and guests that mean harm.
#![allow(clippy::unwrap_used)]

mod fixture;
mod hostile;
mod models;
mod probed;
mod refused;
mod surroundings;
