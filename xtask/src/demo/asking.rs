//! Somebody who asks the device without pause while versions change, over one connection that is
//! opened again when it ends. Written on bare sockets: the demo needs no HTTP client beside it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Time between two requests.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for an answer: one that is held back for longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest answer that is read, in bytes.
const LARGEST: usize = 1 << 20;

/// Requests under way, in a thread of their own.
pub struct Asking {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    thread: JoinHandle<Asked>,
}

/// What was answered.
#[derive(Default)]
pub struct Asked {
    /// Answers by the version that gave them.
    pub versions: BTreeMap<String, usize>,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl Asking {
    /// Asks `http://address/path` about `body` until it is stopped.
    pub fn start(url: &str, path: &str, body: Vec<u8>) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), &body].concat();
        let thread = thread::spawn(move || ask(&address, &request, &stopped, &counted));
        Self { stop, sent, thread }
    }

    /// How many were answered or failed so far.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Ends it.
    pub fn stop(self) -> Asked {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_else(|_| Asked {
            failures: vec!["the asking thread panicked".to_owned()],
            ..Asked::default()
        })
    }
}

impl Asked {
    /// One line for a person.
    pub fn line(&self) -> String {
        let all: usize = self.versions.values().sum::<usize>() + self.failures.len();
        let by = self.versions.iter().map(|(version, count)| format!("{count} answered by {version}"));
        let by = by.collect::<Vec<_>>().join(", ");
        format!("{all} requests meanwhile: {by}, {} failed", self.failures.len())
    }
}

fn ask(address: &str, request: &[u8], stop: &AtomicBool, sent: &AtomicUsize) -> Asked {
    let mut asked = Asked::default();
    let mut connection = None;
    while !stop.load(Ordering::SeqCst) {
        match once(address, request, &mut connection) {
            Ok(version) => *asked.versions.entry(version).or_default() += 1,
            Err(error) => {
                connection = None;
                asked.failures.push(format!("{error:#}"));
            }
        }
        sent.fetch_add(1, Ordering::SeqCst);
        thread::sleep(PAUSE);
    }
    asked
}

fn once(address: &str, request: &[u8], kept: &mut Option<BufReader<TcpStream>>) -> Result<String> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => {
            let stream = TcpStream::connect(address).context("connecting")?;
            stream.set_read_timeout(Some(PATIENCE)).context("setting a timeout")?;
            stream.set_nodelay(true).context("setting an option")?;
            BufReader::new(stream)
        }
    };
    connection.get_mut().write_all(request).context("sending")?;
    let (status, body) = read(&mut connection)?;
    if status != 200 {
        bail!("status {status}: {}", String::from_utf8_lossy(&body));
    }
    let answer: Value = serde_json::from_slice(&body).context("the answer is no JSON")?;
    *kept = Some(connection);
    Ok(answer["model_version"].as_str().context("the answer has no version")?.to_owned())
}

/// Status and body of an answer that has its length in its head, as the host's have.
fn read(from: &mut BufReader<TcpStream>) -> Result<(u16, Vec<u8>)> {
    let (mut status, mut length) = (None, None);
    loop {
        let mut line = String::new();
        from.by_ref().take(8192).read_line(&mut line).context("reading the answer")?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if status.is_none() {
            let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
            status = Some(code.with_context(|| format!("no status in `{line}`"))?);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.trim().parse::<usize>().context("reading a length")?);
        }
    }
    let status = status.context("the connection was closed without an answer")?;
    let length = length.filter(|&length| length <= LARGEST).context("an answer without a usable length")?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).context("reading the body")?;
    Ok((status, body))
}
