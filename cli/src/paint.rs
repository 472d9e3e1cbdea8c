//! A little colour for people at a terminal. Never where nobody watches, where `NO_COLOR` is set
//! (no-color.org), or where the terminal says that it is dumb.

/// Whether text gets colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint(bool);

/// What a text means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// All is well.
    Good,
    /// Something may need a look.
    Odd,
    /// Something went wrong.
    Bad,
    /// Of less interest.
    Faint,
}

impl Paint {
    /// For a stream: `watched` says whether it is a terminal that can do more than text.
    pub fn new(watched: bool, env: impl Fn(&str) -> Option<String>) -> Self {
        Self(watched && env("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    /// No colour.
    pub fn none() -> Self {
        Self(false)
    }

    /// `text` with the colour of its meaning.
    pub fn on(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Odd => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        if self.0 && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_needs_a_terminal_and_nobody_who_minds() {
        let env = |value: Option<&'static str>| move |_: &str| value.map(str::to_owned);
        assert_eq!(Paint::new(true, env(None)).on(Tone::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Paint::new(true, env(Some(""))).on(Tone::Good, "x"), "\u{1b}[32mx\u{1b}[0m");
        for plain in [Paint::new(false, env(None)), Paint::new(true, env(Some("1"))), Paint::none()] {
            assert_eq!(plain.on(Tone::Bad, "x"), "x");
        }
        assert_eq!(Paint::new(true, env(None)).on(Tone::Plain, "x"), "x");
    }
}
