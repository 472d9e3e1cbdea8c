//! The driver of the deployment state machine: writes each step down, then does what follows from it.
//!
//! `selvedge_deployment` decides; this persists its state, derives what is to be done from it, and
//! does that: fetches through [`crate::transfer`] and [`crate::source`] ([`pull`], [`carry`]), probes and
//! loads through the host ([`operate`]), and feeds back what came of it ([`outcome`]). Nothing here
//! remembers what must not be forgotten: after a kill the same effects are derived from the stored state.
//! One thing is done with the host at a time; a probe runs beside it, so that what is committed is never
//! kept waiting.

mod blame;
mod by_http;
mod carry;
mod host;
mod make_way;
mod meter;
mod operate;
mod outcome;
mod probed;
mod pull;
mod refusal;
mod rest;
mod tell;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use selvedge_control::{Client, HostStatus, PackageRef};
use selvedge_deployment::{
    Effect, Event, Phase, Release, Stage, State, StateRecord, loadable, plan, step, stored,
};
use selvedge_package::trust::{Desired, TrustState};
use selvedge_package::{Digest, PackageName};
use selvedge_protocol::message::Need;
use tokio::sync::mpsc;

use crate::budget::{self, Budget, Hold, UsedRecord};
use crate::clock::{self, Floor};
use crate::fetch::Hardware;
use crate::memory::Memory;
use crate::source::Sources;
use crate::store::{Key, Partial, Store, StoreError, Transaction};
use crate::supervise::{Fate, Probe};
use crate::transfer::Transfers;
use crate::verify;

use carry::Wanted;
use host::HostView;
use operate::{Operation, Probing, Role, Tried};
pub use outcome::Outcome;
use rest::{Rest, Rests};
pub use tell::Told;
use turns::Turns;

/// What the driver needs.
#[derive(Debug)]
pub struct Parts {
    /// The device's storage.
    pub store: Store,
    /// What the device is.
    pub hardware: Hardware,
    /// The host's control socket.
    pub client: Client,
    /// How packages are probed.
    pub probe: Probe,
    /// How much memory there is.
    pub memory: Memory,
    /// Longest time for a load.
    pub load: Duration,
    /// What fetching may cost.
    pub traffic: budget::Settings,
    /// The device's time, for the budget.
    pub floor: Floor,
    /// Where tasks say what came of them; what arrives there goes to [`Activation::take`].
    pub outcomes: mpsc::UnboundedSender<Outcome>,
}

/// What the rest of the agent has to do for the driver.
#[derive(Debug, Default)]
pub struct Errands {
    /// To be published on `up/need`.
    pub needs: Vec<Need>,
    /// To be reported.
    pub told: Vec<Told>,
    /// A desired state that did not fit one packet and has been pulled.
    pub pulled: Vec<Vec<u8>>,
}

impl Errands {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty() && self.told.is_empty() && self.pulled.is_empty()
    }
}

