//! Bodies of messages by which somebody far away asks a device: commands and inference.
//!
//! Both carry an id chosen by the asker; the same id again is the same question, and is answered
//! again without being done again. Both carry how long the answer is worth anything, counted by the
//! device from the arrival: its clock may be wrong. The broker counts too, by MQTT's message expiry.
//! They change nothing on a device: what it runs comes by signed desired state alone.

use serde::{Deserialize, Serialize};

/// Longest id, in bytes; letters, digits and `-`.
pub const LONGEST_ID: usize = 64;
/// Longest time that an asker may set, in milliseconds.
pub const LONGEST_WAIT_MS: u32 = 600_000;

/// Whether `id` can name a question: 1 to [`LONGEST_ID`] ASCII letters, digits and `-`.
pub fn is_id(id: &str) -> bool {
    (1..=LONGEST_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// `dn/cmd`: something to do at once, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Names the command; [`is_id`].
    pub id: String,
    /// Milliseconds from its arrival after which it is dropped; at most [`LONGEST_WAIT_MS`].
    pub within_ms: u32,
    /// The nonce of the device's newest birth: a question that was recorded is worth nothing after the
    /// agent's next start.
    #[serde(default, with = "serde_bytes")]
    pub nonce: Vec<u8>,
    /// What to do.
    pub ask: Ask,
}

/// What a command asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// The newest lines of the agent's and the host's logs.
    Logs {
        /// Only lines with a number above this one; `None`: the newest there are.
        after: Option<u64>,
        /// At most so many, the newest ones; the device may give fewer.
        lines: u32,
    },
}

/// `up/res`: what came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Of which.
    pub id: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Log lines, oldest first.
    Logs(LogLines),
    /// It was not done.
    Refused {
        /// A word for programs.
        reason: String,
        /// For people.
        what: String,
    },
}

/// Log lines of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// Number of the newest line that the device has: the next `after`. Numbers start anew with the
    /// agent, which [`LogLines::epoch`] tells.
    pub last: u64,
    /// The agent's epoch.
    pub epoch: u64,
    /// The lines, oldest first.
    pub lines: Vec<LogLine>,
}

/// A log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Grows with every line of the agent's life.
    pub number: u64,
    /// Milliseconds since 1970 by the device's clock.
    pub at_ms: i64,
    /// `agent` or `host`.
    pub source: String,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// The text, without line breaks, cut to 1000 bytes.
    pub text: String,
}

/// `dn/infer`: an inference request for the device's own endpoint, as HTTP would carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InferRequest {
    /// Names the request; [`is_id`].
    pub id: String,
    /// Milliseconds from its arrival after which the answer is worth nothing; at most
    /// [`LONGEST_WAIT_MS`].
    pub within_ms: u32,
    /// The nonce of the device's newest birth; see [`Command::nonce`].
    #[serde(default, with = "serde_bytes")]
    pub nonce: Vec<u8>,
    /// The model: a package name.
    pub model: String,
    /// One version of it; `None`: the one that is routed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Which of the model's endpoints.
    pub endpoint: Endpoint,
    /// Value of `Content-Type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Value of `Inference-Header-Content-Length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_length: Option<u64>,
    /// The body.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// An endpoint of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endpoint {
    /// `POST …/infer`: the Open Inference Protocol.
    Infer,
    /// `POST …/raw`: the body is the one BYTES input.
    Raw,
    /// `GET …` : the model's metadata; the body is empty.
    Metadata,
}

/// `up/infer`: the answer, as HTTP would carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InferAnswer {
    /// To which request.
    pub id: String,
    /// HTTP status; 504 when the time was up, 413 when the answer does not fit one message, 503 when
    /// the device answers too much already or its host is down.
    pub status: u16,
    /// Value of `Content-Type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Value of `Inference-Header-Content-Length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_length: Option<u64>,
    /// The body; `{"error": …}` when the status is none of success.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_plain() {
        for good in ["a", "0-9-Z", &"a".repeat(LONGEST_ID)] {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", "a b", "ä", "a/b", "a\n", &"a".repeat(LONGEST_ID + 1)] {
            assert!(!is_id(bad), "{bad:?}");
        }
    }
}
