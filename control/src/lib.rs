//! What agent and host say to each other: HTTP/1.1 with JSON over a private Unix socket.
//!
//! HTTP, so that a person can look with `curl --unix-socket`, and so that the model-repository
//! extension of the Open Inference Protocol can live on the same socket. Nothing here decides.

pub mod client;
pub mod listeners;
pub mod messages;

pub use client::{Client, ClientError};
pub use messages::*;
