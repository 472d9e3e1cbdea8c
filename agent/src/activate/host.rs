//! What the host has, as far as the agent knows.

use std::collections::BTreeMap;

use selvedge_control::{HostStatus, PackageRef, PackageState, PackageStatus};
use selvedge_package::{Digest, PackageName};

/// The host.
#[derive(Debug)]
pub enum HostView {
    /// Not there.
    Down,
    /// There.
    Up {
        /// What it said last, kept up to date with what it was asked to do since.
        status: HostStatus,
        /// Settings with which this agent loaded a release. One that was loaded by an earlier agent
        /// is not here: its settings are taken for unknown.
        settings: BTreeMap<Digest, BTreeMap<String, String>>,
    },
}

impl HostView {
    /// A host that has just said what it is.
    pub fn up(status: HostStatus) -> Self {
        Self::Up { status, settings: BTreeMap::new() }
    }

    /// Whether it is there.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// What it said last.
    pub fn status(&self) -> Option<&HostStatus> {
        match self {
            Self::Down => None,
            Self::Up { status, .. } => Some(status),
        }
    }

    /// Everything it has.
    pub fn packages(&self) -> &[PackageStatus] {
        self.status().map_or(&[], |status| &status.packages)
    }

    /// One release, where it has it.
    pub fn find(&self, name: &PackageName, digest: &Digest) -> Option<&PackageStatus> {
        self.packages().iter().find(|package| is(&package.package, name, digest))
    }

    /// Whether it serves this release.
    pub fn serves(&self, name: &PackageName, digest: &Digest) -> bool {
        self.find(name, digest).is_some_and(|package| package.state == PackageState::Serving)
    }

    /// Whether a release it has runs with these settings. Of an adopted one that is not known, and
    /// believed where there are none.
    pub fn has_settings(&self, digest: &Digest, wanted: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Down => false,
            Self::Up { settings, .. } => settings.get(digest).map_or(wanted.is_empty(), |had| had == wanted),
        }
    }

    /// The only release that it has, if it is only one.
    pub fn only_one(&self) -> Option<Digest> {
        match self.packages() {
            [one] => Some(one.package.digest),
            _ => None,
        }
    }

    /// It said again what it has.
    pub fn said(&mut self, said: HostStatus) {
        if let Self::Up { status, settings } = self {
            settings.retain(|digest, _| said.packages.iter().any(|p| p.package.digest == *digest));
            *status = said;
        }
    }

    /// It has loaded a release.
    pub fn loaded(
        &mut self,
        package: &PackageRef,
        release: u64,
        version: String,
        with: BTreeMap<String, String>,
    ) {
        if let Self::Up { status, settings } = self {
            settings.insert(package.digest, with);
            if !status.packages.iter().any(|p| is(&p.package, &package.name, &package.digest)) {
                status.packages.push(PackageStatus {
                    package: package.clone(),
                    version,
                    release,
                    state: PackageState::Staged,
                    requests: 0,
                    failures: 0,
                });
            }
        }
    }

    /// It does not have a release after all.
    pub fn lost(&mut self, name: &PackageName, digest: &Digest) {
        if let Self::Up { status, settings } = self {
            status.packages.retain(|package| !is(&package.package, name, digest));
            settings.remove(digest);
        }
    }
}

fn is(package: &PackageRef, name: &PackageName, digest: &Digest) -> bool {
    package.name == *name && package.digest == *digest
}
