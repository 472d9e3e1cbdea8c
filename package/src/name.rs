//! Names that come from outside and end up in paths, topics and tables.
//!
//! Every name is checked once, where it is read; what holds one of these types needs no check.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name that breaks the rule of its kind. The text says which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a {kind}: {rule}")]
pub struct NameError {
    /// The offending text, cut to 80 characters.
    pub name: String,
    /// What it was meant to be.
    pub kind: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameError {
                        name: text.chars().take(80).collect(),
                        kind: $kind,
                        rule: $rule,
                    })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

checked_name!(
    /// The name of a package, and of a model inside one: what a client puts into `/v2/models/<name>`.
    PackageName,
    "package or model name",
    "1 to 63 of a-z, 0-9, `-` and `_`, starting with a letter or digit",
    |text| plain(text, 63)
);

checked_name!(
    /// A device's id: its MQTT client id, its topic segment and the name that the Director signs for.
    DeviceId,
    "device id",
    "1 to 63 of a-z, 0-9, `-` and `_`, starting with a letter or digit",
    |text| plain(text, 63)
);

checked_name!(
    /// A file inside a package: a relative path of plain names, parted by `/`.
    FilePath,
    "path of a file in a package",
    "a relative path of at most 8 parts and 200 bytes, each part of A-Z, a-z, 0-9, `.`, `_`, `-` and not starting with a dot",
    |text| {
        text.len() <= 200
            && text.split('/').count() <= 8
            && text.split('/').all(|part| {
                !part.is_empty()
                    && !part.starts_with('.')
                    && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            })
    }
);

fn plain(text: &str, longest: usize) -> bool {
    let bytes = text.as_bytes();
    (1..=longest).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_escape_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            ".hidden",
            "a/.b",
            "a\\b",
            "c:x",
            "a\0b",
            "a b",
            "ä",
            "a/b/c/d/e/f/g/h/i",
        ] {
            assert!(bad.parse::<FilePath>().is_err(), "{bad:?}");
        }
        for good in ["model.onnx", "cases/empty.json", "a/b/c/d/e/f/g/h", "Model-1_2.onnx.data"] {
            assert!(good.parse::<FilePath>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn names_that_would_break_a_topic_or_a_route_are_refused() {
        for bad in ["", "-a", "_a", "A", "a/b", "a+b", "#", "a.b", &"x".repeat(64)] {
            assert!(bad.parse::<PackageName>().is_err(), "{bad:?}");
            assert!(bad.parse::<DeviceId>().is_err(), "{bad:?}");
        }
        assert!("file-type".parse::<PackageName>().is_ok());
        assert!("0pump_7".parse::<DeviceId>().is_ok());
    }
}
