//! Bars and spinners for people, on standard error; plain lines where nobody watches a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{Output, bytes, printable};

/// A spinner with a text that ends as a line. For steps of unknown length.
pub struct Step {
    bar: Option<ProgressBar>,
    out: Output,
}

impl Step {
    /// Begins with a text, which is a line where nobody watches.
    pub fn begin(out: Output, text: &str) -> Self {
        if !out.is_watched() {
            out.note(text);
            return Self { bar: None, out };
        }
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}"));
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.set_message(printable(text));
        Self { bar: Some(bar), out }
    }

    /// Changes the text. Where nobody watches, that is a line of its own.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(printable(text)),
            None => self.out.note(text),
        }
    }

    /// Prints a line that stays, above the spinner.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.out.note(text)),
            None => self.out.note(text),
        }
    }

    /// Ends; the spinner disappears.
    pub fn end(self) {}
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar over bytes.
pub struct Bytes {
    bar: ProgressBar,
    out: Output,
    what: String,
    total: u64,
}

impl Bytes {
    /// Begins at zero of `total` bytes.
    pub fn begin(out: Output, what: &str, total: u64) -> Self {
        let bar = if out.is_watched() { ProgressBar::new(total) } else { ProgressBar::hidden() };
        bar.set_style(style("{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}"));
        bar.set_message(printable(what));
        Self { bar, out, what: what.to_owned(), total }
    }

    /// A handle that counts; it may be given away.
    pub fn counter(&self) -> impl Fn(u64) + Send + 'static {
        let bar = self.bar.clone();
        move |count| bar.inc(count)
    }

    /// Ends with a line that says that it is done.
    pub fn end(self) {
        self.bar.finish_and_clear();
        self.out.note(format!("{}: {}", self.what, bytes(self.total)));
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The templates are constants of this file; one that is wrong falls back to the plain style.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
