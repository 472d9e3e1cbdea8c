//! How long what the registry signs by itself is good for: `serve --expiry ROLE=TIME`.
//!
//! Roots, targets and bins are signed by people, who choose their lifetimes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use selvedge_signing::lifetimes;

/// Shortest lifetime: devices must have time to hear of the next one.
const SHORTEST: u64 = 60;
/// Longest: what is signed for longer cannot be taken back.
const LONGEST: u64 = 10 * 365 * DAY;
const DAY: u64 = 24 * 3600;
const ROLES: [&str; 3] = ["image-snapshot", "image-timestamp", "director"];

/// Lifetimes of the roles that are signed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Snapshot of the Image repository.
    pub image_snapshot: SignedDuration,
    /// Timestamp of the Image repository.
    pub image_timestamp: SignedDuration,
    /// Targets, snapshot and timestamp of the Director.
    pub director: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            image_snapshot: lifetimes::IMAGE_SNAPSHOT,
            image_timestamp: lifetimes::IMAGE_TIMESTAMP,
            director: lifetimes::DIRECTOR,
        }
    }
}

impl Lifetimes {
    /// How often to look for what is to be signed again: often enough for the shortest lifetime, and at
    /// least every quarter of an hour.
    pub fn look(&self) -> Duration {
        let shortest = self.image_snapshot.min(self.image_timestamp).min(self.director);
        let eighth = u64::try_from(shortest.as_secs() / 8).unwrap_or(0);
        Duration::from_secs(eighth.clamp(1, 900))
    }
}

/// Not a list of lifetimes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no lifetime: {1}")]
pub struct LifetimesError(String, String);

impl FromStr for Lifetimes {
    type Err = LifetimesError;

    fn from_str(text: &str) -> Result<Self, LifetimesError> {
        let mut lifetimes = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |why: String| LifetimesError(part.to_owned(), why);
            let (role, time) = part
                .split_once('=')
                .ok_or_else(|| wrong("write ROLE=TIME, such as director=7d".to_owned()))?;
            let time = parse(time).map_err(|why| wrong(why.to_owned()))?;
            match role {
                "image-snapshot" => lifetimes.image_snapshot = time,
                "image-timestamp" => lifetimes.image_timestamp = time,
                "director" => lifetimes.director = time,
                "root" | "image-root" | "director-root" | "image-targets" => {
                    let why = "people sign this role and choose when it expires: see `selvedge trust --help`";
                    return Err(wrong(why.to_owned()));
                }
                _ => return Err(wrong(format!("the roles are {}", ROLES.join(", ")))),
            }
        }
        Ok(lifetimes)
    }
}

fn parse(text: &str) -> Result<SignedDuration, &'static str> {
    let wrong = "a time is a number with d, h, m or s, from 60s to 3650d";
    let unit = text.chars().last().ok_or(wrong)?;
    let scale = match unit {
        'd' => DAY,
        'h' => 3600,
        'm' => 60,
        's' => 1,
        _ => return Err(wrong),
    };
    let number = &text[..text.len() - 1];
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong);
    }
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or(wrong)?;
    match i64::try_from(seconds) {
        Ok(whole) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(SignedDuration::from_secs(whole)),
        _ => Err(wrong),
    }
}

impl fmt::Display for Lifetimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [snapshot, timestamp, director] =
            [self.image_snapshot, self.image_timestamp, self.director].map(|time| time.as_secs());
        write!(f, "image-snapshot={snapshot}s,image-timestamp={timestamp}s,director={director}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_and_bounded() {
        let read = |text: &str| text.parse::<Lifetimes>();
        assert_eq!(read("").unwrap(), Lifetimes::default());
        let set = read("director=2h, image-timestamp=90s").unwrap();
        assert_eq!(set.director, SignedDuration::from_hours(2));
        assert_eq!(set.image_timestamp.as_secs(), 90);
        assert_eq!(set.image_snapshot, lifetimes::IMAGE_SNAPSHOT);
        assert_eq!(set.look(), Duration::from_secs(11));
        assert_eq!(Lifetimes::default().look(), Duration::from_secs(900));
        assert_eq!(read(&set.to_string()).unwrap(), set);
        for bad in [
            "director",
            "director=",
            "director=7",
            "director=d",
            "director=-1d",
            "director=1.5d",
            "director=59s",
            "director=3651d",
            "director=99999999999999999999d",
            "image-targets=1d",
            "root=1d",
            "what=1d",
            "director=7ü",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
