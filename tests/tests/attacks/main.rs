//! The attack table: what somebody gets who has stolen a broker, a key, a disk or a clock.
//!
//! Every row meets a real agent with a real host, over a broker that the test controls; `field` sets
//! that up, `world` is the honest side with all its keys, `forge` signs whatever it is told, `kernel`
//! decides date and disk, and `row` keeps the model asked without pause: a row with one failed answer
//! fails. `docs/security.md` says what each row is about; `cargo xtask test attacks` prints the table.

#![allow(clippy::unwrap_used)]

mod authority;
mod field;
mod forge;
mod kernel;
mod registry;
mod row;
mod world;

mod broker;
mod ca_key;
mod clocks;
mod devices;
mod disk;
mod document;
mod freeze;
mod metadata;
mod rollback;
mod roots;
mod state_files;
mod stolen;
