//! The only place where topic strings are made and read.
//!
//! A topic is `sv/v1/d/<device>/<up|dn>/<word>`. What is not of that form, or names a device that
//! could not exist, is an error: a broker may deliver anything.

use std::fmt;
use std::str::FromStr;

use selvedge_package::{DeviceId, NameError};

/// What every topic of this version begins with.
pub const PREFIX: &str = "sv/v1";

/// How a message is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qos {
    /// QoS 0: sent once, lost if anything fails; never kept while there is no connection.
    AtMostOnce,
    /// QoS 1: sent until acknowledged, so it may arrive twice.
    AtLeastOnce,
}

/// Who publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device.
    Up,
    /// The registry.
    Down,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $direction:ident $word:literal $qos:ident;)*) => {
        /// What a topic is for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// Every kind there is.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Who publishes it.
            pub const fn direction(self) -> Direction {
                match self { $(Kind::$kind => Direction::$direction,)* }
            }

            /// How it is delivered.
            pub const fn qos(self) -> Qos {
                match self { $(Kind::$kind => Qos::$qos,)* }
            }

            const fn word(self) -> &'static str {
                match self { $(Kind::$kind => $word,)* }
            }
        }
    };
}

kinds! {
    /// The device is connected.
    Birth = Up "birth" AtLeastOnce;
    /// The broker lost the device: a hint.
    Will = Up "will" AtLeastOnce;
    /// The device is still here.
    Heartbeat = Up "hb" AtMostOnce;
    /// Desired state.
    Want = Down "want" AtLeastOnce;
    /// Outbox rows.
    State = Up "state" AtLeastOnce;
    /// Their signed acknowledgement, row by row.
    Ack = Down "ack" AtMostOnce;
    /// Blocks that the device lacks.
    Need = Up "need" AtMostOnce;
    /// A block, or why none comes.
    Block = Down "blk" AtMostOnce;
    /// A command.
    Command = Down "cmd" AtLeastOnce;
    /// Its result.
    CommandResult = Up "res" AtLeastOnce;
    /// A remote inference request.
    InferRequest = Down "infer" AtLeastOnce;
    /// Its answer.
    InferAnswer = Up "infer" AtLeastOnce;
    /// Batched measurements.
    Telemetry = Up "tel" AtMostOnce;
    /// Batched log lines.
    Log = Up "log" AtMostOnce;
    /// The device's key, under the enrolment credential.
    Enrol = Up "enrol" AtLeastOnce;
    /// The answer to it.
    Enrolled = Down "enrol" AtLeastOnce;
}

/// A topic of one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topic {
    /// Whose.
    pub device: DeviceId,
    /// What for.
    pub kind: Kind,
}

/// A string that is no topic of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// It does not have the form of our topics, or no kind has that word.
    #[error("`{0}` is not a topic of this protocol")]
    Form(String),
    /// The device's part could not be a device.
    #[error("the topic names an impossible device")]
    Device(#[source] NameError),
}

impl Topic {
    /// The topic of `device` for `kind`.
    pub fn new(device: DeviceId, kind: Kind) -> Self {
        Self { device, kind }
    }

    /// Reads a topic string.
    pub fn parse(text: &str) -> Result<Self, TopicError> {
        let form = || TopicError::Form(text.chars().take(120).collect());
        if text.len() > 256 {
            return Err(form());
        }
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix("/d/")).ok_or_else(form)?;
        let mut parts = rest.split('/');
        let (Some(device), Some(direction), Some(word), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(form());
        };
        let kind = Kind::ALL
            .iter()
            .copied()
            .find(|kind| kind.direction().word() == direction && kind.word() == word)
            .ok_or_else(form)?;
        let device = device.parse().map_err(TopicError::Device)?;
        Ok(Self { device, kind })
    }

    /// The filter by which a device hears everything that is meant for it.
    pub fn subscription_device(device: &DeviceId) -> String {
        format!("{PREFIX}/d/{device}/dn/#")
    }

    /// The filter by which a registry hears every device.
    pub fn subscription_registry() -> String {
        format!("{PREFIX}/d/+/up/#")
    }
}

impl Direction {
    const fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "dn",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, kind } = self;
        write!(f, "{PREFIX}/d/{device}/{}/{}", kind.direction().word(), kind.word())
    }
}

impl FromStr for Topic {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back() {
        let device: DeviceId = "edge-1".parse().unwrap();
        for &kind in Kind::ALL {
            let topic = Topic::new(device.clone(), kind);
            assert_eq!(Topic::parse(&topic.to_string()), Ok(topic));
        }
        assert_eq!(Topic::new(device, Kind::Block).to_string(), "sv/v1/d/edge-1/dn/blk");
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "",
            "sv/v1",
            "sv/v1/d/edge-1/up",
            "sv/v1/d/edge-1/up/want",
            "sv/v1/d/edge-1/dn/birth",
            "sv/v1/d/edge-1/up/birth/x",
            "sv/v2/d/edge-1/up/birth",
            "sv/v1/d//up/birth",
            "sv/v1/d/+/up/birth",
            "sv/v1/d/../up/birth",
            "x/sv/v1/d/edge-1/up/birth",
            &format!("sv/v1/d/{}/up/birth", "a".repeat(64)),
            &"a/".repeat(40_000),
        ] {
            assert!(Topic::parse(bad).is_err(), "{bad:.60}");
        }
    }
}
