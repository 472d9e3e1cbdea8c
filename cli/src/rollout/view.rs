//! Three ways to show how deployments go: bars on a terminal, a line for each change, or a line of
//! JSON for each change.

use std::collections::HashMap;

use selvedge_package::DeviceId;
use serde_json::{Value, json};

use crate::output::{Output, put_steering};
use crate::paint::Paint;
use crate::rollout::frame::{Size, frame};
use crate::rollout::{Tally, doing};
use crate::rows::deployment::{Detail, Place};

/// Size of a terminal that does not tell.
const USUAL: Size = Size { width: 80, height: 24 };

/// Where changes go.
pub struct View {
    out: Output,
    kind: Kind,
    last: HashMap<(String, DeviceId), String>,
}

enum Kind {
    /// Drawn on standard error.
    Bars(Board),
    /// Lines on standard output.
    Lines,
    /// Lines on standard error, beside a result.
    Notes,
    /// JSON on standard output.
    Json,
}

impl View {
    /// For a command whose result is the progress itself.
    pub fn of_progress(out: Output) -> Self {
        let kind = if out.is_json() {
            Kind::Json
        } else if out.is_seen() && out.is_watched() {
            Kind::Bars(Board::new(out.paint_notes()))
        } else {
            Kind::Lines
        };
        Self { out, kind, last: HashMap::new() }
    }

    /// For a command that waits before it gives a result of its own.
    pub fn beside_result(out: Output) -> Self {
        let kind = if out.is_watched() { Kind::Bars(Board::new(out.paint_notes())) } else { Kind::Notes };
        Self { out, kind, last: HashMap::new() }
    }

    /// A word about the registry or a deployment, to people.
    pub fn say(&mut self, text: &str) {
        if let Kind::Bars(board) = &mut self.kind {
            let lines = board.drawn.clone();
            board.clear();
            self.out.note(text);
            board.draw(lines);
        } else {
            self.out.note(text);
        }
    }

    /// Whether anybody is left who reads.
    pub fn is_read(&self) -> bool {
        !matches!(self.kind, Kind::Lines | Kind::Json) || !crate::output::unread()
    }

    /// Shows what changed; `sent` are the details as they came.
    pub fn show(&mut self, details: &[Detail], sent: &[Value]) {
        if let Kind::Bars(board) = &mut self.kind {
            let lines = frame(details, size(), board.paint);
            board.draw(lines);
            return;
        }
        for (detail, sent) in details.iter().zip(sent) {
            for (index, place) in detail.targets.iter().enumerate() {
                let now = key(place, matches!(self.kind, Kind::Json));
                let id = (detail.row.id.clone(), place.name.clone());
                if self.last.get(&id) == Some(&now) {
                    continue;
                }
                self.last.insert(id, now);
                let text = format!("{}: {}: {}", place.name, detail.row, doing(place));
                match self.kind {
                    Kind::Json => self.out.record(&change(detail, &sent["targets"][index])),
                    Kind::Notes => self.out.note(text),
                    _ => self.out.line(text),
                }
            }
        }
    }

    /// Ends; what was drawn stays.
    pub fn end(self, details: &[Detail], sent: &[Value]) {
        match self.kind {
            Kind::Json => {
                for (detail, sent) in details.iter().zip(sent) {
                    self.out.record(&json!({
                        "deployment": detail.row.id, "package": detail.row.package,
                        "release": detail.row.release, "done": true, "summary": sent["summary"],
                    }));
                }
            }
            Kind::Lines => {
                for detail in details {
                    self.out.line(format!(
                        "{} to {}: {}",
                        detail.row,
                        detail.row.where_to(),
                        Tally::of(detail)
                    ));
                }
            }
            Kind::Bars(_) | Kind::Notes => {}
        }
    }
}

