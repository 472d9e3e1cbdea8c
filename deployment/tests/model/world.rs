//! A device round the state machine: a driver that does what the plan says, as `selvedge-agent` does it,
//! and a host that has packages open. What no state can show is seen here: who answers.

use std::collections::BTreeMap;

use selvedge_deployment::*;
use selvedge_package::{Digest, PackageName};

use crate::invariants::{check_state, check_step};
use crate::moves::answer;

/// A release that the host has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub digest: Digest,
    pub settings: BTreeMap<String, String>,
    pub serving: bool,
}

/// The device.
#[derive(Debug, Default)]
pub struct World {
    pub state: State,
    /// What the host has open; it is there whenever it is asked for, and has nothing after a death.
    pub host: BTreeMap<PackageName, Vec<Open>>,
    /// Since the machine was started.
    pub now_ms: u64,
    /// Events that were taken.
    pub taken: u64,
}

impl World {
    /// Feeds an event, and checks what must hold of every step.
    pub fn feed(&mut self, event: Event) {
        let Ok(after) = step(&self.state, event.clone()) else {
            return;
        };
        check_step(&self.state, &event, &after);
        check_state(&after.state);
        self.taken += 1;
        self.state = after.state;
    }

    /// Does an effect as the driver does: twice, since it may be cut in between and be done again.
    pub fn perform(&mut self, effect: &Effect, outcome: u8) {
        let mut answered = self.answered();
        answered.retain(|name, _| !self.state.slots.get(name).is_some_and(stops_first));
        // Nobody asks for room that is there already.
        let tight =
            outcome == 4 && matches!(effect, Effect::Load(name, _) if stops_first(&self.state.slots[name]));
        // Nor is refused what answers.
        let taken =
            outcome == 1 && matches!(effect, Effect::Serve(name, release) if self.serves(name, release));
        let outcome = if tight || taken { 9 } else { outcome };
        self.affect(effect, outcome);
        let once = self.host.clone();
        self.affect(effect, outcome);
        assert_eq!(self.host, once, "{effect:?} done twice is not what it is done once");
        self.check_routes(&answered);
        if matches!(effect, Effect::Serve(..)) && outcome > 1 {
            return;
        }
        self.feed(answer(effect, outcome, self.now_ms));
        self.unload();
        self.check_routes(&answered);
    }

    /// The part of an effect that the host sees.
    fn affect(&mut self, effect: &Effect, outcome: u8) {
        match effect {
            Effect::Fetch(..) | Effect::Begin(_) => {}
            Effect::Serve(package, release) => {
                if outcome > 1 {
                    self.open(package, release);
                    self.route(package, release.digest);
                }
            }
            Effect::Load(package, release) => {
                if let Some(Slot { stage: Stage::Trial { rules, .. }, .. }) = self.state.slots.get(package)
                    && rules.swap == Swap::StopFirst
                {
                    self.host.entry(package.clone()).or_default().retain(|open| !open.serving);
                }
                if outcome >= 3 && outcome != 4 && outcome != 5 {
                    self.open(package, release);
                }
            }
            // What is not there cannot be routed; the host would say so.
            Effect::Activate(package, release) => {
                let there = self.host.get(package).into_iter().flatten().any(|o| o.digest == release.digest);
                assert!(there, "{effect:?} of what is not open");
                if outcome > 0 {
                    self.route(package, release.digest);
                }
            }
            Effect::Watch(package, digest) => {
                let serves = |open: &Open| open.serving && open.digest == *digest;
                assert!(
                    self.host.get(package).into_iter().flatten().any(serves),
                    "{effect:?} of what does not answer: {:?}",
                    self.host
                );
            }
        }
    }

    /// Whether this release answers, with its settings.
    fn serves(&self, package: &PackageName, release: &Release) -> bool {
        let is = |o: &Open| o.serving && o.digest == release.digest && o.settings == release.settings;
        self.host.get(package).into_iter().flatten().any(is)
    }

    /// An answer may come that nobody waits for any more; what it says of the host is true all the same.
    pub fn make_true(&mut self, event: &Event) {
        let (Event::Accepted { package, digest, .. }
        | Event::Activated { package, digest, .. }
        | Event::Proved { package, digest, .. }) = event
        else {
            return;
        };
        let Some(Stage::Trial { release, .. }) = self.state.slots.get(package).map(|slot| &slot.stage) else {
            return;
        };
        if release.digest == *digest {
            let release = release.clone();
            self.open(package, &release);
            if !matches!(event, Event::Accepted { .. }) {
                self.route(package, *digest);
            }
        }
    }

    fn open(&mut self, package: &PackageName, release: &Release) {
        let open = self.host.entry(package.clone()).or_default();
        let same = |o: &Open| o.digest == release.digest && o.settings == release.settings;
        // Others of the same digest that wait for a route go: the last one opened is the one to be routed.
        open.retain(|o| o.serving || o.digest != release.digest || same(o));
        if !open.iter().any(same) {
            let (digest, settings) = (release.digest, release.settings.clone());
            open.push(Open { digest, settings, serving: false });
        }
    }

