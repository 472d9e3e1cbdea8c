//! Every child of one `selvedge up`, and their end in the order in which it does no harm: the agent,
//! its host, the registry, the broker.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::failure::Failure;
use crate::output::Output;
use crate::supervisor::child::Child;
use crate::supervisor::host;
use crate::supervisor::place::Place;
use crate::supervisor::process::Process;
use crate::supervisor::record::Record;

/// How long a child may take to end by itself.
pub const GRACE: Duration = Duration::from_secs(8);

/// The children, and what the record says of them.
pub struct Stack {
    /// Running children, in the order of their start.
    pub children: Vec<Child>,
    /// What other commands find them by.
    pub record: Record,
}

impl Stack {
    /// Starts a child and writes it into the record, so that a later start can clear it away even
    /// if this process is killed.
    pub fn start(
        &mut self,
        place: &Place,
        name: &'static str,
        program: &Path,
        args: &[OsString],
    ) -> Result<usize, Failure> {
        let child = Child::start(name, program, args, &place.log(name))?;
        if let Some(identity) = child.identity() {
            self.record.pids.insert(name.to_owned(), identity);
        }
        self.children.push(child);
        self.record.write(place.dir())?;
        Ok(self.children.len() - 1)
    }

    /// Waits until a child dies.
    pub async fn death(&mut self) -> Failure {
        loop {
            for child in &mut self.children {
                if let Err(failure) = child.check() {
                    return failure;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends the agent, its host, the registry and the broker, in this order.
    pub async fn end(&mut self, place: &Place) {
        for child in self.children.iter_mut().rev() {
            child.end(GRACE).await;
            if child.name() == "agent" {
                host::end(&place.agent(), GRACE).await;
            }
        }
        self.forget(place);
    }

    /// Ends all of them at once.
    pub async fn kill(&mut self, place: &Place) {
        for child in &mut self.children {
            child.end(Duration::ZERO).await;
        }
        if let Some(host) = host::running(&place.agent()) {
            host.end(Duration::ZERO).await;
        }
        self.forget(place);
    }

    fn forget(&mut self, place: &Place) {
        self.children.clear();
        self.record.pids.clear();
        // Without it the next start looks for processes that are gone, and finds none.
        let _ = self.record.write(place.dir());
    }
}

/// Ends what an `up` that was killed has left.
pub async fn clear(out: Output, place: &Place, record: &Record) {
    let left: Vec<(&String, &Process)> =
        record.pids.iter().filter(|(name, process)| *name != "up" && process.is_alive()).collect();
    let host = host::running(&place.agent());
    if left.is_empty() && host.is_none() {
        return;
    }
    out.note("an earlier `selvedge up` here was killed; ending what it left");
    for (_, process) in left {
        process.end(GRACE).await;
    }
    host::end(&place.agent(), GRACE).await;
}
