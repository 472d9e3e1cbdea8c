//! The control socket: the agent loads, routes and unloads packages, and learns what happened.
//!
//! Whoever may connect may replace what is served, so only the same user and root may. Messages and
//! paths are those of `selvedge_control`. Loading is one at a time, and goes on when the one who
//! asked for it goes away. The protocol's own paths and its gRPC are here as well, with the model repository.

pub mod fatal;
pub mod hand_over;
pub mod journal;
pub mod load;
pub mod peer;
pub mod refused;
pub mod repository;
pub mod route;
pub mod routes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use crate::folder::Folder;
use crate::runtime::FatalCallback;
use crate::serve::Serving;
use crate::serve::predictor::Opener;
use journal::Journal;

/// What every request of the control socket sees.
pub struct Control {
    /// What is served.
    pub serving: Arc<Serving>,
    /// Opens packages.
    pub opener: Arc<dyn Opener>,
    /// What happened.
    pub journal: Arc<Journal>,
    /// The listeners, for an agent that asks.
    pub listeners: hand_over::Copies,
    /// The folder of packages that is the model repository, if there is one.
    pub folder: Option<Folder>,
    /// Address of the inference endpoint.
    pub http: String,
    /// Set to true, it ends the process.
    pub stop: watch::Sender<bool>,
    /// Held while a package is loaded.
    pub loading: Mutex<()>,
    /// Called when opening a package does not end.
    pub fatal: FatalCallback,
}
