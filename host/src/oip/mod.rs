//! The Open Inference Protocol, version 2: what requests and answers say, apart from any transport.
//!
//! `request` and `answer` are the model; `request_json` and `answer_json` are one way to write
//! them, to which `binary` and `answer_body` add tensors as bytes after the JSON (gRPC is another). `check` holds a request against the package's manifest.
//! What a client did wrong is a [`refusal::Refusal`]; nothing here knows of HTTP, clocks or packages'
//! insides. The decisions that the protocol leaves open are listed in `docs/oip.md`.

pub mod answer;
pub mod answer_body;
pub mod answer_json;
pub mod binary;
pub mod check;
mod decimal;
mod digits;
pub mod elements;
pub mod lexer;
pub mod metadata;
pub mod number;
pub mod refusal;
pub mod request;
pub mod request_json;
pub mod tensor_json;
