//! Rows of the registry's answers, as far as this program reads them. Unknown fields are let
//! through: a newer registry may say more, and `--json` shows its answer unchanged.

pub mod deployment;
pub mod explanation;

use std::collections::BTreeMap;

use selvedge_package::{DeviceId, Digest, PackageName};
use selvedge_protocol::message::{DeviceState, Failure, PackageReport};
use serde::Deserialize;

/// Every list of the registry.
#[derive(Debug, Deserialize)]
pub struct Items<T> {
    /// The rows.
    pub items: Vec<T>,
}

/// A release.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    /// Package.
    pub name: PackageName,
    /// Version for people.
    pub version: String,
    /// Release counter.
    pub release: u64,
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Bytes of all blobs together.
    #[serde(default)]
    pub size: u64,
    /// Its settings, with their defaults.
    #[serde(default)]
    pub settings: serde_json::Value,
    /// When it was released (RFC 3339).
    #[serde(default)]
    pub released_at: Option<String>,
}

/// A target.
#[derive(Debug, Clone, Deserialize)]
pub struct Target {
    /// Its name, which is its device id.
    pub name: DeviceId,
    /// `local` or `device`.
    pub kind: String,
    /// Labels given by people.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Facts reported by the device.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
    /// What it shall run.
    #[serde(default)]
    pub desired: Vec<Desired>,
    /// Sequence of what it shall run; 0: nothing yet, or a registry that does not say.
    #[serde(default)]
    pub desired_sequence: u64,
    /// What it says that it runs.
    #[serde(default)]
    pub reported: Option<DeviceState>,
    /// Newest events.
    #[serde(default)]
    pub events: Vec<Event>,
    /// When it was last heard (RFC 3339).
    #[serde(default)]
    pub last_heard: Option<String>,
    /// Whether it was heard within its lease.
    #[serde(default)]
    pub online: bool,
    /// A word about its health.
    #[serde(default)]
    pub health: Option<String>,
    /// Whether its key is registered.
    #[serde(default)]
    pub enrolled: bool,
    /// When it was revoked (RFC 3339).
    #[serde(default)]
    pub revoked_at: Option<String>,
    /// The newest certificate of its own.
    #[serde(default)]
    pub certificate: Option<Certificate>,
}

/// A device's certificate.
#[derive(Debug, Clone, Deserialize)]
pub struct Certificate {
    /// When it ends (RFC 3339).
    #[serde(default)]
    pub expires_at: Option<String>,
}

/// One assignment.
#[derive(Debug, Clone, Deserialize)]
pub struct Desired {
    /// Package.
    pub package: PackageName,
    /// Version for people.
    #[serde(default)]
    pub version: String,
    /// Release counter.
    pub release: u64,
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Settings.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// Something that a device reported.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// When (RFC 3339 or what the registry says).
    #[serde(default)]
    pub at: Option<serde_json::Value>,
    /// When the registry heard of it (RFC 3339).
    #[serde(default)]
    pub received_at: Option<String>,
    /// A word for programs.
    #[serde(default)]
    pub kind: String,
    /// The package, where it is about one.
    #[serde(default)]
    pub package: Option<String>,
    /// For people.
    #[serde(default)]
    pub what: String,
}

impl Target {
    /// What the device says about `package`.
    pub fn report(&self, package: &PackageName) -> Option<&PackageReport> {
        self.reported.as_ref()?.packages.iter().find(|report| report.name == *package)
    }

    /// The newest failure of `package` at `release`.
    pub fn failure(&self, package: &PackageName, release: u64) -> Option<&Failure> {
        self.report(package)?.failure.as_ref().filter(|failure| failure.release == release)
    }

    /// Sequence of the desired state that the device accepted; 0: none.
    pub fn accepted(&self) -> u64 {
        self.reported.as_ref().map_or(0, |state| state.desired)
    }

    /// One line about `package` as it is: `1.0.0 r1`, `fetching 40 %`, `failed: …`.
    pub fn summary(&self, package: &PackageName) -> String {
        let Some(report) = self.report(package) else {
            return "not reported yet".to_owned();
        };
        let mut parts = Vec::new();
        if let Some(committed) = &report.committed {
            let serving = if report.serving { "serving" } else { "not serving" };
            parts.push(format!("{} r{} {serving}", committed.version, committed.release));
        }
        if let Some(pending) = &report.pending {
            let share = if pending.stage == "fetching" && pending.total > 0 {
                format!(" {} %", pending.bytes.saturating_mul(100) / pending.total)
            } else {
                String::new()
            };
            parts.push(format!("r{} {}{share}", pending.release.release, pending.stage));
        }
        if let Some(failure) = &report.failure {
            parts.push(format!("r{} failed: {}", failure.release, failure.reason));
        }
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }
}
