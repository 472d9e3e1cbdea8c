//! What the host has, as far as the agent knows.

use selvedge_control::{HostStatus, PackageRef, PackageState, PackageStatus, Settings, settings_digest};
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
    },
}

impl HostView {
    /// A host that has just said what it is.
    pub fn up(status: HostStatus) -> Self {
        Self::Up { status }
    }

    /// Whether it is there.
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// What it said last.
    pub fn status(&self) -> Option<&HostStatus> {
        match self {
            Self::Down => None,
            Self::Up { status } => Some(status),
        }
    }

    /// Everything it has.
    pub fn packages(&self) -> &[PackageStatus] {
        self.status().map_or(&[], |status| &status.packages)
    }

    fn has(&self, name: &PackageName, digest: &Digest, state: PackageState) -> Option<&PackageStatus> {
        self.packages().iter().find(|package| is(&package.package, name, digest) && package.state == state)
    }

    /// One release, where it has it; served rather than staged, where it has it twice.
    pub fn find(&self, name: &PackageName, digest: &Digest) -> Option<&PackageStatus> {
        let any = || self.packages().iter().find(|package| is(&package.package, name, digest));
        self.has(name, digest, PackageState::Serving).or_else(any)
    }

    /// Whether it serves this release.
    pub fn serves(&self, name: &PackageName, digest: &Digest) -> bool {
        self.has(name, digest, PackageState::Serving).is_some()
    }

    /// Whether it serves this release with these settings.
    pub fn runs(&self, name: &PackageName, digest: &Digest, wanted: &Settings) -> bool {
        self.has(name, digest, PackageState::Serving).is_some_and(|found| opened_with(found, wanted))
    }

    /// Whether it has this release open with these settings, waiting for its route.
    pub fn holds(&self, name: &PackageName, digest: &Digest, wanted: &Settings) -> bool {
        self.has(name, digest, PackageState::Staged).is_some_and(|found| opened_with(found, wanted))
    }

    /// The only release that it has, if it is only one.
    pub fn only_one(&self) -> Option<Digest> {
        let (first, others) = self.packages().split_first()?;
        let digest = first.package.digest;
        others.iter().all(|other| other.package.digest == digest).then_some(digest)
    }

    /// It said again what it has.
    pub fn said(&mut self, said: HostStatus) {
        if let Self::Up { status } = self {
            *status = said;
        }
    }

    /// It has loaded a release.
    pub fn loaded(&mut self, package: &PackageRef, release: u64, version: String, with: &Settings) {
        let runs = self.runs(&package.name, &package.digest, with);
        if let Self::Up { status } = self {
            status.packages.retain(|p| {
                p.state != PackageState::Staged || !is(&p.package, &package.name, &package.digest)
            });
            // Where it serves it so, its cases ran again, nothing else; what was open beside it is not any more.
            if !runs {
                status.packages.push(PackageStatus::staged(package.clone(), version, release, with));
            }
        }
    }

    /// It does not have a release after all.
    pub fn lost(&mut self, name: &PackageName, digest: &Digest) {
        if let Self::Up { status } = self {
            status.packages.retain(|package| !is(&package.package, name, digest));
        }
    }
}

/// A host that does not say with which settings is believed where there are none.
fn opened_with(found: &PackageStatus, wanted: &Settings) -> bool {
    found.settings.map_or(wanted.is_empty(), |had| had == settings_digest(wanted))
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
            confinement: None,
        });
        let digest = Digest::of(b"");
        let package = PackageRef { name: "p".parse().unwrap(), digest };
        let some: Settings = [("k".to_owned(), "v".to_owned())].into();
        let (name, none) = (&package.name, Settings::new());
        let say = |host: &mut HostView, states: &[(PackageState, &Settings)]| {
            let mut said = host.status().unwrap().clone();
            let one = said.packages.first().cloned().unwrap();
            let status = |(state, with): &(PackageState, &Settings)| PackageStatus {
                state: *state,
                settings: Some(settings_digest(with)),
                ..one.clone()
            };
            said.packages = states.iter().map(status).collect();
            host.said(said);
        };
        host.loaded(&package, 1, String::new(), &some);
        assert!(host.holds(name, &digest, &some) && !host.holds(name, &digest, &none));
        assert!(!host.serves(name, &digest));
        say(&mut host, &[(PackageState::Serving, &some)]);
        assert!(host.runs(name, &digest, &some) && !host.runs(name, &digest, &none));
        host.loaded(&package, 1, String::new(), &some);
        assert!(host.runs(name, &digest, &some), "the cases ran again, nothing else");
        assert_eq!((host.packages().len(), host.only_one()), (1, Some(digest)));

        // Opened anew with other settings it waits beside the one that answers.
        host.loaded(&package, 1, String::new(), &none);
        assert!(host.runs(name, &digest, &some) && host.holds(name, &digest, &none));
        assert_eq!((host.packages().len(), host.only_one()), (2, Some(digest)));
        say(&mut host, &[(PackageState::Serving, &none)]);
        assert!(host.runs(name, &digest, &none) && !host.runs(name, &digest, &some));
        assert!(host.find(name, &digest).is_some_and(|found| found.state == PackageState::Serving));
        host.lost(name, &digest);
        assert!(host.packages().is_empty());

        // A host that does not say: believed where there are none.
        host.loaded(&package, 1, String::new(), &some);
        let HostView::Up { status } = &mut host else { unreachable!() };
        status.packages[0].settings = None;
        assert!(host.holds(name, &digest, &none) && !host.holds(name, &digest, &some));
    }
}
