//! Text from strangers as one line for a log or a terminal: nothing in it can begin a line of its own,
//! colour what follows, or show itself in another order than it was sent.

/// At most `longest` characters of `text`, those that are no plain text replaced by U+FFFD.
pub fn one_line(text: &str, longest: usize) -> String {
    text.chars().take(longest).map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect()
}

/// Whether a character stands for itself: no control character, no line or paragraph separator, none of
/// the marks that turn the direction of what follows (Unicode's Bidi_Control), no byte order mark.
pub fn is_plain(c: char) -> bool {
    let turns =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !(c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_one_line_that_shows_what_it_is() {
        assert_eq!(one_line("grüße, 世界", 100), "grüße, 世界");
        assert_eq!(one_line("a\nb\r\tc\u{1b}[31m", 100), "a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}[31m");
        assert_eq!(one_line("x\u{202e}y\u{2028}z\u{feff}", 100), "x\u{fffd}y\u{fffd}z\u{fffd}");
        assert_eq!(one_line(&"ä".repeat(10), 3), "äää");
    }
}
