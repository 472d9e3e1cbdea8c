//! What becomes of a deployment on a target, and the sentence that says why.

use super::{Offer, Subject};
use crate::selector::{Term, shown};

/// What becomes of a deployment on a target.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict<'a> {
    /// This is what runs.
    Wins,
    /// Another one has the better claim.
    Lost(&'a Offer, By),
    /// The target cannot run it.
    Blocked(Block<'a>),
    /// Its selector does not match, because of this term.
    NoMatch(&'a Term),
}

/// By what a deployment is beaten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The other one's is larger.
    Priority,
    /// The other one is newer, at the same priority.
    Age,
}

/// Why a target cannot run a deployment.
#[derive(Debug, Clone, PartialEq)]
pub enum Block<'a> {
    /// The package is for others.
    Architecture {
        /// Of the target.
        has: &'a str,
    },
    /// The package requires a label.
    Label {
        /// Its key.
        key: &'a str,
        /// The value that it must have.
        value: &'a str,
    },
    /// The package requires more memory, in MiB.
    Ram {
        /// Of the target.
        has: u64,
        /// Of the package.
        wants: u32,
    },
    /// The release is below this one.
    Floor(u64),
    /// The selector asks for more free disk.
    Room(&'a Term),
    /// The target has as many packages, or settings, as it may.
    Full,
}

impl Verdict<'_> {
    /// The word for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Wins => "wins",
            Self::Lost(..) => "lost",
            Self::Blocked(_) => "blocked",
            Self::NoMatch(_) => "no-match",
        }
    }

    /// Whether the deployment is for the target at all.
    pub fn in_scope(&self) -> bool {
        matches!(self, Self::Wins | Self::Lost(..) | Self::Blocked(_))
    }

    /// Why, in a sentence; `offer` is what the verdict is about.
    pub fn why(&self, offer: &Offer, subject: &Subject<'_>) -> String {
        match self {
            Self::Wins => match &offer.scope {
                super::Scope::Target(_) => {
                    format!("it is for this target, and nothing beats its priority {}", offer.priority)
                }
                super::Scope::Selector(_) => {
                    format!("its selector matches, and nothing beats its priority {}", offer.priority)
                }
            },
            Self::Lost(winner, By::Priority) => format!(
                "deployment {} ({}) has the larger priority {}",
                winner.id, winner.scope, winner.priority
            ),
            Self::Lost(winner, By::Age) => {
                format!("deployment {} ({}) is newer, at the same priority", winner.id, winner.scope)
            }
            Self::Blocked(block) => block.why(offer, subject),
            Self::NoMatch(term) => term.why_not(&subject.attributes),
        }
    }
}

impl Block<'_> {
    fn why(&self, offer: &Offer, subject: &Subject<'_>) -> String {
        match self {
            Self::Architecture { has } => {
                let wanted = offer.requires.architectures.join(", ");
                format!("the target is {}, and the package runs on {wanted}", shown(has))
            }
            Self::Label { key, value } => {
                format!("the package requires the label {key}={value}, which the target lacks")
            }
            Self::Ram { has, wants } => {
                format!("the package requires {wants} MiB of memory, and the target has {has}")
            }
            Self::Floor(floor) => format!(
                "release {} is below {floor}, under which the target never goes again",
                offer.assigned.release
            ),
            Self::Room(term) => term.why_not(&subject.attributes),
            Self::Full => "the target has as many packages, or as many settings, as it may".to_owned(),
        }
    }
}
