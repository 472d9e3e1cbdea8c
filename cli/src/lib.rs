//! The `selvedge` command: package, sign, deploy, watch and ask, and `up`, which starts everything
//! on one machine. It verifies and signs through the crates made for it and decides nothing itself
//! about trust; it keeps no state but files that a person named.

pub mod ceremony;
pub mod client;
pub mod clock;
pub mod commands;
pub mod context;
pub mod exit;
pub mod failure;
pub mod inference;
pub mod keyring;
pub mod names;
pub mod output;
pub mod packaging;
pub mod paint;
pub mod patience;
pub mod programs;
pub mod progress;
pub mod push;
pub mod reference;
pub mod rollout;
pub mod rows;
pub mod signals;
pub mod supervisor;
pub mod upload;
pub mod watch;
