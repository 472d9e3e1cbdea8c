//! Who is asked: the first that is read of a message, before it is known what its package allows.

use super::MOST_NAME;
use crate::oip::refusal::Refusal;
use crate::protobuf::Fields;

/// Most fields of a message: every list of a request at its longest.
pub(super) const MOST_FIELDS: usize = 1024;

/// Who is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its version; `None`: the routed one.
    pub version: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// Of a message whose first two fields are a name and a version, as several messages begin.
    pub fn of(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut head = Self::default();
        for (count, field) in Fields::new(message).enumerate() {
            if count == MOST_FIELDS {
                return Err(Refusal::TooMany { what: "fields in the message", limit: MOST_FIELDS });
            }
            let (number, value) = field?;
            let text = |what: &str| {
                value.text(MOST_NAME).map_err(|wrong| Refusal::Message(format!("{what}: {wrong}")))
            };
            match number {
                1 => head.model = text("the model's name")?,
                // As clients write it that do not care.
                2 => head.version = Some(text("the version")?).filter(|version| !version.is_empty()),
                _ => {}
            }
        }
        Ok(head)
    }
}
