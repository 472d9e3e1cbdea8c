//! What a terminal shows of deployments at one moment: a line a target with a bar, cut to the
//! terminal's size, what needs a look first. Pure: details and a size give lines.

use crate::output::printable;
use crate::paint::{Paint, Tone};
use crate::rollout::{Tally, doing};
use crate::rows::deployment::{Detail, Place, Stage};

/// Cells of a bar.
const BAR: usize = 20;
/// Below this width there are no bars.
const NARROW: usize = 60;
/// Longest name that is shown in full.
const NAME: usize = 32;

/// Width and height of a terminal, in cells.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Cells in a line.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

/// The lines to show, none wider than the terminal, and not more than it has.
pub fn frame(details: &[Detail], size: Size, paint: Paint) -> Vec<String> {
    // A line is kept free for the cursor, one a deployment for its head.
    let free = size.height.saturating_sub(1 + details.len());
    let each = (free / details.len().max(1)).max(1);
    let mut lines = Vec::new();
    for detail in details {
        let head = format!("{} to {}: {}", detail.row, detail.row.where_to(), Tally::of(detail));
        lines.push(cut(&printable(&head).replace('\n', " "), size.width));
        lines.extend(rows(&detail.targets, size.width, each, paint));
    }
    lines.truncate(size.height.saturating_sub(1).max(1));
    lines
}

fn rows(places: &[Place], width: usize, height: usize, paint: Paint) -> Vec<String> {
    let mut shown: Vec<&Place> = places.iter().collect();
    let cut_off = shown.len() > height;
    if cut_off {
        shown.sort_by_key(|place| rank(place));
        shown.truncate(height.saturating_sub(1));
    }
    let longest = shown.iter().map(|place| place.name.as_str().len()).max().unwrap_or(0).min(NAME);
    let mut lines: Vec<String> = shown.iter().map(|place| row(place, longest, width, paint)).collect();
    if cut_off {
        let rest = places.len() - shown.len();
        lines.push(cut(&format!("  … and {rest} more"), width));
    }
    lines
}

fn row(place: &Place, names: usize, width: usize, paint: Paint) -> String {
    let name = cut(place.name.as_str(), names);
    let mut left = format!("  {name:names$}  ");
    if width >= NARROW {
        left.push_str(&bar(place.share()));
        left.push_str("  ");
    }
    let text = printable(&doing(place)).replace('\n', " ");
    let room = width.saturating_sub(left.chars().count());
    if room == 0 {
        return cut(&left, width);
    }
    format!("{left}{}", paint.on(tone(place), &cut(&text, room)))
}

/// A bar with its share, always of one width: `[=====>    ]  52 %`.
pub fn bar(share: Option<u64>) -> String {
    let Some(share) = share else {
        return " ".repeat(BAR + 8);
    };
    let share = share.min(100);
    let full = usize::try_from(share).unwrap_or(0) * BAR / 100;
    let head = if full < BAR { ">" } else { "" };
    let rest = BAR - full - head.len();
    format!("[{}{head}{}] {share:>3} %", "=".repeat(full), " ".repeat(rest))
}

/// What needs a look comes first, what is done last.
fn rank(place: &Place) -> u8 {
    match place.stage() {
        Some(Stage::Failed) => 0,
        Some(Stage::Fetching | Stage::Staged | Stage::Trial) => 1,
        Some(Stage::Waiting | Stage::Unheard | Stage::Other) => 2,
        None => 3,
        Some(Stage::Serving) => 4,
    }
}

/// The colour of what a place is doing.
pub fn tone(place: &Place) -> Tone {
    match place.stage() {
        Some(Stage::Failed) => Tone::Bad,
        Some(Stage::Serving) => Tone::Good,
        Some(Stage::Unheard) => Tone::Odd,
        Some(Stage::Waiting) if !place.online => Tone::Odd,
        Some(_) => Tone::Plain,
        None => Tone::Faint,
    }
}

/// `text` in at most `width` cells, with `…` where something is missing.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::tests::{detail, place};
    use serde_json::{Value, json};

    fn drawn(details: &[Detail], width: usize, height: usize) -> Vec<String> {
        frame(details, Size { width, height }, Paint::none())
    }

    #[test]
    fn a_line_a_target_with_its_bar() {
        let all =
            detail(json!([place("edge-1", "fetching"), place("edge-20", "serving"), place("x", "waiting")]));
        assert_eq!(
            drawn(&[all], 80, 24),
            [
                "file-type 1.1.0 (r2) to `site = oslo`: 1 of 3 serving, 2 on the way",
                "  edge-1   [=====>              ]  25 %  fetching, 1.0 KiB of 4.0 KiB",
                "  edge-20  [====================] 100 %  serving",
                "  x                                      waiting",
            ]
        );
    }

    #[test]
    fn no_line_is_wider_or_higher_than_the_terminal() {
        let many: Vec<Value> = (0..200)
            .map(|n| {
                place(&format!("a-rather-long-name-of-a-target-{n}"), ["serving", "failed", "trial"][n % 3])
            })
            .collect();
        let all = [detail(json!(many)), detail(json!(many))];
        for (width, height) in [(0, 0), (1, 1), (10, 3), (40, 5), (59, 24), (60, 24), (80, 24), (200, 1000)] {
            let lines = drawn(&all, width, height);
            assert!(lines.len() < height.max(2), "{width}×{height}: {}", lines.len());
            for line in lines {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn what_failed_is_seen_where_not_all_fit() {
        let mut many: Vec<Value> = (0..50).map(|n| place(&format!("t{n}"), "serving")).collect();
        many.push(place("bad", "failed"));
        let lines = drawn(&[detail(json!(many))], 80, 6);
        assert!(lines[1].contains("bad") && lines[1].contains("expected pdf"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "  … and 48 more");
    }

    #[test]
    fn a_device_cannot_draw_on_the_terminal() {
        let mut evil = place("edge-1", "failed");
        evil["failure"]["what"] = "\u{1b}[2J\nhidden".into();
        let lines = drawn(&[detail(json!([evil]))], 120, 24);
        assert!(lines.iter().all(|line| !line.contains(['\u{1b}', '\n'])), "{lines:?}");
    }

    #[test]
    fn bars_have_one_width() {
        for share in [None, Some(0), Some(1), Some(99), Some(100), Some(250)] {
            assert_eq!(bar(share).len(), BAR + 8, "{share:?}");
        }
    }
}