    /// Routes to what waits, else to what answers already; what answered before drains and is gone.
    fn route(&mut self, package: &PackageName, digest: Digest) {
        let open = self.host.entry(package.clone()).or_default();
        let waits = open.iter().position(|o| o.digest == digest && !o.serving);
        let Some(at) = waits.or_else(|| open.iter().position(|o| o.digest == digest)) else { return };
        let mut routed = open.remove(at);
        routed.serving = true;
        open.retain(|o| !o.serving);
        open.push(routed);
    }

    /// Unloads what is not to be open; what answers is left alone as long as another one is about to
    /// take its route over and both may be there together.
    fn unload(&mut self) {
        let (keep, plan) = (loadable(&self.state), plan(&self.state));
        let relieved = |name: &PackageName| {
            let together = self.state.slots.get(name).is_some_and(|slot| match &slot.stage {
                Stage::Trial { rules, .. } => rules.swap == Swap::Handover,
                _ => true,
            });
            let follows = |effect: &Effect| match effect {
                Effect::Serve(n, _) | Effect::Activate(n, _) => n == name,
                _ => false,
            };
            together && plan.iter().any(follows)
        };
        for (name, open) in &mut self.host {
            let stays = relieved(name);
            open.retain(|o| keep.contains(&(name.clone(), o.digest)) || (o.serving && stays));
        }
    }

    /// Names that answer, and with what.
    fn answered(&self) -> BTreeMap<PackageName, Digest> {
        let serving = |open: &Vec<Open>| open.iter().find(|o| o.serving).map(|o| o.digest);
        self.host.iter().filter_map(|(name, open)| Some((name.clone(), serving(open)?))).collect()
    }

    /// Never two that answer, and none that stops answering by what the driver does, but where it has to.
    fn check_routes(&self, before: &BTreeMap<PackageName, Digest>) {
        for (name, open) in &self.host {
            assert!(open.iter().filter(|o| o.serving).count() <= 1, "two of {name} answer: {open:?}");
        }
        let now = self.answered();
        for name in before.keys().filter(|name| !now.contains_key(*name)) {
            let Some(slot) = self.state.slots.get(name) else { continue };
            let gone = slot.servable().is_none();
            assert!(gone || stops_first(slot), "{name} stopped answering: {slot:?}, {:?}", self.host);
        }
    }

    /// The host ends; what is on trial and named for it must have been open.
    pub fn host_dies(&mut self, suspects: Vec<Digest>) {
        self.host.clear();
        self.feed(Event::HostDied { suspects, now_ms: self.now_ms, within_ms: CRASH_WINDOW_MS });
    }

    /// The agent ends and starts again; the host goes on.
    pub fn restart(&mut self, in_order: bool) {
        if in_order {
            self.feed(Event::Stopping { now_ms: self.now_ms });
        }
        self.start();
    }

    /// As at every start of an agent: the state is read, and a host is found that has a trial on
    /// probation, or one that has not.
    fn start(&mut self) {
        self.feed(Event::Restarted);
        let lost = self.state.slots.iter().any(|(name, slot)| {
            let serves = |digest: &Digest| {
                self.host.get(name).into_iter().flatten().any(|o| o.serving && o.digest == *digest)
            };
            matches!(&slot.stage, Stage::Trial { release, .. } if !serves(&release.digest))
        });
        if lost {
            self.host_dies(Vec::new());
        }
    }

    /// Power goes and comes back: no host, another boot.
    pub fn power_cut(&mut self) {
        self.host.clear();
        self.now_ms = 0;
        let record = serde_json::to_vec(&StateRecord::from(self.state.clone())).unwrap();
        let read: State = serde_json::from_slice::<StateRecord>(&record).unwrap().into();
        assert_eq!(read, self.state, "the record does not give the state back");
        self.start();
    }

    /// Does everything that is planned, as often as it takes. `outcome` says how each ends.
    pub fn settle(&mut self, most: usize, mut outcome: impl FnMut() -> u8) -> Result<usize, Vec<Effect>> {
        for steps in 0..most {
            self.unload();
            let plan = plan(&self.state);
            for effect in plan.iter().filter(|effect| matches!(effect, Effect::Serve(..))) {
                self.perform(effect, 9);
            }
            let next = plan.into_iter().find(|effect| !matches!(effect, Effect::Serve(..)));
            let Some(effect) = next else { return Ok(steps) };
            if matches!(effect, Effect::Watch(..)) {
                self.now_ms += 150;
            }
            self.perform(&effect, outcome());
        }
        Err(plan(&self.state))
    }
}

/// Whether what answers makes way for what is on trial.
fn stops_first(slot: &Slot) -> bool {
    matches!(&slot.stage, Stage::Trial { rules, .. } if rules.swap == Swap::StopFirst)
}