/// The driver.
pub struct Activation {
    parts: Parts,
    state: State,
    host: HostView,
    /// How often the kernel had killed for want of memory when the host came, or was last asked to open
    /// something.
    kills: Option<u64>,
    operation: Option<Operation>,
    operations: u64,
    probing: Option<Probing>,
    /// Releases that passed their probe since this agent started, with the bytes of memory that it took.
    probed: BTreeMap<Tried, u64>,
    rests: Rests,
    /// How often in a row the host has refused what is committed, for what it is.
    refusals: BTreeMap<PackageName, (Digest, u32)>,
    /// What the host was opening when it broke off the exchange about it, and when that was.
    broken_off: Option<(Digest, Role, Duration)>,
    transfers: Transfers<Partial>,
    http: Sources<Partial>,
    /// Releases that are being fetched, as of the last look at the store.
    fetching: Vec<(PackageName, Release)>,
    /// Blobs wanted as of the last look.
    wanted: BTreeMap<Digest, Wanted>,
    /// Whose turn it is.
    turns: Turns,
    budget: Budget,
    /// When the budget was last told the time.
    metered: Option<Duration>,
    /// Until when it is not tried again to write down what is used.
    unmetered: Option<Duration>,
    /// Why blobs wait, as it was last seen.
    held: Option<Hold>,
    /// Blobs that are being opened, what is there of them being looked at.
    opening: BTreeSet<Digest>,
    /// Blobs that are being moved into their place.
    storing: BTreeSet<Digest>,
    /// Packages that wait for room on the disk, and why.
    short: BTreeMap<PackageName, String>,
    /// Whether the store has to be looked at again.
    look: bool,
    /// When the host was last asked about a probation.
    watched: Duration,
    /// Packages kept by the last collection.
    kept: Option<BTreeSet<Digest>>,
    known: BTreeMap<Digest, tell::Known>,
    errands: Errands,
    /// Until when nothing is written, the disk being full or broken: what is committed is served all the same.
    halted: Option<Duration>,
    /// What happened meanwhile and would be forgotten.
    missed: Vec<Event>,
}

/// Most events that wait for room on the disk: a host that ends again and again makes one each time.
const MOST_MISSED: usize = 16;

impl Activation {
    /// Reads the stored state and takes up what was interrupted.
    pub fn resume(parts: Parts, seed: u64) -> Result<Self, StoreError> {
        let record: Option<StateRecord> = parts.store.database().read(Key::Deployment)?;
        let used: Option<UsedRecord> = parts.store.database().read(Key::Budget)?;
        let now = clock::since_boot();
        let budget = Budget::resume(parts.traffic.clone(), used.map(UsedRecord::into), now);
        let http = by_http::none(seed, &parts.outcomes);
        let mut activation = Self {
            state: record.map(State::from).unwrap_or_default(),
            parts,
            host: HostView::Down,
            kills: None,
            operation: None,
            operations: 0,
            probing: None,
            probed: BTreeMap::new(),
            rests: Rests::default(),
            refusals: BTreeMap::new(),
            broken_off: None,
            transfers: Transfers::new(seed),
            http,
            fetching: Vec::new(),
            wanted: BTreeMap::new(),
            turns: Turns::default(),
            budget,
            metered: None,
            unmetered: None,
            held: None,
            opening: BTreeSet::new(),
            storing: BTreeSet::new(),
            short: BTreeMap::new(),
            look: true,
            watched: Duration::ZERO,
            kept: None,
            known: BTreeMap::new(),
            errands: Errands::default(),
            halted: None,
            missed: Vec::new(),
        };
        activation.witness(Event::Restarted)?;
        Ok(activation)
    }

    /// The deployment's state, as it is stored.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What is to be done for the driver; empties the list.
    pub fn errands(&mut self) -> Errands {
        std::mem::take(&mut self.errands)
    }

    /// Takes a desired state over, together with the trust state that vouches for it: both are written in
    /// one transaction, or neither is.
    pub fn desire(&mut self, trust: &TrustState, desired: &Desired) -> Result<(), StoreError> {
        // The trust state decides what may follow what. Where it holds no assignment (there was none, or
        // its keys were revoked), this one is the first of a new row.
        let held: Option<TrustState> = self.parts.store.database().read(Key::Trust)?;
        let anew = held.is_none_or(|held| held.sequence() == 0);
        for assignment in &desired.assignments {
            self.known
                .entry(assignment.digest)
                .or_insert_with(|| tell::Known::assigned(assignment.version.to_string()));
        }
        let event = verify::event(desired, &self.parts.hardware, anew);
        self.apply_with(event, |transaction| transaction.put(Key::Trust, trust))?;
        // What is assigned now waits for nothing that hindered what was before.
        for name in self.state.slots.keys() {
            self.rests.forget(&Rest::Trial(name.clone()));
        }
        self.refusals.retain(|name, _| self.state.slots.contains_key(name));
        // What was kept for a later assignment has found it.
        let assigned = stored(&self.state);
        if let Err(error) = self.parts.store.retain_prefetched(|package| !assigned.contains(package)) {
            tracing::warn!("{}", crate::failure::chain(&error));
        }
        self.look = true;
        Ok(())
    }

