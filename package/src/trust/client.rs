//! A client of any TUF repository, over the code by which a device accepts an offer.
//!
//! It differs in one thing: what it verified it keeps, even if the next file is bad. A device takes all
//! or nothing, since a Director's offer may turn out to be for another device.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

use super::repository::Held;
use super::source::Source;
use super::update::{Holding, Update};
use super::{Repository, TrustError};

/// What a client holds of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Client(Held);

/// What a repository says of one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Bytes.
    pub length: u64,
    /// Hexadecimal digests by algorithm, such as `sha256`.
    pub hashes: BTreeMap<String, String>,
}

impl Found {
    /// Whether `bytes` are the target: its length, and every hash of a kind that is known (sha256,
    /// sha512), of which there must be one.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mut known = self.hashes.iter().filter_map(|(algorithm, hash)| {
            let found = match algorithm.as_str() {
                "sha256" => hex::encode(Sha256::digest(bytes)),
                "sha512" => hex::encode(Sha512::digest(bytes)),
                _ => return None,
            };
            Some(found.eq_ignore_ascii_case(hash))
        });
        self.length == bytes.len() as u64 && known.next() == Some(true) && known.all(|same| same)
    }
}

impl Client {
    /// A client that was given a root by somebody it trusts.
    pub fn from_root(root: &[u8]) -> Result<Self, TrustError> {
        Held::from_root(Repository::Image, root).map(Self)
    }

    /// Begins an update at the time `now`.
    pub fn refresh<S: Source>(&self, source: S, now: Timestamp) -> Result<Refresh<S>, TrustError> {
        Update::new(Repository::Image, &self.0, Holding::Partly, source, now).map(Refresh)
    }

    /// The metadata that is trusted, by role.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let Held { root, timestamp, snapshot, targets, delegated } = &self.0;
        let top = [("timestamp", timestamp), ("snapshot", snapshot), ("targets", targets)];
        let top = top.into_iter().filter_map(|(role, file)| Some((role, file.as_deref()?)));
        let delegated = delegated.iter().map(|(role, file)| (role.as_str(), file.as_slice()));
        std::iter::once(("root", root.as_slice())).chain(top).chain(delegated)
    }
}

/// One update of a [`Client`].
pub struct Refresh<S>(Update<S>);

impl<S: Source> Refresh<S> {
    /// Root, timestamp, snapshot and targets (TUF 5.3 to 5.6).
    pub fn top_level(&mut self) -> Result<(), TrustError> {
        self.0.refresh()
    }

    /// Looks for a target, through delegations; after [`Refresh::top_level`].
    pub fn find(&mut self, target: &str) -> Result<Option<Found>, TrustError> {
        let found = self.0.find(target)?;
        Ok(found.map(|target| Found { length: target.length, hashes: target.hashes }))
    }

    /// Whether files are named by what is in them.
    pub fn consistent_snapshot(&self) -> bool {
        self.0.root().consistent_snapshot
    }

    /// What was verified so far: keep it, also after an error.
    pub fn verified(&self) -> Client {
        Client(self.0.held().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_its_length_and_all_known_hashes() {
        let found = |length, hashes: &[(&str, String)]| Found {
            length,
            hashes: hashes.iter().map(|(name, hash)| ((*name).to_owned(), hash.clone())).collect(),
        };
        let good = hex::encode(Sha256::digest(b"target"));
        let long = hex::encode(Sha512::digest(b"target"));
        assert!(found(6, &[("sha256", good.clone())]).is(b"target"));
        assert!(found(6, &[("sha512", long), ("md5", "0".into())]).is(b"target"));
        assert!(!found(5, &[("sha256", good.clone())]).is(b"target"));
        assert!(!found(6, &[("sha256", good.clone())]).is(b"Target"));
        assert!(!found(6, &[("sha256", good), ("sha512", "00".into())]).is(b"target"));
        assert!(!found(6, &[("md5", "0".into())]).is(b"target"));
    }
}
