//! Ending the host, which is the agent's child and outlives it: through its control socket, then by
//! the process that the agent noted in `run/host.json`.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::context::read_small;
use crate::supervisor::process::Process;

/// What the agent notes about its host.
#[derive(Debug, Deserialize)]
struct Note {
    pid: i32,
    /// As [`Process::started`].
    start: u64,
}

/// The host of the agent in `agent_data`, if one runs.
pub fn running(agent_data: &Path) -> Option<Process> {
    let text = read_small(&agent_data.join("run/host.json"), 4096).ok()?;
    let note: Note = serde_json::from_str(&text).ok()?;
    let process = Process { pid: note.pid, started: note.start };
    process.is_alive().then_some(process)
}

/// Ends the host: asked to, then told to, then made to.
pub async fn end(agent_data: &Path, grace: Duration) {
    let Some(process) = running(agent_data) else {
        return;
    };
    let client = selvedge_control::client::Client::new(agent_data.join("run/control.sock"));
    let asked = client.shutdown(Duration::from_secs(2)).await.is_ok();
    if asked && process.gone(grace).await {
        return;
    }
    process.end(grace).await;
}
