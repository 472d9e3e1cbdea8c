//! Looking without accepting: what is held, file by file, and what the Image repository alone says of a
//! release. Nothing of it changes a state.

use jiff::Timestamp;

use super::accept::open;
use super::images;
use super::repository::RepositoryMetadata;
use super::{ReleasedTarget, Repository, TrustError, TrustState};

impl TrustState {
    /// The files that are held of a repository, by role, as they were signed: `root`, `timestamp`,
    /// `snapshot`, `targets` and delegated roles.
    pub fn files(&self, which: Repository) -> impl Iterator<Item = (&str, &[u8])> {
        let held = match which {
            Repository::Image => &self.image,
            Repository::Director => &self.director,
        };
        let top = [("timestamp", &held.timestamp), ("snapshot", &held.snapshot), ("targets", &held.targets)];
        let top = top.into_iter().filter_map(|(role, file)| Some((role, file.as_deref()?)));
        let delegated = held.delegated.iter().map(|(role, file)| (role.as_str(), file.as_slice()));
        std::iter::once(("root", held.root.as_slice())).chain(top).chain(delegated)
    }
}

/// What the Image repository says of one target, verified against the held state as for an acceptance:
/// from the newest root, above all floors, in force at the time. That it exists says nothing about
/// whether this device shall run it.
pub fn released(
    state: &TrustState,
    offered: &RepositoryMetadata,
    target: &str,
    synchronised: Option<Timestamp>,
) -> Result<ReleasedTarget, TrustError> {
    let mut image = open(Repository::Image, &state.image, offered, state.now(synchronised))?;
    image.refresh()?;
    match image.find(target)? {
        Some(found) => images::released(target, &found),
        None => Err(TrustError::NotReleased { target: super::update::shown(target) }),
    }
}
