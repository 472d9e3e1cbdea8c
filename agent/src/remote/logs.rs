//! The newest log lines of agent and host, in bounded memory, for somebody far away.
//!
//! The agent's own lines are kept as they are logged; the host's are read from its file when somebody
//! asks, from where the last look ended. Each line has a number, so that the next question can name
//! the last one.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_protocol::remote::{LogLine, LogLines};
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::clock;

/// Most lines kept of each program.
const LINES: usize = 300;
/// Most bytes of text kept of each program.
const BYTES: usize = 48 * 1024;
/// Longest line, in bytes.
const LONGEST: usize = 1000;
/// Most bytes of the host's log that one look reads.
const LOOK: u64 = 64 * 1024;
/// Bytes that a line takes in a message besides its text.
const FRAME: usize = 96;

/// A kept line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    number: u64,
    at_ms: i64,
    level: &'static str,
    text: Box<str>,
}

/// The lines of one program, oldest first.
#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Line>,
    bytes: usize,
}

impl Lines {
    fn push(&mut self, line: Line) {
        self.bytes += line.text.len();
        self.lines.push_back(line);
        while (self.lines.len() > LINES || self.bytes > BYTES)
            && let Some(old) = self.lines.pop_front()
        {
            self.bytes -= old.text.len();
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    last: u64,
    agent: Lines,
    host: Lines,
    /// How far the host's log has been read.
    read: u64,
}

/// The newest lines. Cheap to clone: clones share them.
#[derive(Debug, Clone, Default)]
pub struct Logs(Arc<Mutex<Held>>);

impl Logs {
    /// What keeps the agent's own lines: to be put under the subscriber, behind its filter.
    pub fn layer(&self) -> RingLayer {
        RingLayer(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a line of the agent.
    fn agent(&self, level: &'static str, text: &str) {
        let at_ms = clock::system_ms();
        let mut held = self.lock();
        held.last += 1;
        let number = held.last;
        held.agent.push(Line { number, at_ms, level, text: plain(text) });
    }

    /// Takes up what the host has written since the last look: at most [`LOOK`] bytes, the newest.
    pub fn read_host(&self, path: &Path) -> io::Result<()> {
        let mut held = self.lock();
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        // It was cut, and begins anew.
        let from = if size < held.read { 0 } else { held.read };
        let from = from.max(size.saturating_sub(LOOK));
        let whole = from == 0 || from == held.read;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LOOK).read_to_end(&mut bytes)?;
        // A line that is being written is taken at the next look, unless it never ends.
        let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if bytes.len() as u64 == LOOK => bytes.len(),
            None => 0,
        };
        held.read = from + end as u64;
        let mut lines = bytes[..end].split(|byte| *byte == b'\n');
        if !whole {
            // The first one has no beginning.
            lines.next();
        }
        let mut at_ms = held.host.lines.back().map_or_else(clock::system_ms, |line| line.at_ms);
        for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
            let line = String::from_utf8_lossy(line);
            let (said_at, level, text) = parse(&line);
            at_ms = said_at.unwrap_or(at_ms);
            held.last += 1;
            let number = held.last;
            held.host.push(Line { number, at_ms, level, text: plain(text) });
        }
        Ok(())
    }

    /// The newest lines with a number above `after`, oldest first: at most so many, in at most so
    /// many bytes.
    pub fn newest(&self, after: Option<u64>, lines: u32, bytes: usize, epoch: u64) -> LogLines {
        let held = self.lock();
        let of = |source: &'static str, lines: &Lines| {
            let newer = lines.lines.iter().filter(|line| after.is_none_or(|after| line.number > after));
            newer.cloned().map(|line| (source, line)).collect::<Vec<_>>()
        };
        let mut found = of("agent", &held.agent);
        found.extend(of("host", &held.host));
        // By their time: the host's lines got their numbers when they were read.
        found.sort_by_key(|(_, line)| (line.at_ms, line.number));
        let mut left = bytes;
        let most = usize::try_from(lines).unwrap_or(usize::MAX);
        let from = found.iter().rev().take(most).take_while(|(_, line)| {
            let fits = left.checked_sub(line.text.len() + FRAME);
            left = fits.unwrap_or(0);
            fits.is_some()
        });
        let from = found.len() - from.count();
        let lines = found.split_off(from).into_iter().map(|(source, line)| LogLine {
            number: line.number,
            at_ms: line.at_ms,
            source: source.to_owned(),
            level: line.level.to_owned(),
            text: line.text.into(),
        });
        LogLines { last: held.last, epoch, lines: lines.collect() }
    }
}

/// A line without what a terminal would take for a command, cut where it is too long.
fn plain(text: &str) -> Box<str> {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().into()
}

