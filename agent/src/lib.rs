//! The device daemon.
//!
//! Its modules follow the package's way: `transfer` pulls blocks over MQTT, `source` over HTTP, `verify`
//! accepts what the Director signed, `store` keeps it, `fetch` says what is still missing, `activate` drives the
//! deployment, `supervise` keeps the host running, `report` says what became of it, `remote`
//! answers questions from far away. `daemon` is the loop that carries between them, `status` what a person
//! on the device sees, `pauses` how long what failed is left alone, `bounded` reads small files. It links neither wasmtime nor ONNX
//! Runtime, and runs on one thread.

pub mod activate;
mod bounded;
pub mod budget;
pub mod clock;
pub mod config;
pub mod credential;
pub mod daemon;
pub mod enrolment;
pub mod exit;
pub mod facts;
pub mod failure;
pub mod fetch;
pub mod identity;
pub mod import;
pub mod lock;
pub mod memory;
pub mod notify;
mod pauses;
pub mod remote;
pub mod report;
pub mod source;
pub mod status;
pub mod store;
pub mod supervise;
pub mod transfer;
pub mod trust_show;
pub mod verify;
