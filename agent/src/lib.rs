//! The device daemon.

pub mod clock;
pub mod config;
pub mod enrolment;
pub mod failure;
pub mod lock;
pub mod store;
pub mod supervise;
pub mod transfer;
