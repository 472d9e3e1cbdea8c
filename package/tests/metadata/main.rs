//! Attacks on the metadata that a device accepts. Each file is a threat; each test says what the
//! attacker has and what he gets.
#![allow(clippy::unwrap_used, missing_docs)]

mod delegated;
mod disagreement;
mod expiry;
mod fixture;
mod forged;
mod hand;
mod rollback;
mod roots;
mod split;
mod store;
mod wrong_device;
