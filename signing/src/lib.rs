//! Makes what `selvedge_package::trust` verifies: keys, and signed roles of two TUF repositories.
//!
//! Used by the registry and the command line only. The schema and its canonical form are `tough`'s;
//! versions and times are arguments, nothing here reads a clock. A signer is a trait, so that a key
//! may live in hardware. Nothing signed here is published: that is the caller's.

pub mod director;
mod error;
pub mod image;
pub mod key;
pub mod keyring;
pub mod lifetimes;
pub mod metadata;
pub mod online;
pub mod roots;
pub mod signatures;
pub mod tree;

pub use error::SigningError;
pub use key::{PublicKey, Signer, SigningKey};
pub use keyring::{Keyring, OnlineKeys};
