//! The other way for blobs: over HTTP, from web servers that their packages name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use selvedge_package::{Digest, Origin};
use tokio::sync::mpsc;

use super::{Activation, Outcome};
use crate::clock;
use crate::source::{Authorities, Event, Patience, Sources};
use crate::store::{Partial, StoreError};

/// Sources of a blob that several packages share.
const MOST: usize = 16;

/// No source is asked yet.
pub(super) fn none(seed: u64, outcomes: &mpsc::UnboundedSender<Outcome>) -> Sources<Partial> {
    let outcomes = outcomes.clone();
    Sources::new(seed.rotate_left(17), Arc::new(move |event| drop(outcomes.send(Outcome::Source(event)))))
}

/// Notes where a blob lies besides the registry.
pub(super) fn name(sources: &mut BTreeMap<Digest, Vec<Origin>>, digest: Digest, named: &[Origin]) {
    if named.is_empty() {
        return;
    }
    let known = sources.entry(digest).or_default();
    let new = named.iter().filter(|origin| !known.contains(origin)).cloned().collect::<Vec<_>>();
    known.extend(new.into_iter().take(MOST.saturating_sub(known.len())));
}

impl Activation {
    /// From now on web servers that packages name are asked for their blobs.
    pub fn allow_sources(&mut self, authorities: Authorities) {
        self.http.allow(authorities, Patience::default());
        self.look = true;
    }

    /// Takes what came of a request to a web server.
    pub(super) fn by_http(&mut self, event: Event) -> Result<(), StoreError> {
        let now = clock::since_boot();
        self.meter(now);
        let outcome = self.http.take(event, now, rand::random());
        self.follow(outcome.actions, now);
        // What else was to come from there goes another way, too.
        self.look |= !outcome.fallen.is_empty() || outcome.told.is_some();
        for (digest, partial) in outcome.fallen {
            self.start_transfer(digest, partial, now);
        }
        if let Some(what) = outcome.told {
            self.tell("source-failed", None, what);
        }
        if self.look { self.pursue() } else { self.fill(now) }
    }

    /// Moves blobs to the way that they should go now: to a source that can be asked (again), or away
    /// from those that rest.
    pub(super) fn switch(&mut self, now: Duration) {
        let moving: Vec<Digest> = self
            .wanted
            .keys()
            .filter(|digest| self.under_way(digest))
            .filter(|digest| self.http.contains(digest) != self.http.carries(digest, now))
            .copied()
            .collect();
        for digest in moving {
            if let Some(partial) = self.stop_transfer(&digest, now) {
                self.start_transfer(digest, partial, now);
            }
        }
    }

    /// The agent ends: what came is saved, nothing more is asked for.
    pub(super) fn stop_sources(&mut self) {
        let now = clock::since_boot();
        let actions = self.http.stop(now);
        self.follow(actions, now);
    }
}
