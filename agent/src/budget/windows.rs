//! Hours of the day in which blobs may be fetched, in UTC: `"22:00-05:30"`.

use std::fmt;
use std::str::FromStr;

/// Most windows.
const MOST: usize = 16;
const DAY: u32 = 24 * 60;

/// A part of every day. It may pass midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    /// First minute of the day in it.
    from: u32,
    /// First minute after it; less than `from` where it passes midnight.
    until: u32,
}

/// Why windows cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// It is not a span of time.
    #[error("a window is a span of the day in UTC, as \"22:00-05:30\"")]
    Form,
    /// It begins when it ends.
    #[error("a window that begins when it ends is none; without windows there is no limit")]
    Empty,
    /// There are too many.
    #[error("there are more than {MOST} windows")]
    TooMany,
}

/// When blobs may be fetched. None at all: always.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows(Vec<Window>);

impl Windows {
    /// From texts as people write them.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, WindowError> {
        if texts.len() > MOST {
            return Err(WindowError::TooMany);
        }
        texts.iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether minute `minute` of a day is in one.
    pub fn has(&self, minute: u32) -> bool {
        self.0.is_empty() || self.0.iter().any(|window| window.has(minute % DAY))
    }

    /// Minutes from `minute` until that changes; `None` where it never does.
    pub fn changes_in(&self, minute: u32) -> Option<u32> {
        let now = self.has(minute);
        (1..=DAY).find(|ahead| self.has(minute + ahead) != now)
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Window { from, until }) in self.0.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, until / 60, until % 60)?;
        }
        Ok(())
    }
}

impl Window {
    fn has(self, minute: u32) -> bool {
        match self.from < self.until {
            true => (self.from..self.until).contains(&minute),
            false => minute >= self.from || minute < self.until,
        }
    }
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let (from, until) = text.split_once('-').ok_or(WindowError::Form)?;
        let (from, until) = (minute(from)?, minute(until)?);
        if from == until || from == DAY {
            return Err(if from == until { WindowError::Empty } else { WindowError::Form });
        }
        Ok(Self { from, until })
    }
}

/// `24:00` is the end of a day.
fn minute(text: &str) -> Result<u32, WindowError> {
    let (hours, minutes) = text.trim().split_once(':').ok_or(WindowError::Form)?;
    let number = |text: &str| match text.len() {
        2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    let minute = number(hours).zip(number(minutes)).filter(|(_, minutes): &(u32, u32)| *minutes < 60);
    let minute = minute.map(|(hours, minutes)| hours * 60 + minutes);
    minute.filter(|minute| *minute <= DAY).ok_or(WindowError::Form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_pass_midnight() {
        let windows = Windows::parse(&["22:00-05:30", "12:00-12:01"]).unwrap();
        for (minute, open) in [(0, true), (329, true), (330, false), (720, true), (721, false), (1320, true)]
        {
            assert_eq!(windows.has(minute), open, "{minute}");
        }
        assert_eq!(windows.changes_in(0), Some(330));
        assert_eq!(windows.changes_in(330), Some(390));
        assert_eq!(windows.changes_in(1439), Some(331));
        assert_eq!(windows.to_string(), "22:00-05:30, 12:00-12:01");
    }

    #[test]
    fn no_window_and_a_whole_day_never_change() {
        assert_eq!(Windows::default().changes_in(7), None);
        assert!(Windows::default().has(7));
        assert_eq!(Windows::parse(&["00:00-24:00"]).unwrap().changes_in(7), None);
    }

    #[test]
    fn anything_else_is_refused() {
        let bad =
            ["", "1:00-2:00", "01:00", "25:00-01:00", "01:60-02:00", "24:00-01:00", "+1:00-02:00", "a-b"];
        for text in bad {
            assert_eq!(Windows::parse(&[text]), Err(WindowError::Form), "{text}");
        }
        assert_eq!(Windows::parse(&["01:00-01:00"]), Err(WindowError::Empty));
        assert_eq!(Windows::parse(&vec!["01:00-02:00"; 17]), Err(WindowError::TooMany));
    }
}
