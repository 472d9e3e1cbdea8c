//! The sandbox with real parts: packages made here, wasmtime, ONNX Runtime, and guests that mean harm.
#![allow(clippy::unwrap_used)]

mod confined;
mod fixture;
mod hostile;
mod hostile_models;
mod models;
mod nn;
mod optional;
mod pipeline;
mod probed;
mod reach;
mod refused;
mod requests;
mod sequences;
mod surroundings;
mod text;
mod transfer;
mod value_kinds;
mod whole;
