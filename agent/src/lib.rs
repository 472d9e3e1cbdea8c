//! The device daemon.

pub mod store;
