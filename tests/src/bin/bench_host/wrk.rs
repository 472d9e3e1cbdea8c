//! `wrk` from a process of its own, with a body of any bytes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// What a request is.
pub struct Asked<'a> {
    /// Where it goes.
    pub url: &'a str,
    /// Its body.
    pub body: &'a [u8],
    /// Its headers.
    pub headers: &'a [(&'static str, String)],
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Answers.
    pub requests: u64,
    /// Time that they took.
    pub seconds: f64,
}

/// Asks for so many seconds on so many connections from one thread.
///
/// # Errors
/// Where an answer was none of 2xx, or a connection failed: then the figures would mean nothing.
pub fn run(asked: &Asked, connections: u32, seconds: u64, place: &Path) -> anyhow::Result<Load> {
    let (body, script) = (place.join("body"), place.join("ask.lua"));
    std::fs::write(&body, asked.body)?;
    let headers: String =
        asked.headers.iter().map(|(name, value)| format!("wrk.headers[{name:?}] = {value:?}\n")).collect();
    std::fs::write(
        &script,
        format!(
            "local file = io.open({body:?}, 'rb')\n\
             wrk.method = 'POST'\n\
             wrk.body = file:read('*a')\n\
             {headers}\
             done = function(summary)\n\
             local wrong = summary.errors\n\
             print(string.format('told %d %d %d %d', summary.requests, summary.duration, wrong.status,\n\
             wrong.connect + wrong.read + wrong.write + wrong.timeout))\n\
             end\n"
        ),
    )?;
    let mut command = Command::new("wrk");
    command.args(["--threads", "1", "--timeout", "20s", "--connections", &connections.to_string()]);
    command.args(["--duration", &format!("{seconds}s"), "--script"]).arg(&script).arg(asked.url);
    let output = command.output().context("wrk does not start: install Debian's package `wrk`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.lines().find_map(|line| line.strip_prefix("told ")).with_context(|| {
        format!("wrk ended without a result: {text}{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let numbers: Vec<u64> = told.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [requests, micros, refused, broken] = numbers[..] else { anyhow::bail!("wrk said {told:?}") };
    ensure!(
        refused == 0 && broken == 0,
        "{}: {refused} of {requests} were refused, {broken} broke",
        asked.url
    );
    Ok(Load { requests, seconds: micros as f64 / 1e6 })
}
