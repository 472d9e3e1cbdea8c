//! Deployments as the registry tells them: a row, and how far each of its targets is.

use std::collections::BTreeMap;
use std::fmt;

use selvedge_package::{DeviceId, PackageName};
use serde::Deserialize;

use super::explanation::Runs;

/// A deployment in force, or one that ended.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Deployment {
    /// What names it; empty for one that is only planned.
    #[serde(default, deserialize_with = "text_or_null")]
    pub id: String,
    /// The package.
    pub package: PackageName,
    /// Version for people.
    #[serde(default)]
    pub version: String,
    /// Release counter.
    pub release: u64,
    /// The one target that it is for; `None` where it has a selector.
    #[serde(default)]
    pub target: Option<DeviceId>,
    /// The selector that its targets match; `None` where it has a target.
    #[serde(default)]
    pub selector: Option<String>,
    /// The larger one wins.
    #[serde(default)]
    pub priority: i32,
    /// Settings.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// When it was made (RFC 3339).
    #[serde(default)]
    pub created_at: Option<String>,
    /// When it ended (RFC 3339).
    #[serde(default)]
    pub ended_at: Option<String>,
    /// Why it ended: `replaced`, `removed`, `target-removed`.
    #[serde(default)]
    pub ended: Option<String>,
}

impl Deployment {
    /// For which targets it is: a name, or the selector.
    pub fn scope(&self) -> String {
        match (&self.target, &self.selector) {
            (Some(target), _) => target.to_string(),
            (None, Some(selector)) => selector.clone(),
            (None, None) => "nothing".to_owned(),
        }
    }

    /// The same for a sentence: a selector stands in quotes.
    pub fn where_to(&self) -> String {
        match (&self.target, &self.selector) {
            (None, Some(selector)) => format!("`{selector}`"),
            _ => self.scope(),
        }
    }

    /// Whether both are for the same targets with the same weight, so that one replaces the other.
    pub fn same_place(&self, other: &Self) -> bool {
        self.package == other.package
            && self.target == other.target
            && self.selector == other.selector
            && self.priority == other.priority
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (r{})", self.package, self.version, self.release)
    }
}

/// Null as the empty text.
fn text_or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Option::<String>::deserialize(from).map(Option::unwrap_or_default)
}

/// A deployment with its targets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Detail {
    /// The row.
    #[serde(flatten)]
    pub row: Deployment,
    /// Every target that it speaks of.
    #[serde(default)]
    pub targets: Vec<Place>,
}

/// What becomes of a deployment on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is what the target shall run.
    Wins,
    /// Another deployment goes before it.
    Lost,
    /// The target cannot or must not run it.
    Blocked,
    /// The selector does not match.
    NoMatch,
    /// A word that this program does not know yet.
    #[serde(other)]
    Other,
}

/// How far a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It has not begun.
    Waiting,
    /// Its bytes arrive.
    Fetching,
    /// They are all there.
    Staged,
    /// Its acceptance cases run.
    Trial,
    /// It answers.
    Serving,
    /// It was refused, or did not hold.
    Failed,
    /// The target is not enrolled yet, or has said nothing yet.
    Unheard,
    /// A word that this program does not know yet.
    #[serde(other)]
    Other,
}

impl Stage {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Fetching => "fetching",
            Self::Staged => "staged",
            Self::Trial => "trial",
            Self::Serving => "serving",
            Self::Failed => "failed",
            Self::Unheard => "not heard",
            Self::Other => "unknown",
        }
    }
}

/// One target of a deployment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Place {
    /// Name of the target.
    pub name: DeviceId,
    /// What becomes of the deployment there.
    pub verdict: Verdict,
    /// Why, for people; empty or null for one that wins.
    #[serde(default)]
    pub why: Option<String>,
    /// How far it is; null where it does not win.
    #[serde(default)]
    pub state: Option<Stage>,
    /// Bytes that have arrived.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Bytes in all; 0 or null: not known.
    #[serde(default)]
    pub total: Option<u64>,
    /// Why it failed.
    #[serde(default)]
    pub failure: Option<Trouble>,
    /// Whether the target is connected.
    #[serde(default)]
    pub online: bool,
    /// What the target has committed of the package, whichever deployment that came from.
    #[serde(default)]
    pub running: Option<Runs>,
}

/// Why a release was not kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Trouble {
    /// Which release; 0: not said.
    #[serde(default)]
    pub release: u64,
    /// A word for programs.
    #[serde(default)]
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub what: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason.is_empty(), self.what.is_empty()) {
            (false, false) => write!(f, "{}: {}", self.reason, self.what),
            (false, true) => f.write_str(&self.reason),
            _ => f.write_str(&self.what),
        }
    }
}

impl Place {
    /// Whether the target shall run it.
    pub fn wins(&self) -> bool {
        self.verdict == Verdict::Wins
    }

    /// How far it is, where it shall run it.
    pub fn stage(&self) -> Option<Stage> {
        self.wins().then(|| self.state.unwrap_or(Stage::Waiting))
    }

    /// Whether nothing more is to be expected.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage(), None | Some(Stage::Serving | Stage::Failed))
    }

    /// Hundredths of the bytes that have arrived; `None` while that says nothing.
    pub fn share(&self) -> Option<u64> {
        match self.stage()? {
            Stage::Fetching => {
                let total = self.total.filter(|total| *total > 0)?;
                let share = u128::from(self.bytes.unwrap_or(0).min(total)) * 100 / u128::from(total);
                u64::try_from(share).ok()
            }
            Stage::Staged | Stage::Trial | Stage::Serving => Some(100),
            _ => None,
        }
    }
}

/// What the registry says of a deployment that it just made.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Made {
    /// The row.
    #[serde(flatten)]
    pub row: Deployment,
    /// What becomes of it at once.
    #[serde(default)]
    pub summary: Option<Summary>,
    /// Sentences about what may be meant otherwise.
    #[serde(default)]
    pub hints: Vec<String>,
    /// Settings that a rollback left out, since the older release does not know them.
    #[serde(default)]
    pub dropped_settings: Vec<String>,
}

/// What would become of a deployment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Planned {
    /// The row that would be made.
    pub deployment: Deployment,
    /// The id of the one that it would replace.
    #[serde(default)]
    pub replaces: Option<String>,
    /// Sentences about what may be meant otherwise.
    #[serde(default)]
    pub hints: Vec<String>,
    /// Every target in its scope.
    #[serde(default)]
    pub targets: Vec<Place>,
}

/// Targets by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// In its scope.
    pub targets: u64,
    /// Shall run it.
    pub wins: u64,
    /// Another deployment goes before.
    pub lost: u64,
    /// Cannot run it.
    pub blocked: u64,
}
