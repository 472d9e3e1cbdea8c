//! Fetching: from releases that are wanted to the blobs that are to be carried ([`super::carry`]).

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_deployment::{Effect, Event};
use selvedge_package::{Digest, Origin, PackageName};

use super::Activation;
use super::by_http;
use super::carry::Wanted;
use super::rest::Rest;
use crate::budget::on_the_wire;
use crate::clock;
use crate::failure::chain;
use crate::fetch::{Stock, besides, rules, stock};
use crate::store::{MARGIN, StoreError};
use crate::transfer::{Action, PullError};

/// Bytes of the topic on which blocks come, about.
const TOPIC: usize = 40;

impl Activation {
    /// Looks at what is stored of the releases that are to be fetched, and starts and stops
    /// transfers accordingly. What is whole is laid out and reported to the state machine.
    pub(super) fn fetch(&mut self, plan: &[Effect], now: Duration) -> Result<(), StoreError> {
        let releases: Vec<_> = plan
            .iter()
            .filter_map(|effect| match effect {
                Effect::Fetch(package, release) => Some((package.clone(), release.clone())),
                _ => None,
            })
            .collect();
        if !self.look && releases == self.fetching {
            return self.fill(now);
        }
        self.look = false;
        self.fetching.clone_from(&releases);
        let mut lacks: BTreeMap<Digest, Wanted> = BTreeMap::new();
        let mut sources: BTreeMap<Digest, Vec<Origin>> = BTreeMap::new();
        let mut room = self.parts.store.free().saturating_sub(MARGIN);
        for (package, release) in releases {
            let digest = release.digest;
            let rests = [Rest::Package(package.clone()), Rest::Fetch(package.clone())];
            if rests.iter().any(|rest| self.rests.has(rest, now)) {
                continue;
            }
            let stock = match stock(&self.parts.store, &package, &release, &self.parts.hardware) {
                Ok(stock) => stock,
                Err(error) => {
                    self.endure(&package, error)?;
                    continue;
                }
            };
            match stock {
                Stock::Lacks { blobs, sources: named, bytes, besides } => {
                    // What is committed is repaired whatever it asks for besides.
                    let besides = if self.is_committed(&package, &digest) { 0 } else { besides };
                    if self.has_room(&package, bytes, besides, room, now) {
                        room = room.saturating_sub(bytes);
                        for blob in blobs {
                            by_http::name(&mut sources, blob.digest, &named);
                            let damaged = self.wanted.get(&blob.digest).map_or(0, |wanted| wanted.damaged);
                            let wanted = || Wanted { blob, packages: Vec::new(), damaged };
                            let needed = lacks.entry(blob.digest).or_insert_with(wanted);
                            needed.packages.push((package.clone(), digest));
                        }
                    }
                }
                Stock::Whole(bundle) => {
                    let besides = if self.is_committed(&package, &digest) { 0 } else { besides(&bundle) };
                    if besides > 0 && !self.has_room(&package, 0, besides, room, now) {
                        continue;
                    }
                    // A directory from before a repair would still lead to the damaged files.
                    let fresh = self.parts.store.remove_layout(&digest);
                    match fresh.and_then(|()| self.parts.store.lay_out(&bundle)) {
                        Ok(_) => self.apply(Event::Fetched { package, digest, rules: rules(&bundle) })?,
                        // It went missing this moment: the next look fetches it.
                        Err(StoreError::Missing { .. }) => self.look = true,
                        Err(error) => self.endure(&package, error)?,
                    }
                }
                Stock::Unusable { reason, what } => {
                    self.apply(Event::Unusable { package, digest, reason: reason.to_owned(), what })?;
                }
            }
        }
        let stale: Vec<Digest> =
            self.wanted.keys().filter(|digest| !lacks.contains_key(digest)).copied().collect();
        self.wanted = lacks;
        self.http.wanted(sources);
        for digest in stale {
            drop(self.stop_transfer(&digest, now));
        }
        self.rests.keep_blobs(|digest| self.wanted.contains_key(digest));
        let needed = |package: &PackageName| {
            self.wanted.values().flat_map(|wanted| &wanted.packages).any(|(other, _)| other == package)
        };
        self.turns.keep(needed);
        self.switch(now);
        self.fill(now)
    }

    fn is_committed(&self, package: &PackageName, digest: &Digest) -> bool {
        let slot = self.state.slots.get(package);
        slot.and_then(|slot| slot.committed.as_ref()).is_some_and(|c| c.release.digest == *digest)
    }

