//! Log lines of a guest, its standard output and error among them, bounded per request.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use selvedge_package::PackageName;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};

use crate::limits::Limits;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Where the lines of one instance go, and how many more may.
#[derive(Debug)]
pub struct Lines {
    package: PackageName,
    text: usize,
    allowance: (usize, usize),
    left: (usize, usize),
    dropped: u64,
    partial: Vec<u8>,
}

impl Lines {
    /// Lines of an instance of `package`.
    pub fn new(package: &PackageName, limits: &Limits) -> Self {
        let allowance = (limits.log_lines, limits.log_bytes);
        Self {
            package: package.clone(),
            text: limits.text,
            allowance,
            left: allowance,
            dropped: 0,
            partial: Vec::new(),
        }
    }

    /// Passes one line on, or counts it as dropped.
    pub fn write(&mut self, level: Level, message: &str) {
        let message = &message[..message.floor_char_boundary(self.text)];
        let (lines, bytes) = self.left;
        // Before anything looks into it: what is dropped costs next to nothing.
        if lines == 0 || bytes < message.len() {
            self.left.0 = 0;
            self.dropped += 1;
            return;
        }
        let message = &*one_line(message);
        let message = &message[..message.floor_char_boundary(self.text)];
        self.left = (lines - 1, bytes.saturating_sub(message.len()));
        let package = self.package.as_str();
        match level {
            Level::Debug => tracing::debug!(target: "module", package, "{message}"),
            Level::Info => tracing::info!(target: "module", package, "{message}"),
            Level::Warn => tracing::warn!(target: "module", package, "{message}"),
            Level::Error => tracing::error!(target: "module", package, "{message}"),
        }
    }

    /// Lines that this request lost so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The request is over: says how much was dropped, and starts over.
    pub fn end(&mut self) {
        if !self.partial.is_empty() {
            self.flush();
        }
        if self.dropped > 0 {
            let (package, dropped) = (self.package.as_str(), self.dropped);
            tracing::warn!(target: "module", package, dropped, "log lines of one request were dropped");
        }
        (self.left, self.dropped) = (self.allowance, 0);
    }

    /// Takes bytes of standard output or error, which become a line at a newline.
    fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = self.text.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let line = std::mem::take(&mut self.partial);
        self.write(Level::Info, String::from_utf8_lossy(&line).trim_end());
    }
}

/// The message with everything escaped that could end a line or steer a terminal: a guest's line is one
/// line, and cannot pass for another's.
pub(crate) fn one_line(message: &str) -> Cow<'_, str> {
    let harmful = |letter: char| {
        (letter.is_control() && letter != '\t')
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !message.contains(harmful) {
        return Cow::Borrowed(message);
    }
    let mut line = String::with_capacity(message.len() + 16);
    for letter in message.chars() {
        if harmful(letter) { line.extend(letter.escape_default()) } else { line.push(letter) }
    }
    Cow::Owned(line)
}

/// Standard output or error of a guest.
#[derive(Debug, Clone)]
pub struct Stream(pub Arc<Mutex<Lines>>);

impl IsTerminal for Stream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::manifest::Module;

    #[test]
    fn a_request_has_so_many_lines_and_bytes_and_the_next_has_them_again() {
        let limits = Limits { log_lines: 3, log_bytes: 100, text: 40, ..Limits::of(&Module::default()) };
        let mut lines = Lines::new(&"noisy".parse().unwrap(), &limits);
        for _ in 0..5 {
            lines.write(Level::Info, "a line");
        }
        assert_eq!(lines.dropped(), 2);
        lines.end();
        assert_eq!(lines.dropped(), 0);
        lines.write(Level::Info, &"ä".repeat(1000));
        lines.write(Level::Info, &"b".repeat(1000));
        lines.write(Level::Info, &"c".repeat(1000));
        assert_eq!((lines.dropped(), lines.left), (1, (0, 20)));
    }

    #[test]
    fn a_message_stays_one_line_that_steers_nothing() {
        let check = |message, expected| assert_eq!(one_line(message), expected);
        check("grün\tis fine", "grün\tis fine");
        check("a\nb\r\nc", "a\\nb\\r\\nc");
        check("\u{1b}[2K", "\\u{1b}[2K");
        check("\u{85}\u{2028}\u{202e}", "\\u{85}\\u{2028}\\u{202e}");
    }

    #[test]
    fn output_becomes_lines_and_a_line_without_end_is_cut() {
        let limits = Limits { text: 10, log_lines: 5, ..Limits::of(&Module::default()) };
        let mut lines = Lines::new(&"noisy".parse().unwrap(), &limits);
        lines.push(b"one\ntwo\nthr");
        assert_eq!((lines.left.0, &lines.partial[..]), (3, &b"thr"[..]));
        lines.push(&[b'x'; 100_000]);
        assert_eq!(lines.partial.len(), 10);
        lines.end();
        assert!(lines.partial.is_empty());
    }
}
