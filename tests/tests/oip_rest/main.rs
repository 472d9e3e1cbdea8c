//! A real host asked over HTTP: real models of every element type, wrong requests, swaps, and how it ends.
#![allow(clippy::unwrap_used)]

mod element_types;
mod host;
mod requests;
mod running;
