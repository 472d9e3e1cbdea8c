//! The driver of the deployment state machine: writes each step down, then does what follows from it.
//!
//! `selvedge_deployment` decides; this persists its state, derives what is to be done from it, and
//! does that: fetches through [`crate::transfer`] and [`crate::source`] ([`pull`], [`carry`]), probes and
//! loads through the host ([`operate`]), and feeds back what came of it ([`outcome`]). Nothing here
//! remembers what must not be forgotten: after a kill the same effects are derived from the stored state.
//! One thing is done with the host at a time; a probe runs beside it, so that what is committed is never
//! kept waiting.

mod attendance;
mod blame;
mod by_http;
mod carry;
mod host;
mod keep;
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
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use selvedge_control::Client;
use selvedge_deployment::{Effect, Event, Release, Stage, State, StateRecord, loadable, plan, step, stored};
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
use crate::supervise::Probe;
use crate::transfer::Transfers;
use crate::verify;

use carry::Wanted;
use host::HostView;
use operate::{Operation, Probing, Role, Tried};
pub use outcome::Outcome;
pub use refusal::REFUSED_FOR;
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
    /// Least time for which what is committed is refused before it gives way.
    pub refused_for: Duration,
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
    refusals: BTreeMap<PackageName, refusal::Refusals>,
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

    /// Whether there is anything to be done for the driver.
    pub fn has_errands(&self) -> bool {
        !self.errands.is_empty()
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
        let wanted = |state: &State| -> BTreeMap<PackageName, Option<Release>> {
            state.slots.iter().map(|(name, slot)| (name.clone(), slot.wanted.clone())).collect()
        };
        let before = wanted(&self.state);
        self.apply_with(event, |transaction| transaction.put(Key::Trust, trust))?;
        // What is assigned anew waits for nothing that hindered what was before; what is still assigned does.
        for (name, _) in wanted(&self.state).iter().filter(|(name, now)| before.get(*name) != Some(now)) {
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

    /// Releases that the host may have open now.
    fn loadable(&self) -> BTreeSet<(PackageName, Digest)> {
        loadable(&self.state)
    }
}

/// Device time.
fn now_ms() -> u64 {
    u64::try_from(clock::since_boot().as_millis()).unwrap_or(u64::MAX)
}
