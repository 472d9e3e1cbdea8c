//! The commands that talk to a registry, as a shell sees them, against a mock registry that says
//! what a test wants it to say. The stories with the real one are in `tests/`.
#![allow(clippy::unwrap_used)]

mod ask;
mod completions;
mod deploy;
mod explain;
mod hung;
mod logs;
mod mock;
mod rollback;
mod target;
mod undeploy;
mod watch;
