//! Running other programs: by argument lists, never through a shell. A failed one is an error that
//! shows the command line and, where its output was kept from the screen, what it said.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::children;
use crate::clock;

/// Says on standard error what happens now; standard output is for results.
pub fn say(line: impl AsRef<str>) {
    let mut out = io::stderr().lock();
    // A closed terminal must not end a set-up half-way.
    let _ = writeln!(out, "{}", line.as_ref());
}

/// The command line as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs with the terminal attached.
pub fn loudly(command: &mut Command) -> Result<()> {
    let status = finish(command, None)?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs with its output on the terminal as it comes, and gives it back.
pub fn aloud(command: &mut Command) -> Result<String> {
    command.stdout(Stdio::piped());
    let mut child = children::spawn(command)?;
    let out = child.take_stdout().context("the output is no pipe")?;
    let mut text = String::new();
    for line in BufReader::new(out).lines() {
        let line = line.context("reading what it says")?;
        let _ = writeln!(io::stdout(), "{line}");
        text.push_str(&line);
        text.push('\n');
    }
    let status = child.wait(None)?.context("ended without a status")?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(text)
}

/// Runs without the terminal; shows what it said only when it failed.
pub fn quietly(command: &mut Command) -> Result<String> {
    within(command, None)
}

/// Like [`quietly`], ending the program after `limit`.
pub fn within(command: &mut Command, limit: Option<Duration>) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = children::spawn(command)?;
    let out = child.take_stdout().map(collect);
    let err = child.take_stderr().map(collect);
    let Some(status) = child.wait(limit)? else {
        child.end()?;
        bail!("`{}` was given up after {limit:?}", shown(command));
    };
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (text(out), text(err));
    if !status.success() {
        bail!("`{}` ended with {status}\n{}", shown(command), tail(&out, &err));
    }
    Ok(out)
}

fn finish(command: &mut Command, limit: Option<Duration>) -> Result<ExitStatus> {
    let mut child = children::spawn(command)?;
    child.wait(limit)?.context("ended without a status")
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read before a failure is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn tail(out: &str, err: &str) -> String {
    let lines: Vec<&str> = out.lines().chain(err.lines()).collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Whether a program of this name can be found and started.
pub fn is_there(program: &str) -> bool {
    let status = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// `cargo`, as the tool chain that runs us names it.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::paths::root());
    command
}

/// Says what a step does and, when it is done, how long it took.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format!("· {what}"));
    let started = clock::Started::now();
    let result = work().with_context(|| what.to_owned())?;
    let seconds = started.elapsed().as_secs_f64();
    if seconds >= 1.0 {
        say(format!("  done in {seconds:.0} s"));
    }
    Ok(result)
}

/// A program at a path, started in the root of the repository.
pub fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.current_dir(crate::paths::root());
    command
}
