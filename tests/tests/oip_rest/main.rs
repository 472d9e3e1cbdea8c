//! A real host asked over HTTP: real models of every element type, wrong requests, crowds, swaps, and how it ends.
#![allow(clippy::unwrap_used)]

mod crowd;
mod element_types;
mod folder;
mod memory;
mod requests;
mod running;
mod schemathesis;
mod scikit_learn;
mod sequences;
mod shut_in;
mod together;
mod triton_client;

use selvedge_tests::serving as host;