/// Time, level and text of a line as `tracing` writes it. A line of another kind is all text.
fn parse(line: &str) -> (Option<i64>, &'static str, &str) {
    let line = line.trim_end();
    let parsed = line.split_once(' ').and_then(|(time, rest)| {
        let time: jiff::Timestamp = time.parse().ok()?;
        let (word, text) = rest.trim_start().split_once(' ')?;
        let level = match word {
            "ERROR" => "error",
            "WARN" => "warn",
            "INFO" => "info",
            "DEBUG" => "debug",
            "TRACE" => "trace",
            _ => return None,
        };
        Some((Some(time.as_millisecond()), level, text))
    });
    parsed.unwrap_or((None, "info", line))
}

/// Keeps the agent's lines.
#[derive(Debug)]
pub struct RingLayer(Logs);

impl<S: tracing::Subscriber> Layer<S> for RingLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            tracing::Level::DEBUG => "debug",
            tracing::Level::TRACE => "trace",
        };
        let target = event.metadata().target();
        self.0.agent(level, &format!("{target}: {}{}", text.message, text.fields));
    }
}

/// The words of an event.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use tracing_subscriber::layer::SubscriberExt as _;

    fn texts(lines: &LogLines) -> Vec<String> {
        lines.lines.iter().map(|line| format!("{} {} {}", line.source, line.level, line.text)).collect()
    }

    #[test]
    fn own_lines_are_kept_with_their_fields_and_within_bounds() {
        let logs = Logs::default();
        let subscriber = tracing_subscriber::registry().with(logs.layer());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(n = 7, why = "so", "a\nline");
            for n in 0..LINES * 2 {
                tracing::warn!("{n} {}", "x".repeat(2 * LONGEST));
            }
            tracing::error!("last");
        });
        let all = logs.newest(None, u32::MAX, usize::MAX, 3);
        assert_eq!(all.last, 2 * LINES as u64 + 2);
        assert!(all.lines.iter().map(|line| line.text.len()).sum::<usize>() <= BYTES);
        assert!(all.lines.iter().all(|line| line.text.len() <= LONGEST));
        let newest = logs.newest(Some(all.last - 1), 10, usize::MAX, 3);
        assert_eq!(texts(&newest), ["agent error selvedge_agent::remote::logs::tests: last"]);
        assert_eq!(logs.newest(Some(all.last), 10, usize::MAX, 3).lines, []);

        let logs = Logs::default();
        let subscriber = tracing_subscriber::registry().with(logs.layer());
        tracing::subscriber::with_default(subscriber, || tracing::info!(n = 7, why = "so", "a\nline"));
        let text = &logs.newest(None, 1, usize::MAX, 3).lines[0].text;
        assert_eq!(text, "selvedge_agent::remote::logs::tests: a line n=7 why=\"so\"");
    }

    #[test]
    fn an_answer_is_the_newest_that_fits() {
        let logs = Logs::default();
        for n in 0..100 {
            logs.agent("info", &format!("{n:0>100}"));
        }
        let some = logs.newest(None, 1000, 1000, 1);
        assert_eq!(some.lines.len(), 1000 / (100 + FRAME));
        assert!(some.lines.last().unwrap().text.ends_with("99"));
        assert_eq!(logs.newest(None, 3, usize::MAX, 1).lines.len(), 3);
        assert_eq!(logs.newest(None, 0, usize::MAX, 1).lines.len(), 0);
    }

    #[test]
    fn the_hosts_lines_are_read_once_in_whole_lines_whatever_is_in_them() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("host.log");
        let logs = Logs::default();
        logs.read_host(&path).unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"2026-11-28T01:02:03.5Z  WARN host: slow\n\xff\x1b[31m panicked\n2026-11-28T01:02")
            .unwrap();
        logs.read_host(&path).unwrap();
        let first = logs.newest(None, 10, usize::MAX, 1);
        assert_eq!(texts(&first), ["host warn host: slow", "host info \u{fffd} [31m panicked"]);
        assert_eq!(first.lines[0].at_ms % 60_000, 3500);
        file.write_all(b":04Z ERROR host: gone\n").unwrap();
        logs.read_host(&path).unwrap();
        logs.read_host(&path).unwrap();
        let next = logs.newest(Some(first.last), 10, usize::MAX, 1);
        assert_eq!(texts(&next), ["host error host: gone"]);

        // It is cut: what is in it now is new.
        File::create(&path).unwrap().write_all(b"2026-11-28T01:02:05Z INFO host: anew\n").unwrap();
        logs.read_host(&path).unwrap();
        assert_eq!(texts(&logs.newest(Some(next.last), 10, usize::MAX, 1)), ["host info host: anew"]);

        // Much was written: only the end is read, and no half line. A line without an end is no trap.
        let mut file = File::create(&path).unwrap();
        for n in 0..10_000 {
            writeln!(file, "2026-11-28T01:02:05Z INFO host: line {n:0>30}").unwrap();
        }
        logs.read_host(&path).unwrap();
        let many = logs.newest(Some(next.last + 1), u32::MAX, usize::MAX, 1);
        assert!(
            many.lines.len() <= LINES && many.lines.iter().all(|line| line.text.starts_with("host: line"))
        );
        file.write_all(&vec![b'x'; 3 * LOOK as usize]).unwrap();
        logs.read_host(&path).unwrap();
        logs.read_host(&path).unwrap();
    }
}
