//! A client that costs next to nothing, so that what it measures is the host: one kept connection, one request
//! after the other, answers told by their length.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use selvedge_tests::clock::now;

const PATIENCE: Duration = Duration::from_secs(30);

/// A kept connection with one request.
pub struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    /// To `address`, for `POST path` with this body.
    pub fn new(address: &str, path: &str, body: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}");
        Ok(Self { stream, request: request.into_bytes(), buffer: vec![0; 256 << 10] })
    }

    /// Asks once: the status, and what it took.
    pub fn ask(&mut self) -> anyhow::Result<(u16, Duration)> {
        let start = now();
        self.stream.write_all(&self.request)?;
        let (mut filled, mut whole) = (0, usize::MAX);
        let mut status = 0;
        while filled < whole {
            ensure!(filled < self.buffer.len(), "an answer of more than {} bytes", self.buffer.len());
            let count = self.stream.read(&mut self.buffer[filled..])?;
            ensure!(count > 0, "the connection was closed");
            filled += count;
            if whole < usize::MAX {
                continue;
            }
            let Some(end) = self.buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
            status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status")?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            whole = end + 4 + length.context("no length")?.trim().parse::<usize>()?;
        }
        Ok((status, now() - start))
    }

    /// Asks without pause until then: the times in seconds. Every answer must be 200.
    pub fn ask_until(&mut self, end: Instant) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::new();
        while now() < end {
            let (status, took) = self.ask()?;
            ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&self.buffer[..500]));
            times.push(took.as_secs_f64());
        }
        Ok(times)
    }
}
