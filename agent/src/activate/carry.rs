//! Carrying blobs: opened, transferred, put into their place.
//!
//! What reads or hashes a whole blob runs beside the event loop, since a blob may have gigabytes:
//! resuming one hashes what no bitmap vouches for, and putting one into its place hashes all of it.

use std::time::Duration;

use selvedge_deployment::Event;
use selvedge_package::chunks::{ChunkError, ChunkIndex, index_size};
use selvedge_package::{Digest, PackageName};

use super::rest::Rest;
use super::turns::{Candidate, SMALL};
use super::{Activation, Outcome};
use crate::clock;
use crate::failure::chain;
use crate::fetch::Lacking;
use crate::store::{Partial, Store, StoreError};
use crate::transfer::{Action, Failure};

/// A blob may be found changed on disk this often in a row, each time whole by then.
const DAMAGED_OFTEN_ENOUGH: u32 = 5;

/// A blob that is to be fetched.
#[derive(Debug)]
pub(super) struct Wanted {
    /// What it is.
    pub blob: Lacking,
    /// Who needs it: at least one, with the digest of the release.
    pub packages: Vec<(PackageName, Digest)>,
    /// How often in a row it was damaged on disk when it was whole.
    pub damaged: u32,
}

/// Why a blob cannot be begun or resumed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its index is not one.
    #[error("its chunk index is not one")]
    Index(#[from] ChunkError),
}

/// Begins or resumes a blob. It may read and hash all that is there.
fn open(store: &Store, blob: &Lacking) -> Result<Partial, OpenError> {
    let index = match blob.index {
        None => ChunkIndex::without_index(blob.digest, blob.size)?,
        Some(index) => {
            let most = index_size(blob.size).unwrap_or(0);
            ChunkIndex::parse(&store.read_small(&index, most)?, blob.size)?
        }
    };
    Ok(store.partial(blob.digest, index)?)
}

impl Activation {
    /// Begins as many of the wanted blobs as may be under way, packages taking turns.
    pub(super) fn fill(&mut self, now: Duration) -> Result<(), StoreError> {
        loop {
            let (mut waiting, mut running) = (Vec::new(), Vec::new());
            for (digest, wanted) in &self.wanted {
                let Some((package, _)) = wanted.packages.first() else { continue };
                let one = Candidate { digest: *digest, size: wanted.blob.size, package };
                if self.opening.contains(digest) || self.under_way(digest) {
                    running.push(one);
                } else if !self.storing.contains(digest) && !self.rests.has(&Rest::Blob(*digest), now) {
                    waiting.push(one);
                }
            }
            let Some(next) = self.turns.next(waiting.into_iter(), &running) else { return Ok(()) };
            self.begin_blob(next)?;
        }
    }

    fn begin_blob(&mut self, digest: Digest) -> Result<(), StoreError> {
        let Some(blob) = self.wanted.get(&digest).map(|wanted| wanted.blob) else { return Ok(()) };
        let store = self.parts.store.clone();
        if blob.size <= SMALL {
            return self.opened(digest, open(&store, &blob));
        }
        self.opening.insert(digest);
        let outcomes = self.parts.outcomes.clone();
        tokio::task::spawn_blocking(move || {
            let result = open(&store, &blob);
            let _ = outcomes.send(Outcome::Opened { digest, result });
        });
        Ok(())
    }

    /// A blob was opened, or was not. One that is wanted no longer is left as it is.
    pub(super) fn opened(
        &mut self,
        digest: Digest,
        result: Result<Partial, OpenError>,
    ) -> Result<(), StoreError> {
        self.opening.remove(&digest);
        if !self.wanted.contains_key(&digest) {
            return Ok(());
        }
        let now = clock::since_boot();
        match result {
            Ok(partial) if partial.is_whole() => self.put_in_place(digest, partial),
            Ok(partial) => self.start_transfer(digest, partial, now),
            // Its index is gone: the next look fetches that first. Until then it is not begun again, which
            // would come to the same, and for a small blob at once and without end.
            Err(OpenError::Store(StoreError::Missing { .. } | StoreError::Damaged { .. })) => {
                self.rests.rest(Rest::Blob(digest), now);
                self.look = true;
            }
            Err(OpenError::Store(error)) => self.not_kept(digest, &error, now),
            Err(error @ OpenError::Index(_)) => {
                return self.unusable(digest, "bad-index", format!("blob {digest}: {}", chain(&error)));
            }
        }
        Ok(())
    }

    /// How many blobs are looked at or put into their place beside the event loop: each ends with an
    /// [`Outcome`].
    pub fn storing(&self) -> usize {
        self.opening.len() + self.storing.len()
    }

    /// Whether a blob is being transferred.
    pub(super) fn under_way(&self, digest: &Digest) -> bool {
        self.transfers.contains(digest) || self.http.contains(digest)
    }

    /// Over HTTP where there is a source that can be asked now, over MQTT otherwise.
    pub(super) fn start_transfer(&mut self, digest: Digest, mut partial: Partial, now: Duration) {
        self.meter(now);
        let actions = match self.http.carries(&digest, now) {
            true => self.http.add(now, digest, partial),
            false => {
                let outcomes = self.parts.outcomes.clone();
                partial.keep_beside(move || drop(outcomes.send(Outcome::Settled)));
                self.transfers.add(now, digest, partial)
            }
        };
        self.follow(actions, now);
    }