    /// Whether a package may be fetched. Where it may not, that is reported, what nobody needs is
    /// removed, and there is another look after a pause: the disk is not filled first.
    fn has_room(
        &mut self,
        package: &PackageName,
        bytes: u64,
        besides: u64,
        room: u64,
        now: Duration,
    ) -> bool {
        let rest = Rest::Fetch(package.clone());
        if bytes.saturating_add(besides) <= room {
            self.rests.forget(&rest);
            self.short.remove(package);
            return true;
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let what = format!(
            "it needs {} MiB and {} MiB free besides; there are {} MiB for packages: make room on the \
             device's disk and it goes on by itself",
            mib(bytes),
            mib(besides),
            room >> 20
        );
        tracing::warn!(%package, "{what}");
        self.short.insert(package.clone(), what.clone());
        self.kept = None;
        // What nobody has asked for goes first.
        if let Err(error) = self.give_up_prefetched(|_| true) {
            tracing::warn!("{}", chain(&error));
        }
        if self.rests.rest(rest, now) {
            self.tell("disk-full", Some(package), what);
        }
        false
    }

    /// What waits for room on the disk, for people.
    pub fn short_of_room(&self) -> Option<String> {
        let fetching = |package: &PackageName| self.fetching.iter().any(|(name, _)| name == package);
        let (package, why) = self.short.iter().find(|(package, _)| fetching(package))?;
        Some(format!("the disk is full: `{package}` is not fetched: {why}"))
    }

    /// The disk is full to the last: what is on its way is given up, never what is committed or on
    /// trial, and nothing is tried until then.
    pub fn make_room(&mut self, until: Duration) {
        let now = clock::since_boot();
        for digest in std::mem::take(&mut self.wanted).into_keys() {
            // Its space is free when nobody has it open.
            drop(self.stop_transfer(&digest, now));
            // One that is whole is being moved into its place.
            if !self.storing.contains(&digest)
                && let Err(error) = self.parts.store.discard_partial(&digest)
            {
                tracing::warn!(%digest, "{}", chain(&error));
            }
        }
        self.kept = None;
        if let Err(error) = self.give_up_prefetched(|_| true) {
            tracing::warn!("{}", chain(&error));
        }
        self.look = true;
        self.halted = Some(until);
    }

    /// Pulls a desired state that did not fit one packet.
    pub fn pull(&mut self, digest: Digest, size: u64) -> Result<(), PullError> {
        let now = clock::since_boot();
        let actions = self.transfers.pull(now, digest, size)?;
        self.follow(actions, now);
        Ok(())
    }

    /// There is a connection.
    pub fn connected(&mut self, maximum_packet: u32) {
        let now = clock::since_boot();
        self.meter(now);
        self.http.rivalled(true);
        let actions = self.transfers.connected(now, maximum_packet);
        self.follow(actions, now);
    }

    /// There is none.
    pub fn disconnected(&mut self) {
        let now = clock::since_boot();
        self.http.rivalled(false);
        let actions = self.transfers.disconnected(now);
        self.follow(actions, now);
    }

    /// The registry is there: what it left unanswered is asked for again at once.
    pub fn heard(&mut self) {
        let now = clock::since_boot();
        let actions = self.transfers.heard(now);
        self.follow(actions, now);
    }

    /// A payload of `dn/blk`.
    pub fn frame(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        let now = clock::since_boot();
        self.received(on_the_wire(TOPIC + payload.len()));
        self.meter(now);
        let actions = self.transfers.frame(now, payload);
        // There is room for another blob where one has ended, and only there.
        let ended = actions.iter().any(|action| !matches!(action, Action::Publish(_)));
        self.follow(actions, now);
        if self.look {
            return self.pursue();
        }
        if ended { self.fill(now) } else { Ok(()) }
    }

    /// Whether blocks were asked for that have not come.
    pub fn awaits_blocks(&self) -> bool {
        self.transfers.awaits_blocks()
    }

    /// How far the running transfers are.
    pub fn transfers(&self) -> impl Iterator<Item = crate::transfer::Progress> {
        self.transfers.progress().chain(self.http.transfers().progress())
    }

    /// Chunks that have come and were kept since the agent's start.
    pub fn chunks(&self) -> u64 {
        self.transfers.chunks() + self.http.transfers().chunks()
    }
}
