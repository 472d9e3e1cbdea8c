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

    /// One release, where it has it; served rather than staged, where it has it twice.
    pub fn find(&self, name: &PackageName, digest: &Digest) -> Option<&PackageStatus> {
        let mut found = self.packages().iter().filter(|package| is(&package.package, name, digest));
        let first = found.next();
        found.find(|package| package.state == PackageState::Serving).or(first)
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
            let same = settings.insert(package.digest, with.clone()).is_some_and(|had| had == with);
            let known = status.packages.iter_mut().find(|p| is(&p.package, &package.name, &package.digest));
            match known {
                // Opened anew with other settings, it is staged beside the one that is served.
                Some(known) if !same => known.state = PackageState::Staged,
                Some(_) => {}
                None => status.packages.push(PackageStatus {
                    package: package.clone(),
                    version,
                    release,
                    state: PackageState::Staged,
                    requests: 0,
                    failures: 0,
                }),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_settings_have_to_be_routed_again() {
        let mut host = HostView::up(HostStatus {
            pid: 1,
            version: String::new(),
            onnxruntime: String::new(),
            http: String::new(),
            ready: true,
            packages: Vec::new(),
        });
        let digest = Digest::of(b"");
        let package = PackageRef { name: "p".parse().unwrap(), digest };
        let some: BTreeMap<_, _> = [("k".to_owned(), "v".to_owned())].into();
        assert!(host.has_settings(&digest, &BTreeMap::new()), "nothing is known: believed");
        assert!(!host.has_settings(&digest, &some));
        host.loaded(&package, 1, String::new(), some.clone());
        assert!(host.has_settings(&digest, &some) && !host.serves(&package.name, &digest));

        let mut said = host.status().unwrap().clone();
        said.packages[0].state = PackageState::Serving;
        host.said(said);
        assert!(host.serves(&package.name, &digest));
        host.loaded(&package, 1, String::new(), some);
        assert!(host.serves(&package.name, &digest), "the cases ran again, nothing else");
        host.loaded(&package, 1, String::new(), BTreeMap::new());
        assert!(!host.serves(&package.name, &digest), "it waits for its route");
        host.lost(&package.name, &digest);
        assert!(host.packages().is_empty());
    }
}
