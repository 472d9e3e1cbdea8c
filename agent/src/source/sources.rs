//! The transfers over HTTP: which source is asked for which blob, and what becomes of one that fails.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use selvedge_package::{Digest, Origin};
use selvedge_protocol::block::CHUNK;
use selvedge_protocol::message::Need;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::address::Address;
use super::connect::Shared;
use super::job::Job;
use super::pace::Pace;
use super::trouble::{Rests, Trouble};
use super::{Authorities, Event, Happened, Outcome, Patience, Say};
use crate::transfer::{Action, Chunks, Transfers};

/// Chunks of a blob that a source may give wrong before it is left alone.
const SPOILED: u64 = 2;

/// The transfers over HTTP.
pub struct Sources<C: Chunks> {
    transfers: Transfers<C>,
    /// None where the device's owner wants none.
    pub(super) shared: Option<Arc<Shared>>,
    say: Say,
    /// Where each wanted blob lies.
    pub(super) known: BTreeMap<Digest, Vec<Origin>>,
    under_way: BTreeMap<Digest, UnderWay>,
    jobs: u64,
    pub(super) rests: Rests,
    /// What the sources have given of late.
    paces: BTreeMap<Origin, Pace>,
    /// Whether there is another way.
    rivalled: bool,
}

/// A transfer, and the job that answers it once it has asked for something.
struct UnderWay {
    size: u64,
    lacks: Arc<[Range<u64>]>,
    job: Option<Running>,
}

struct Running {
    number: u64,
    origin: Origin,
    needs: mpsc::UnboundedSender<Need>,
    task: AbortHandle,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.task.abort();
        }
    }
}

impl<C: Chunks> Sources<C> {
    /// None is asked until [`Sources::allow`].
    pub fn new(seed: u64, say: Say) -> Self {
        let mut transfers = Transfers::new(seed);
        // Whether a server can be reached is found out by asking it.
        transfers.connected(Duration::ZERO, u32::MAX);
        Self {
            transfers,
            shared: None,
            say,
            known: BTreeMap::new(),
            under_way: BTreeMap::new(),
            jobs: 0,
            rests: Rests::default(),
            paces: BTreeMap::new(),
            rivalled: false,
        }
    }

    /// From now on sources are asked.
    pub fn allow(&mut self, authorities: Authorities, patience: Patience) {
        self.shared = Some(Arc::new(Shared::new(authorities, patience)));
    }

    /// Says whether there is another way now: a source that is too slow is left alone for that one.
    pub fn rivalled(&mut self, rivalled: bool) {
        self.rivalled = rivalled;
    }

    /// Says where the blobs lie that are wanted now.
    pub fn wanted(&mut self, known: BTreeMap<Digest, Vec<Origin>>) {
        self.known = known;
        let known = &self.known;
        self.rests.keep(|(origin, digest)| match digest {
            Some(digest) => known.get(digest).is_some_and(|all| all.contains(origin)),
            None => known.values().any(|all| all.contains(origin)),
        });
        self.paces.retain(|origin, _| known.values().any(|all| all.contains(origin)));
    }

    /// Whether a blob can be had over HTTP now, or is being had.
    pub fn carries(&self, digest: &Digest, now: Duration) -> bool {
        let asked = self.under_way.get(digest).is_some_and(|way| way.job.is_some());
        asked || self.origin(digest, now).is_some()
    }

