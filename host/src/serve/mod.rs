//! Serving: packages under their names, and the Open Inference Protocol over HTTP in front of them.
//!
//! `table` routes names and versions to packages and swaps them, `served` counts and bounds what one
//! package is asked, `front`, `routes` and `infer` are the protocol's paths, `answer` is what all ways to ask
//! share, `predictor` asks a package: `here` on a thread that serves, which `reserve` bounds, or on one that computes.
//! `listen`, `preface`, `connection`, `http2`, `streams`, `progress`, `seats` and `stream` are the sockets. A request is
//! refused here before it costs anything: by size, by count, by time.

pub mod answer;
pub mod batch;
pub mod batcher;
#[cfg(test)]
mod binary_tests;
pub mod body;
pub mod buffers;
pub mod coding;
pub mod connection;
pub mod counts;
pub mod failure;
#[cfg(test)]
pub mod fake;
pub mod front;
pub mod gate;
pub mod heads;
pub mod here;
pub mod http2;
pub mod in_turn;
pub mod infer;
pub mod joint;
pub mod latency;
pub mod listen;
pub mod locate;
pub mod metrics;
pub mod openapi;
pub mod pieces;
pub mod predictor;
pub mod preface;
pub mod progress;
pub mod query;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod quick_tests;
pub mod reserve;
pub mod routes;
pub mod seats;
#[cfg(test)]
mod sequence_tests;
pub mod served;
pub mod server;
pub mod shares;
pub mod statistics;
pub mod stream;
pub mod streams;
pub mod table;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod wire;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use body::Budget;
use failure::Failure;
use served::Held;
use table::{Missing, Table};
use tokio::sync::Notify;

/// What every request sees.
pub struct Serving {
    /// Packages by name and version.
    pub table: Arc<Table>,
    /// Memory for requests.
    pub budget: Budget,
    announced: AtomicBool,
    draining: AtomicBool,
    ends: Notify,
}

impl Serving {
    /// Nothing served yet and not ready; requests may hold `budget_mib` MiB together.
    pub fn new(budget_mib: u32) -> Arc<Self> {
        Arc::new(Self {
            table: Arc::new(Table::default()),
            budget: Budget::new(budget_mib),
            announced: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            ends: Notify::new(),
        })
    }

    /// Everything that is to be served is: what is not here from now on does not exist.
    pub fn announce(&self) {
        self.announced.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn announced(&self) -> bool {
        self.announced.load(Ordering::Relaxed)
    }

    /// From here on the server is not ready: it answers what it has and ends.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.ends.notify_waiters();
    }

    /// Waits until the server ends.
    pub async fn ending(&self) {
        let mut ends = pin!(self.ends.notified());
        ends.as_mut().enable();
        if !self.draining.load(Ordering::SeqCst) {
            ends.await;
        }
    }

    /// Whether the server ends.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether everything is here and requests are welcome.
    pub fn ready(&self) -> bool {
        self.announced() && !self.draining()
    }

    /// The package that answers under `name`, held for a request. A name that is not here may still
    /// come until [`Self::announce`].
    pub fn find(&self, name: &str, version: Option<&str>) -> Result<Held, Failure> {
        self.table.find(name, version).map_err(|missing| match missing {
            Missing::Model(name) if !self.announced() => Failure::Coming(name),
            missing => missing.into(),
        })
    }
}