/// What has to change for a new line: without a terminal a tenth of the bytes, not each one.
fn key(place: &Place, fine: bool) -> String {
    let stage = place.stage().map(crate::rows::deployment::Stage::word);
    let step = if fine { 1 } else { 10 };
    let share = place.share().map(|share| share / step);
    let why = if place.wins() { None } else { place.why.clone() };
    format!("{stage:?} {:?} {share:?} {why:?} {:?} {}", place.verdict, place.failure, place.online)
}

/// A target as it came, with the deployment that it is about.
fn change(detail: &Detail, target: &Value) -> Value {
    let mut line = json!({
        "deployment": detail.row.id, "package": detail.row.package, "version": detail.row.version,
        "release": detail.row.release,
    });
    if let (Some(line), Some(target)) = (line.as_object_mut(), target.as_object()) {
        for (name, value) in target {
            let name = if name == "name" { "target" } else { name.as_str() };
            line.insert(name.to_owned(), value.clone());
        }
    }
    line
}

/// Lines on a terminal that are written anew in place. The cursor rests below them, so that whatever
/// ends the program, Ctrl-C too, leaves what was seen and a line to go on.
struct Board {
    paint: Paint,
    drawn: Vec<String>,
}

impl Board {
    fn new(paint: Paint) -> Self {
        Self { paint, drawn: Vec::new() }
    }

    fn draw(&mut self, lines: Vec<String>) {
        if lines != self.drawn {
            put_steering(&redrawn(self.drawn.len(), &lines));
            self.drawn = lines;
        }
    }

    /// Takes the lines away, so that something else can be written.
    fn clear(&mut self) {
        put_steering(&redrawn(self.drawn.len(), &[]));
        self.drawn.clear();
    }
}

/// What puts `lines` in the place of the last `old` lines of a terminal.
fn redrawn(old: usize, lines: &[String]) -> String {
    let mut text = if old > 0 { format!("\r\u{1b}[{old}A") } else { String::new() };
    for line in lines {
        text.push_str(line);
        // To the end of the line, where an older one was longer.
        text.push_str("\u{1b}[K\n");
    }
    if lines.len() < old {
        text.push_str("\u{1b}[J");
    }
    text
}

/// The terminal behind standard error.
fn size() -> Size {
    terminal_size::terminal_size_of(std::io::stderr())
        .map_or(USUAL, |(width, height)| Size { width: width.0.into(), height: height.0.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::tests::{detail, place};

    #[test]
    fn a_change_names_its_deployment_and_keeps_what_it_does_not_know() {
        let mut target = place("edge-1", "fetching");
        target["new-field"] = 7.into();
        let line = change(&detail(json!([target])), &target);
        assert_eq!(line["deployment"], "aaaa000000000001");
        assert_eq!(
            (&line["target"], &line["state"], &line["new-field"]),
            (&json!("edge-1"), &json!("fetching"), &json!(7))
        );
        assert!(line.get("name").is_none());
    }

    #[test]
    fn a_frame_takes_the_place_of_the_one_before() {
        let lines = |text: &[&str]| text.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(redrawn(0, &lines(&["a", "b"])), "a\u{1b}[K\nb\u{1b}[K\n");
        assert_eq!(redrawn(2, &lines(&["c", "d", "e"])), "\r\u{1b}[2Ac\u{1b}[K\nd\u{1b}[K\ne\u{1b}[K\n");
        assert_eq!(redrawn(3, &lines(&["x"])), "\r\u{1b}[3Ax\u{1b}[K\n\u{1b}[J");
        assert_eq!(redrawn(2, &[]), "\r\u{1b}[2A\u{1b}[J");
        assert_eq!(redrawn(0, &[]), "");
    }

    #[test]
    fn not_every_byte_is_a_change() {
        let at = |bytes: u64| {
            let mut target = place("a", "fetching");
            target["bytes"] = bytes.into();
            detail(json!([target])).targets.remove(0)
        };
        assert_eq!(key(&at(0), false), key(&at(400), false));
        assert_ne!(key(&at(0), false), key(&at(410), false));
        assert_ne!(key(&at(0), true), key(&at(41), true));
    }
}
