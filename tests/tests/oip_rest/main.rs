//! A real host asked over HTTP: real models, wrong requests, swaps, and how it ends.

mod host;
mod requests;
mod running;
