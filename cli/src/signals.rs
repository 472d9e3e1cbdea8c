//! Ctrl-C, SIGTERM and a closed terminal as one thing to wait for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// The signals that end a command. From its making on they no longer kill the process.
pub struct Ending {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Ending {
    /// Takes the signals.
    pub fn watch() -> Result<Self, Failure> {
        let take = |kind| {
            signal(kind).map_err(|source| Failure::Internal {
                what: "cannot watch for signals",
                source: source.into(),
            })
        };
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub async fn came(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
