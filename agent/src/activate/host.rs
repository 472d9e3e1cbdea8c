//! What the host has, as far as the agent knows.

use std::collections::BTreeMap;

use selvedge_control::{HostStatus, PackageRef, PackageState, PackageStatus};
use selvedge_package::{Digest, PackageName};

/// Settings of a deployment.
type Settings = BTreeMap<String, String>;

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
        settings: BTreeMap<Digest, Loads>,
    },
}

/// The settings of a release: it may be there twice, with others each time.
#[derive(Debug, Default)]
pub struct Loads {
    serving: Option<Settings>,
    staged: Option<Settings>,
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

    fn has(&self, name: &PackageName, digest: &Digest, state: PackageState) -> bool {
        self.packages().iter().any(|package| is(&package.package, name, digest) && package.state == state)
    }

    fn loads(&self, digest: &Digest) -> Option<&Loads> {
        match self {
            Self::Down => None,
            Self::Up { settings, .. } => settings.get(digest),
        }
    }

    /// One release, where it has it; served rather than staged, where it has it twice.
    pub fn find(&self, name: &PackageName, digest: &Digest) -> Option<&PackageStatus> {
        let mut found = self.packages().iter().filter(|package| is(&package.package, name, digest));
        let first = found.next();
        match first {
            Some(package) if package.state == PackageState::Serving => first,
            _ => found.find(|package| package.state == PackageState::Serving).or(first),
        }
    }

    /// Whether it serves this release.
    pub fn serves(&self, name: &PackageName, digest: &Digest) -> bool {
        self.has(name, digest, PackageState::Serving)
    }

    /// Whether it serves this release with these settings. Of an adopted one they are not known, and
    /// believed where there are none.
    pub fn runs(&self, name: &PackageName, digest: &Digest, wanted: &Settings) -> bool {
        let had = self.loads(digest).and_then(|loads| loads.serving.as_ref());
        self.serves(name, digest) && had.map_or(wanted.is_empty(), |had| had == wanted)
    }

    /// Whether it has this release open with these settings, waiting for its route.
    pub fn holds(&self, name: &PackageName, digest: &Digest, wanted: &Settings) -> bool {
        let had = self.loads(digest).and_then(|loads| loads.staged.as_ref());
        self.has(name, digest, PackageState::Staged) && had.map_or(wanted.is_empty(), |had| had == wanted)
    }

    /// The only release that it has, if it is only one.
    pub fn only_one(&self) -> Option<Digest> {
        let (first, others) = self.packages().split_first()?;
        let digest = first.package.digest;
        others.iter().all(|other| other.package.digest == digest).then_some(digest)
    }

    /// It said again what it has.
    pub fn said(&mut self, said: HostStatus) {
        if let Self::Up { status, settings } = self {
            let has = |digest: &Digest, state: PackageState| {
                said.packages.iter().any(|p| p.package.digest == *digest && p.state == state)
            };
            for (digest, loads) in settings.iter_mut() {
                if !has(digest, PackageState::Serving) {
                    loads.serving = None;
                }
                if !has(digest, PackageState::Staged) {
                    loads.staged = None;
                }
            }
            settings.retain(|_, loads| loads.serving.is_some() || loads.staged.is_some());
            *status = said;
        }
    }

    /// It has loaded a release.
    pub fn loaded(&mut self, package: &PackageRef, release: u64, version: String, with: Settings) {
        let served = self.serves(&package.name, &package.digest);
        if let Self::Up { status, settings } = self {
            let loads = settings.entry(package.digest).or_default();
            status.packages.retain(|p| {
                p.state != PackageState::Staged || !is(&p.package, &package.name, &package.digest)
            });
            if served && loads.serving.as_ref() == Some(&with) {
                // Its cases ran again, nothing else; what was open beside it is not any more.
                loads.staged = None;
                return;
            }
            loads.staged = Some(with);
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

    /// It has moved the route to a release that was staged.
    pub fn routed(&mut self, digest: &Digest) {
        if let Self::Up { settings, .. } = self
            && let Some(loads) = settings.get_mut(digest)
            && let Some(staged) = loads.staged.take()
        {
            loads.serving = Some(staged);
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
        let (name, none) = (&package.name, BTreeMap::new());
        let say = |host: &mut HostView, states: &[PackageState]| {
            let mut said = host.status().unwrap().clone();
            let one = said.packages.first().cloned();
            said.packages =
                states.iter().map(|s| PackageStatus { state: *s, ..one.clone().unwrap() }).collect();
            host.said(said);
        };
        host.loaded(&package, 1, String::new(), some.clone());
        assert!(host.holds(name, &digest, &some) && !host.holds(name, &digest, &none));
        assert!(!host.serves(name, &digest));
        host.routed(&digest);
        say(&mut host, &[PackageState::Serving]);
        assert!(host.runs(name, &digest, &some) && !host.runs(name, &digest, &none));
        host.loaded(&package, 1, String::new(), some.clone());
        assert!(host.runs(name, &digest, &some), "the cases ran again, nothing else");
        assert_eq!(host.only_one(), Some(digest));

        // Opened anew with other settings it waits beside the one that answers.
        host.loaded(&package, 1, String::new(), none.clone());
        assert!(host.runs(name, &digest, &some) && host.holds(name, &digest, &none));
        assert_eq!((host.packages().len(), host.only_one()), (2, Some(digest)));
        say(&mut host, &[PackageState::Serving, PackageState::Staged]);
        assert!(host.runs(name, &digest, &some) && host.holds(name, &digest, &none));
        host.routed(&digest);
        say(&mut host, &[PackageState::Serving]);
        assert!(host.runs(name, &digest, &none) && !host.runs(name, &digest, &some));
        host.lost(name, &digest);
        assert!(host.packages().is_empty());

        // What an earlier agent loaded: its settings are believed where there are none.
        host.loaded(&package, 1, String::new(), some.clone());
        say(&mut host, &[PackageState::Serving]);
        assert!(host.runs(name, &digest, &none) && !host.runs(name, &digest, &some));
    }
}
