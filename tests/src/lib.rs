//! Fixtures of the end-to-end stories: real programs on loopback, in temporary directories.
//!
//! `programs` finds the binaries, `process` runs one and ends it, `stack` starts broker, registry,
//! agent and host, `command` runs `selvedge`, `tampering` sits between agent and broker,
//! `onnx_writer` writes tiny models. Nothing here sleeps for a result: `wait` polls a condition.

pub mod clock;
pub mod command;
pub mod onnx_writer;
pub mod packages;
pub mod process;
pub mod programs;
pub mod stack;
pub mod tampering;
pub mod wait;