    /// Chunks that were handed over have been kept, or were not.
    pub(super) fn settled(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        self.meter(now);
        let actions = self.transfers.tick(now);
        self.follow(actions, now);
        if self.look { self.pursue() } else { self.fill(now) }
    }

    /// Ends a transfer at once; what came of it is kept.
    pub(super) fn stop_transfer(&mut self, digest: &Digest, now: Duration) -> Option<Partial> {
        let (mut partial, actions) = match self.http.contains(digest) {
            true => self.http.cancel(now, digest),
            false => self.transfers.cancel(now, digest),
        };
        if let Some(Err(error)) = partial.as_mut().map(Partial::keep_here) {
            tracing::warn!(%digest, "{}", chain(&error));
        }
        self.errands.needs.retain(|need| need.digest != *digest);
        self.follow(actions, now);
        partial
    }

    /// Does what the transfers ask for.
    pub(super) fn follow(&mut self, actions: Vec<Action<Partial>>, now: Duration) {
        for action in actions {
            match action {
                Action::Publish(need) => self.errands.needs.push(need),
                Action::Done { digest, target } => self.put_in_place(digest, target),
                Action::Pulled { bytes, .. } => self.errands.pulled.push(bytes),
                Action::Failed { digest, why: Failure::Keep(error), .. } => {
                    self.not_kept(digest, &error, now);
                }
                // A desired state is offered again; it needs no rest, and its digest is anyone's.
                Action::Failed { digest, why, target: None } => {
                    tracing::debug!(%digest, "{}", chain(&why));
                }
                Action::Failed { digest, why, target: Some(_) } => {
                    tracing::warn!(%digest, "{}", chain(&why));
                    if self.rests.rest(Rest::Blob(digest), now) {
                        let what = format!("blob {digest} cannot be fetched: {}", chain(&why));
                        self.tell(why.reason(), None, what);
                    }
                }
            }
        }
    }

    /// Hashes the whole blob and moves it into its place, beside the event loop: it may be large.
    fn put_in_place(&mut self, digest: Digest, partial: Partial) {
        self.storing.insert(digest);
        let outcomes = self.parts.outcomes.clone();
        tokio::task::spawn_blocking(move || {
            let result = partial.finish();
            let _ = outcomes.send(Outcome::Stored { digest, result });
        });
    }

    /// A blob was put into its place, or was not.
    pub(super) fn stored(
        &mut self,
        digest: Digest,
        result: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.storing.remove(&digest);
        self.look = true;
        let now = clock::since_boot();
        match result {
            Ok(()) => self.rests.forget(&Rest::Blob(digest)),
            Err(error @ StoreError::Contradicted { .. }) => {
                return self.unusable(digest, "bad-index", chain(&error));
            }
            Err(StoreError::Damaged { .. }) => {
                let wanted = self.wanted.get_mut(&digest);
                let times = wanted.map_or(1, |wanted| {
                    wanted.damaged += 1;
                    wanted.damaged
                });
                if times >= DAMAGED_OFTEN_ENOUGH {
                    let what = format!(
                        "blob {digest} changed on the device's disk {times} times while it was fetched: look \
                         at the disk, then release the package again"
                    );
                    return self.unusable(digest, "blob-damaged", what);
                }
                let what = format!("blob {digest} changed on disk while it was fetched; it is fetched again");
                self.tell("corrupt-blob", None, what);
                self.rests.rest(Rest::Blob(digest), now);
            }
            Err(error) => self.not_kept(digest, &error, now),
        }
        Ok(())
    }

    /// A blob that can never be had: whoever needs it is given up, and not fetched again and again.
    fn unusable(&mut self, digest: Digest, reason: &str, what: String) -> Result<(), StoreError> {
        tracing::warn!(%digest, "{what}");
        // A newer intent may need it all the same: it is tried again, ever more rarely.
        self.rests.rest(Rest::Blob(digest), clock::since_boot());
        let packages = self.wanted.get(&digest).map(|wanted| wanted.packages.clone()).unwrap_or_default();
        for (package, release) in packages {
            self.apply(Event::Unusable {
                package,
                digest: release,
                reason: reason.to_owned(),
                what: what.clone(),
            })?;
        }
        Ok(())
    }

    /// The disk is full or broken: the transfer rests, and goes on by itself.
    fn not_kept(&mut self, digest: Digest, error: &StoreError, now: Duration) {
        let why = chain(error);
        tracing::warn!(%digest, "{why}");
        if self.rests.rest(Rest::Blob(digest), now) {
            self.tell(disk_trouble(error), None, format!("blob {digest} cannot be stored: {why}"));
        }
        // What is left over may be what fills the disk, and this blob is.
        self.kept = None;
        if error.is_full()
            && let Err(error) = self.parts.store.discard_partial(&digest)
        {
            tracing::warn!(%digest, "{}", chain(&error));
        }
    }
}

/// The word for a disk that does not do what it should.
pub(super) fn disk_trouble(error: &StoreError) -> &'static str {
    if error.is_full() { "disk-full" } else { "disk-failed" }
}
