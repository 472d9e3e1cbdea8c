//! Serving: packages under their names, and the Open Inference Protocol over HTTP in front of them.
//!
//! `table` routes names and versions to packages and swaps them, `served` counts and bounds what one
//! package is asked, `routes` and `infer` are the protocol's paths, `listen` and `connection` the
//! sockets. A request is refused here before it costs anything: by size, by count, by time.

pub mod body;
pub mod connection;
pub mod failure;
#[cfg(test)]
pub mod fake;
pub mod gate;
pub mod infer;
pub mod listen;
pub mod locate;
pub mod predictor;
pub mod routes;
pub mod served;
pub mod server;
pub mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use body::Budget;
use table::Table;

/// What every request sees.
pub struct Serving {
    /// Packages by name and version.
    pub table: Arc<Table>,
    /// Memory for requests.
    pub budget: Budget,
    draining: AtomicBool,
}

impl Serving {
    /// Nothing served yet; requests may hold `budget_mib` MiB together.
    pub fn new(budget_mib: u32) -> Arc<Self> {
        Arc::new(Self {
            table: Arc::new(Table::default()),
            budget: Budget::new(budget_mib),
            draining: AtomicBool::new(false),
        })
    }

    /// From here on the server is not ready: it answers what it has and ends.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether requests are welcome.
    pub fn ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed)
    }
}
