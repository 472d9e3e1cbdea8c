//! Why a target runs what it runs, as the registry explains it.

use selvedge_package::{DeviceId, PackageName};
use serde::Deserialize;

use super::deployment::{Trouble, Verdict};

/// The whole explanation of a target.
#[derive(Debug, Clone, Deserialize)]
pub struct Explanation {
    /// The target.
    pub target: DeviceId,
    /// Whether it is heard.
    #[serde(default)]
    pub online: bool,
    /// A line for each package that it runs, shall run, or could have run.
    #[serde(default)]
    pub packages: Vec<Explained>,
}

/// One package of a target.
#[derive(Debug, Clone, Deserialize)]
pub struct Explained {
    /// The package.
    pub package: PackageName,
    /// What it runs, as it last said.
    #[serde(default)]
    pub runs: Option<Runs>,
    /// What it shall run.
    #[serde(default)]
    pub assigned: Option<Assigned>,
    /// It keeps what it was last directed to run, although no deployment says so any more.
    #[serde(default)]
    pub kept: bool,
    /// For people.
    #[serde(default)]
    pub why: String,
    /// What is on its way.
    #[serde(default)]
    pub pending: Option<Coming>,
    /// What it did not keep.
    #[serde(default)]
    pub failure: Option<Trouble>,
    /// Every deployment of the package that was weighed.
    #[serde(default)]
    pub deployments: Vec<Weighed>,
}

/// A release that a target runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Runs {
    /// Release counter.
    pub release: u64,
    /// Version for people.
    #[serde(default)]
    pub version: String,
    /// Whether it answers.
    #[serde(default)]
    pub serving: bool,
}

/// A release that a target shall run.
#[derive(Debug, Clone, Deserialize)]
pub struct Assigned {
    /// By which deployment; null where it is kept.
    #[serde(default)]
    pub deployment: Option<String>,
    /// Release counter.
    pub release: u64,
    /// Version for people.
    #[serde(default)]
    pub version: String,
}

/// A release on its way to a target.
#[derive(Debug, Clone, Deserialize)]
pub struct Coming {
    /// Release counter.
    pub release: u64,
    /// `fetching`, `staged` or `trial`.
    #[serde(default)]
    pub stage: String,
    /// Bytes that have arrived.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes in all; 0: not known.
    #[serde(default)]
    pub total: u64,
}

/// A deployment, and what became of it.
#[derive(Debug, Clone, Deserialize)]
pub struct Weighed {
    /// What names it.
    pub id: String,
    /// For which targets: a name or a selector.
    #[serde(default)]
    pub scope: String,
    /// The larger one wins.
    #[serde(default)]
    pub priority: i32,
    /// Release counter.
    pub release: u64,
    /// Version for people.
    #[serde(default)]
    pub version: String,
    /// When it was made (RFC 3339).
    #[serde(default)]
    pub created_at: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, for people.
    #[serde(default)]
    pub why: Option<String>,
}

impl Verdict {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Wins => "wins",
            Self::Lost => "lost",
            Self::Blocked => "blocked",
            Self::NoMatch => "no match",
            Self::Other => "unknown",
        }
    }
}
