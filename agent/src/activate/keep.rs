//! What the store keeps: what a package needs, and what is there for a later assignment.

use std::collections::BTreeSet;

use selvedge_deployment::{Event, stored};
use selvedge_package::Digest;

use super::Activation;
use crate::store::StoreError;

impl Activation {
    /// Removes what no package needs any more, when nothing is on its way into the store. As long as
    /// the manifests of a package are not there, nobody knows what it needs, and nothing is removed.
    pub(super) fn collect(&mut self) -> Result<(), StoreError> {
        // A device that lost its database keeps its blobs until it knows again which it needs.
        if self.state.desired == 0 {
            return Ok(());
        }
        let mut keep = stored(&self.state);
        keep.extend(self.parts.store.prefetched()?);
        let busy = !self.opening.is_empty() || !self.storing.is_empty() || self.operation.is_some();
        if busy || self.kept.as_ref() == Some(&keep) {
            return Ok(());
        }
        let needed = self.state.slots.iter().flat_map(|(name, slot)| {
            let committed = slot.committed.as_ref().map(|committed| committed.release.digest);
            let stage = slot.stage.release().map(|release| release.digest);
            committed.into_iter().chain(stage).map(|digest| (name.clone(), digest))
        });
        let mut known = true;
        for (package, digest) in needed.collect::<Vec<_>>() {
            match self.parts.store.bundle(&digest) {
                Ok(Some(_)) => {}
                Ok(None) => known = false,
                Err(StoreError::Damaged { .. }) => {
                    known = false;
                    self.look = true;
                    self.apply(Event::Damaged { package, digest })?;
                }
                Err(error) => {
                    tracing::warn!("{}", crate::failure::chain(&error));
                    known = false;
                }
            }
        }
        if !known {
            return Ok(());
        }
        match self.parts.store.collect(&keep) {
            Ok(collected) => {
                tracing::debug!(?collected, "collected garbage");
                self.known.retain(|digest, _| keep.contains(digest));
                self.kept = Some(keep);
            }
            Err(error) => tracing::warn!("{}", crate::failure::chain(&error)),
        }
        Ok(())
    }

    /// Keeps packages for a later assignment.
    pub fn prefetch(&mut self, packages: &BTreeSet<Digest>) -> Result<(), StoreError> {
        self.parts.store.prefetch(packages)
    }

    /// Gives packages up that were kept for a later assignment; what nothing needs is removed.
    pub fn give_up_prefetched(&mut self, gone: impl Fn(&Digest) -> bool) -> Result<(), StoreError> {
        if self.parts.store.retain_prefetched(|package| !gone(package))? {
            self.kept = None;
        }
        Ok(())
    }

    /// Removes what nothing needs, whether or not anything was ever assigned.
    pub fn clear_out(&mut self) -> Result<(), StoreError> {
        let mut keep = stored(&self.state);
        keep.extend(self.parts.store.prefetched()?);
        if self.opening.is_empty() && self.storing.is_empty() && self.operation.is_none() {
            self.parts.store.collect(&keep)?;
        }
        Ok(())
    }

    /// Something was put into the store: there may be less to fetch.
    pub fn look_again(&mut self) {
        self.look = true;
    }
}
