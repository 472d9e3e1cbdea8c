//! What people and programs read: results on standard output, progress and errors on standard error.
//!
//! A closed pipe is no error and never a panic; any other failure to write is kept for `main`, which
//! ends with its row of the exit table. What goes to a terminal is cleaned of control
//! characters first, since much of it comes from devices.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::PoisonError;

use selvedge_protocol::line::is_plain;
use serde::Serialize;

use crate::context::process_env;
use crate::paint::Paint;

/// Where results go, and in which form.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

impl Output {
    /// For people, or with `json` for programs.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person watches standard error, on a terminal where lines can be written anew.
    pub fn is_watched(&self) -> bool {
        io::stderr().is_terminal() && is_able()
    }

    /// Whether a person sees standard output, on a terminal where lines can be written anew.
    pub fn is_seen(&self) -> bool {
        !self.json && io::stdout().is_terminal() && is_able()
    }

    /// Colour for standard output.
    pub fn paint(&self) -> Paint {
        Paint::new(self.is_seen(), process_env)
    }

    /// Colour for standard error.
    pub fn paint_notes(&self) -> Paint {
        Paint::new(self.is_watched(), process_env)
    }

    /// A result for programs: pretty JSON. Nothing when people read.
    pub fn value(&self, value: &impl Serialize) {
        if self.json {
            // Values here are rows and maps with string keys; writing them as JSON cannot fail.
            put(false, &serde_json::to_string_pretty(value).unwrap_or_default());
        }
    }

    /// A result for people. Nothing when programs read.
    pub fn line(&self, text: impl AsRef<str>) {
        if !self.json {
            put(false, &printable(text.as_ref()));
        }
    }

    /// A result for people that has its colours, and is clean already.
    pub fn painted(&self, text: impl AsRef<str>) {
        if !self.json {
            put(false, text.as_ref());
        }
    }

    /// One result of many for programs: a line of JSON. Nothing when people read.
    pub fn record(&self, value: &impl Serialize) {
        if self.json {
            put(false, &serde_json::to_string(value).unwrap_or_default());
        }
    }

    /// A line about progress, to standard error, for both.
    pub fn note(&self, text: impl AsRef<str>) {
        put(true, &printable(text.as_ref()));
    }

    /// A line about progress that has its colours, and is clean already.
    pub fn painted_note(&self, text: impl AsRef<str>) {
        put(true, text.as_ref());
    }

    /// A table for people. Nothing when programs read.
    pub fn table(&self, head: &[&str], rows: &[Vec<String>]) {
        if !self.json {
            put(false, &table(head, rows));
        }
    }
}

/// Whether the terminal can do more than print.
fn is_able() -> bool {
    process_env("TERM").is_none_or(|term| term != "dumb")
}

/// Whether whoever read standard output is gone (`selvedge logs -f … | head -3`). What would go on
/// without end stops then.
pub fn unread() -> bool {
    let stdout = io::stdout();
    // Nothing is asked for: what cannot be written any more is said all the same.
    let mut asked = [rustix::event::PollFd::new(&stdout, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&now)).is_ok_and(|count| count > 0)
        && asked[0].revents().intersects(rustix::event::PollFlags::ERR | rustix::event::PollFlags::HUP)
}

/// The first failure to write, with the name of what could not be written.
static LOST: Mutex<Option<(&str, io::Error)>> = Mutex::new(None);

/// The first failure to write anything, if there was one: what and why. It is told once.
pub fn lost() -> Option<(&'static str, io::Error)> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Keeps a failure to write; a reader that went away is none.
fn kept(name: &'static str, written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        LOST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((name, error));
    }
}

/// Writes a line to standard output or standard error.
fn put(error: bool, text: &str) {
    let line = format!("{text}\n");
    if error {
        kept("standard error", io::stderr().lock().write_all(line.as_bytes()));
    } else {
        put_raw(line.as_bytes());
    }
}

/// Writes raw bytes to standard output.
pub fn put_raw(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    kept("standard output", out.write_all(bytes).and_then(|()| out.flush()));
}

/// Writes what draws on a terminal to standard error.
pub fn put_steering(text: &str) {
    kept("standard error", io::stderr().lock().write_all(text.as_bytes()));
}

/// `text` with all that does not stand for itself, but the line feed, written as an escape.
pub fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) || c == '\n' {
            clean.push(c);
        } else {
            let _ = write!(clean, "{}", c.escape_unicode());
        }
    }
    clean
}

/// Columns padded with spaces, two apart; the last one is not padded.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let clean = |cell: &str| printable(cell).replace('\n', "\\n");
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    lines.extend(rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()));
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        for (column, cell) in line.iter().enumerate() {
            text.push_str(cell);
            if column + 1 < line.len() {
                let gap = widths.get(column).copied().unwrap_or(0).saturating_sub(cell.chars().count()) + 2;
                text.extend(std::iter::repeat_n(' ', gap));
            }
        }
    }
    text
}

/// A number of bytes for people: `512 B`, `3.1 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A moment as the registry writes it (RFC 3339), to the second.
pub fn moment(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(at) => format!("{at:.0}"),
        Err(_) => text.to_owned(),
    }
}

/// `key=value` pairs for people, parted by spaces; `-` where there is none.
pub fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let text = pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_end_without_blanks() {
        let rows = [vec!["a".into(), "1".into()], vec!["longer".into(), "22".into()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME    N\na       1\nlonger  22");
        assert_eq!(table(&["NAME"], &[]), "NAME");
    }

    #[test]
    fn a_device_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
        assert_eq!(table(&["X"], &[vec!["a\nb\u{7}".into()]]), "X\na\\nb\\u{7}");
        assert_eq!(printable("\u{202e}x"), "\\u{202e}x");
    }

    #[test]
    fn moments_are_shown_to_the_second() {
        assert_eq!(moment("2026-11-28T02:37:49.577Z"), "2026-11-28T02:37:49Z");
        assert_eq!(moment("2026-11-28T02:37:49Z"), "2026-11-28T02:37:49Z");
        assert_eq!(moment("yesterday"), "yesterday");
    }

    #[test]
    fn sizes_read_well() {
        for (count, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3_250_586, "3.1 MiB"), (1 << 40, "1.0 TiB")]
        {
            assert_eq!(bytes(count), text);
        }
    }
}
