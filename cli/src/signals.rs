//! Ctrl-C, SIGTERM and a closed terminal as one thing to wait for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// The signals that end a command. From its making on they no longer kill the process.
pub struct Ending {
    interrupt: Signal,
    terminate: Signal,
    /// None where it was ignored from the start: `nohup selvedge up` outlives its terminal.
    hangup: Option<Signal>,
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
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Ok(Self {
            hangup: if ignores_hangup(&status) { None } else { Some(take(SignalKind::hangup())?) },
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub async fn came(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Whether `/proc/self/status` says that SIGHUP, signal 1, is ignored.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_seen() {
        for (status, ignored) in
            [("SigBlk:\t1\nSigIgn:\t0000000000001001\n", true), ("SigIgn:\t1000\n", false), ("", false)]
        {
            assert_eq!(ignores_hangup(status), ignored, "{status:?}");
        }
    }
}
