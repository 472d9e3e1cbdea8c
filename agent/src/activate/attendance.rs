//! The host comes and goes, and the agent is about to.

use selvedge_control::{HostStatus, PackageRef};
use selvedge_deployment::{Event, Phase, Stage};
use selvedge_package::Digest;

use super::rest::Rest;
use super::{Activation, HostView, now_ms};
use crate::clock;
use crate::store::StoreError;
use crate::supervise::Fate;

impl Activation {
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

    /// The host is gone: those that it named did it, or whoever is held to have ([`blame`]). The next one begins
    /// without those that were named, so that all others answer again at once.
    pub fn host_down(&mut self, named: &[PackageRef], fate: Fate) -> Result<(), StoreError> {
        self.hold_back(named);
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

    fn hold_back(&mut self, named: &[PackageRef]) {
        let slots = &self.state.slots;
        let is_committed = |digest: &Digest| {
            slots.values().filter_map(|slot| slot.committed.as_ref()).any(|it| it.release.digest == *digest)
        };
        self.rests.keep_stuck(is_committed);
        for PackageRef { name, digest } in named.iter().filter(|package| is_committed(&package.digest)) {
            tracing::warn!(package = %name, "the host had to end for it; it is served again after a pause");
            self.rests.rest(Rest::Stuck(*digest), clock::since_boot());
        }
    }

    /// The agent is about to end in order. What nobody is seen to serve has made no headway.
    pub fn stopping(&mut self) -> Result<(), StoreError> {
        if !self.host.is_up() {
            return Ok(());
        }
        self.apply(Event::Stopping { now_ms: now_ms() })
    }
}