    /// Takes an event: the next state is written down before anything follows from it.
    fn apply(&mut self, event: Event) -> Result<(), StoreError> {
        self.apply_with(event, |_| Ok(()))
    }

    fn apply_with(
        &mut self,
        event: Event,
        with: impl Fn(&mut Transaction) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let also = matches!(event, Event::Desired { .. });
        let step = match step(&self.state, event) {
            Ok(step) => step,
            Err(illegal) => {
                tracing::debug!(%illegal, "an event does not fit");
                return if also { self.parts.store.database().write(with) } else { Ok(()) };
            }
        };
        if step.state != self.state || also {
            self.parts.store.database().write(|transaction| {
                transaction.put(Key::Deployment, &StateRecord::from(step.state.clone()))?;
                with(transaction)
            })?;
            self.state = step.state;
        }
        for note in step.notes {
            self.note(note);
        }
        Ok(())
    }

    /// Takes an event that cannot be derived again: it waits for a disk that takes writes.
    fn witness(&mut self, event: Event) -> Result<(), StoreError> {
        match self.apply(event.clone()) {
            Err(error) if error.is_disk() => {
                tracing::warn!("{}", crate::failure::chain(&error));
                if self.missed.len() < MOST_MISSED {
                    self.missed.push(event);
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Does what the state asks for, as far as it can be done now. To be called after every change.
    ///
    /// # Errors
    /// One that [`StoreError::is_disk`] leaves everything as it was: call [`Activation::make_room`] or
    /// [`Activation::halt`], and this again later.
    pub fn pursue(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        if self.is_halted(now) {
            return self.operate(now);
        }
        self.halted = None;
        while let Some(event) = self.missed.first().cloned() {
            self.apply(event)?;
            self.missed.remove(0);
        }
        loop {
            let before = self.state.clone();
            let plan = plan(&self.state);
            self.fetch(&plan, now)?;
            self.meter(now);
            if self.state == before {
                self.begin(&plan, now)?;
            }
            if self.state == before {
                self.operate(now)?;
            }
            if self.state == before {
                self.collect()?;
            }
            if self.state == before {
                return Ok(());
            }
        }
    }

    /// Whether nothing may be written now.
    fn is_halted(&self, now: Duration) -> bool {
        self.halted.is_some_and(|until| now < until)
    }

    /// The disk takes no writes: nothing that needs one is tried until then.
    pub fn halt(&mut self, until: Duration) {
        self.halted = Some(until);
    }

    /// Reads the stored state again. A write that failed may have become durable all the same; nothing has
    /// followed from it yet.
    pub fn reload(&mut self) -> Result<(), StoreError> {
        let record: Option<StateRecord> = self.parts.store.database().read(Key::Deployment)?;
        let stored = record.map(State::from).unwrap_or_default();
        if stored != self.state {
            tracing::warn!("what a failed write has left is taken up");
            self.state = stored;
        }
        self.halted = None;
        (self.look, self.kept) = (true, None);
        Ok(())
    }

    /// Starts a staged release, one trial at a time, when the host is there to take it.
    fn begin(&mut self, plan: &[Effect], now: Duration) -> Result<(), StoreError> {
        let trial = self.state.slots.values().any(|slot| matches!(slot.stage, Stage::Trial { .. }));
        if trial || !self.host.is_up() {
            return Ok(());
        }
        let next = plan.iter().find_map(|effect| match effect {
            Effect::Begin(package) if !self.trial_rests(package, now) => Some(package),
            _ => None,
        });
        match next {
            Some(package) => self.apply(Event::Begin { package: package.clone() }),
            None => Ok(()),
        }
    }

    /// Removes what no package needs any more, when nothing is on its way into the store. As long as
    /// the manifests of a package are not there, nobody knows what it needs, and nothing is removed.
    fn collect(&mut self) -> Result<(), StoreError> {
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

    /// A file operation that failed is no reason to end: the package rests, and it is tried again.
    /// Any other failure of the store is.
    fn endure(&mut self, package: &PackageName, error: StoreError) -> Result<(), StoreError> {
        let StoreError::Io { .. } = error else {
            return Err(error);
        };
        let why = crate::failure::chain(&error);
        tracing::warn!(%package, "{why}");
        // What is left over may be what fills the disk.
        self.kept = None;
        if self.rests.rest(Rest::Package(package.clone()), clock::since_boot()) {
            self.tell(carry::disk_trouble(&error), Some(package), why);
        }
        Ok(())
    }

    /// The host is there. A probation goes on where it still serves what is on it; where it does not, it is
    /// another host, and the one that did has ended unseen.
    pub fn host_up(&mut self, status: HostStatus) -> Result<(), StoreError> {
        self.host = HostView::up(status);
        self.kills = self.parts.memory.kills();
        self.broken_off = None;
        self.forget_rests();
        let lost = self.state.slots.iter().any(|(name, slot)| {
            matches!(&slot.stage, Stage::Trial { release, phase: Phase::Probation { .. }, .. }
                if !self.host.runs(name, &release.digest, &release.settings))
        });
        if lost {
            self.witness(self.host_died(Vec::new()))?;
        }
        self.pursue()
    }

    /// The host has said that something has changed by itself: it is asked what it has.
    pub fn noticed(&mut self) -> Result<(), StoreError> {
        self.rests.forget(&Rest::Drain);
        self.pursue()
    }

    /// The host is gone: those that it named did it, or whoever is held to have ([`blame`]).
    pub fn host_down(&mut self, named: &[PackageRef], fate: Fate) -> Result<(), StoreError> {
        let mut suspects: Vec<Digest> = named.iter().map(|package| package.digest).collect();
        if suspects.is_empty() {
            suspects.extend(self.blamed(fate));
        }
        self.host = HostView::Down;
        if let Some(operation) = self.operation.take() {
            operation.abort();
        }
        self.witness(self.host_died(suspects))?;
        self.pursue()
    }

    /// The agent is about to end in order. What nobody is seen to serve has made no headway.
    pub fn stopping(&mut self) -> Result<(), StoreError> {
        if !self.host.is_up() {
            return Ok(());
        }
        self.apply(Event::Stopping { now_ms: now_ms() })
    }

    /// When to call [`Activation::tick`], if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        let watching = plan(&self.state).iter().any(|effect| matches!(effect, Effect::Watch(..)));
        let watch = (watching && self.host.is_up() && self.operation.is_none())
            .then(|| self.watched + operate::WATCH);
        let meter = self.meter_wakes_at();
        if let Some(until) = self.halted {
            let waits =
                [self.transfers.wake_at(), self.http.wake_at(), self.rests.wake_at(), Some(until), meter];
            return waits.into_iter().flatten().min();
        }
        [self.transfers.wake_at(), self.http.wake_at(), self.rests.wake_at(), watch, meter]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time has passed.
    pub fn tick(&mut self) -> Result<(), StoreError> {
        let now = clock::since_boot();
        self.meter(now);
        for actions in [self.transfers.tick(now), self.http.tick(now)] {
            self.follow(actions, now);
        }
        self.look |= self.rests.over(now) | self.http.over(now);
        self.pursue()
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

    /// Releases that the host may have open now.
    fn loadable(&self) -> BTreeSet<(PackageName, Digest)> {
        loadable(&self.state)
    }
}

/// Device time.
fn now_ms() -> u64 {
    u64::try_from(clock::since_boot().as_millis()).unwrap_or(u64::MAX)
}