    /// Whether a blob is on its way over HTTP.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.transfers.contains(digest)
    }

    /// Transfers what `target` lacks of a blob.
    pub fn add(&mut self, now: Duration, digest: Digest, target: C) -> Vec<Action<C>> {
        let way = UnderWay { size: target.size(), lacks: lacks(&target), job: None };
        self.under_way.insert(digest, way);
        let actions = self.transfers.add(now, digest, target);
        self.ask(actions, now)
    }

    /// Ends a transfer; what came is saved where that works.
    pub fn cancel(&mut self, now: Duration, digest: &Digest) -> (Option<C>, Vec<Action<C>>) {
        self.under_way.remove(digest);
        let (target, actions) = self.transfers.cancel(now, digest);
        (target, self.ask(actions, now))
    }

    /// Takes what a job had to say. What was given up meanwhile is ignored.
    pub fn take(&mut self, event: Event, now: Duration, random: f64) -> Outcome<C> {
        let Event { digest, job, what } = event;
        let mut outcome = Outcome { actions: Vec::new(), fallen: Vec::new(), told: None };
        let current = self.under_way.get(&digest).and_then(|way| way.job.as_ref());
        let Some(origin) = current.filter(|current| current.number == job).map(|job| job.origin.clone())
        else {
            return outcome;
        };
        let trouble = match what {
            Happened::Failed(trouble) => trouble,
            Happened::Frame { frame, waited } => {
                let slow = self.too_slow(&origin, waited, frame.len() as u64);
                let actions = self.transfers.frame(now, &frame);
                let spoiled = self.transfers.progress().find(|p| p.digest == digest).map_or(0, |p| p.spoiled);
                if actions.iter().any(|action| matches!(action, Action::Done { .. })) {
                    self.rests.end(&origin, &digest);
                }
                outcome.actions = self.ask(actions, now);
                match slow {
                    _ if spoiled >= SPOILED => Trouble::Bytes,
                    Some(rate) if self.under_way.contains_key(&digest) => Trouble::Crawls(rate),
                    _ => return outcome,
                }
            }
        };
        tracing::warn!(%origin, %digest, "a source fails: {trouble}");
        if self.rests.rest(&origin, digest, &trouble, now, random) {
            outcome.told = Some(format!(
                "source {origin} fails for blob {digest}: {trouble}; it is fetched another way and the source asked again later"
            ));
        }
        let (target, actions) = self.cancel(now, &digest);
        outcome.actions.extend(actions);
        match target {
            Some(target) if self.carries(&digest, now) => {
                outcome.actions.extend(self.add(now, digest, target));
            }
            Some(target) => outcome.fallen.push((digest, target)),
            None => {}
        }
        outcome
    }

    /// Bytes a second of a source that gives too few, where there is another way.
    fn too_slow(&mut self, origin: &Origin, waited: Duration, bytes: u64) -> Option<u64> {
        let patience = self.shared.as_ref()?.patience;
        let rate = self.paces.entry(origin.clone()).or_default().note(waited, bytes, &patience);
        rate.filter(|_| self.rivalled)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Action<C>> {
        let actions = self.transfers.tick(now);
        self.ask(actions, now)
    }

    /// Whether a source may be asked again that could not since this was last asked.
    pub fn over(&mut self, now: Duration) -> bool {
        self.rests.over(now)
    }

    /// When to call [`Sources::tick`] and [`Sources::over`], if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        [self.transfers.wake_at(), self.rests.wake_at()].into_iter().flatten().min()
    }

    /// The agent ends: what came is saved.
    pub fn stop(&mut self, now: Duration) -> Vec<Action<C>> {
        self.under_way.clear();
        self.transfers.disconnected(now)
    }

    /// The transfers themselves.
    pub fn transfers(&self) -> &Transfers<C> {
        &self.transfers
    }

    /// From now on blobs may bring so many bytes more, as [`Transfers::allow`] says it. No server is asked
    /// for more than that in one request: what it has sent cannot be sent back.
    pub fn hold_to(&mut self, now: Duration, bytes: Option<u64>) -> Vec<Action<C>> {
        if let Some(shared) = &self.shared {
            shared.most.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        let actions = self.transfers.allow(now, bytes);
        self.ask(actions, now)
    }

    /// Bytes that were received since this was last asked, as the network counts them: heads of
    /// answers and TLS included.
    pub fn take_received(&mut self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.received.swap(0, Ordering::Relaxed))
    }

    /// The source to ask for a blob: the first that does not rest.
    fn origin(&self, digest: &Digest, now: Duration) -> Option<&Origin> {
        self.shared.as_ref()?;
        self.known.get(digest)?.iter().find(|origin| !self.rests.are_on(origin, digest, now))
    }

    /// Hands requests to jobs, and forgets jobs that nobody needs; the other actions remain.
    fn ask(&mut self, actions: Vec<Action<C>>, now: Duration) -> Vec<Action<C>> {
        let mut others = Vec::new();
        for action in actions {
            match action {
                Action::Publish(need) => self.need(need, now),
                Action::Done { digest, target } => {
                    // Its connection may serve the next one: it is left to end by itself.
                    if let Some(mut way) = self.under_way.remove(&digest) {
                        way.job = None;
                    }
                    others.push(Action::Done { digest, target });
                }
                other => others.push(other),
            }
        }
        let transfers = &self.transfers;
        self.under_way.retain(|digest, _| transfers.contains(digest));
        if self.under_way.is_empty()
            && let Some(shared) = &self.shared
        {
            shared.let_go();
        }
        others
    }

    fn need(&mut self, need: Need, now: Duration) {
        let digest = need.digest;
        if self.under_way.get(&digest).is_some_and(|way| way.job.is_none()) {
            let job = self.begin(digest, now);
            self.under_way.entry(digest).and_modify(|way| way.job = job);
        }
        if let Some(job) = self.under_way.get(&digest).and_then(|way| way.job.as_ref()) {
            // A job that has failed has said so.
            let _ = job.needs.send(need);
        }
    }

    /// Starts a job, where there is a source to ask.
    fn begin(&mut self, digest: Digest, now: Duration) -> Option<Running> {
        let origin = self.origin(&digest, now)?.clone();
        let (shared, way) = (self.shared.clone()?, self.under_way.get(&digest)?);
        let address = Address::parse(&origin.address_of(&digest));
        let (size, lacks, say) = (way.size, way.lacks.clone(), self.say.clone());
        let waiting = self.paces.entry(origin.clone()).or_default().waiting();
        let (sender, needs) = mpsc::unbounded_channel();
        self.jobs += 1;
        let number = self.jobs;
        let task = tokio::spawn(async move {
            match address {
                Ok(address) => {
                    let job = Job { digest, number, size, lacks, address, shared, waiting, needs, say };
                    job.run().await;
                }
                Err(trouble) => say(Event { digest, job: number, what: Happened::Failed(trouble) }),
            }
        });
        Some(Running { number, origin, needs: sender, task: task.abort_handle() })
    }
}

impl<C: Chunks> fmt::Debug for Sources<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("known", &self.known)
            .field("rests", &self.rests)
            .finish_non_exhaustive()
    }
}

/// The parts that are not there yet, lowest first, each as long as it can be.
fn lacks(target: &impl Chunks) -> Arc<[Range<u64>]> {
    let size = target.size();
    let mut lacks: Vec<Range<u64>> = Vec::new();
    for chunk in 0..u32::try_from(size.div_ceil(CHUNK.into())).unwrap_or(u32::MAX) {
        if target.have(chunk) {
            continue;
        }
        let first = u64::from(chunk) * u64::from(CHUNK);
        let end = (first + u64::from(CHUNK)).min(size);
        match lacks.last_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => lacks.push(first..end),
        }
    }
    lacks.into()
}
