//! A real host asked over HTTP: real models, wrong requests, swaps, and how it ends.
#![allow(clippy::unwrap_used)]

mod host;
mod requests;
mod running;
