//! A package as serving holds it: what it may be asked, what it has answered, who uses it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use selvedge_control::{PackageRef, PackageState, PackageStatus, settings_digest};
use selvedge_package::{Digest, Manifest};
use tokio::sync::Notify;

use super::batcher::Batcher;
use super::counts::Counts;
use super::gate::Gate;
use super::latency::Latency;
use super::predictor::Predictor;
use super::shares;
use crate::memory::share::Share;
use crate::oip::answer::Answerer;
use crate::oip::metadata::provenance;
use crate::oip::request::Limits;
use crate::sequence::{Id, Part, Sequences};

/// Text that one element of a JSON body may take, brackets and white space included.
const TEXT_PER_ELEMENT: u64 = 64;

/// What a JSON body may hold beside its elements.
const TEXT_BESIDE: u64 = 64 << 10;

/// A package on the host.
pub struct Served {
    /// What answers.
    pub predictor: Arc<dyn Predictor>,
    /// The settings that it was opened with.
    pub settings: BTreeMap<String, String>,
    /// Bounds its requests.
    pub gate: Gate,
    /// Puts them together, where the manifest says so.
    pub batcher: Option<Batcher>,
    /// Goes into every answer.
    pub answerer: Arc<Answerer>,
    /// Longest JSON body in bytes.
    pub json_limit: usize,
    /// What its requests may hold.
    pub limits: Limits,
    /// What became of its requests, for `/metrics`.
    pub counts: Counts,
    /// Digest of those settings.
    settings_digest: Digest,
    /// Its part of the host's memory.
    memory: Share,
    latency: Latency,
    answered: AtomicU64,
    failed: AtomicU64,
    in_flight: AtomicUsize,
    idle: Notify,
    /// Those that drained when this one was routed: sequences may go on there.
    before: Mutex<Vec<Weak<Served>>>,
}

impl Served {
    /// Takes an opened package over. `memory_before` is what the host took before it was opened.
    pub fn new(
        predictor: Arc<dyn Predictor>,
        settings: BTreeMap<String, String>,
        memory_before: u64,
    ) -> Arc<Self> {
        let manifest = predictor.manifest();
        let module = &manifest.module;
        let limits = Limits::for_package(module.tensor_mib);
        let models = predictor.models().iter().map(|(name, digest)| (name.as_str(), *digest));
        Arc::new(Self {
            gate: Gate::new(module, shares::own()),
            batcher: module.batching.map(|batching| Batcher::new(batching, limits.tensor_bytes)),
            answerer: Arc::new(Answerer::new(
                manifest.name.to_string(),
                manifest.version.to_string(),
                provenance(predictor.digest(), manifest.release, models),
            )),
            json_limit: json_limit(manifest),
            limits,
            counts: Counts::default(),
            settings_digest: settings_digest(&settings),
            settings,
            memory: Share::since(memory_before),
            latency: Latency::default(),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            before: Mutex::default(),
            predictor,
        })
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        self.predictor.manifest()
    }

    /// Its version as clients write it.
    pub fn version(&self) -> &str {
        &self.answerer.version
    }

    /// Name and digest.
    pub fn reference(&self) -> PackageRef {
        PackageRef { name: self.manifest().name.clone(), digest: self.predictor.digest() }
    }

    /// Wall time that a request may take.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.manifest().module.deadline_ms.into())
    }

    /// Whether a client that writes `version` means this one: the version, or the release number.
    pub fn is_version(&self, version: &str) -> bool {
        self.version() == version || self.manifest().release.to_string() == version
    }

    /// Counts a request that was answered well, and in what time.
    pub fn answered(&self, took: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.latency.add(took);
    }

    /// Counts a request that failed by the package's fault.
    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// How it stands, where the host takes so many bytes of memory of its own.
    pub fn status(&self, state: PackageState, memory: u64) -> PackageStatus {
        PackageStatus {
            package: self.reference(),
            version: self.version().to_owned(),
            release: self.manifest().release,
            state,
            requests: self.answered.load(Ordering::Relaxed),
            failures: self.failed.load(Ordering::Relaxed),
            settings: Some(self.settings_digest),
            latency_ms: self.latency.percentile(95).as_secs_f64() * 1e3,
            memory: self.memory(memory),
        }
    }

    /// What it takes, where the host takes so many bytes of memory of its own.
    pub fn memory(&self, memory: u64) -> u64 {
        self.memory.of(memory)
    }

    /// It is open, and has run its first cases: what that took is charged to it alone.
    pub fn opened(&self) {
        self.memory.opened();
    }

    /// Holds it for a request.
    pub fn hold(self: &Arc<Self>) -> Held {
        self.hold_as(Asked::ByVersion)
    }

    /// Holds it for a request that named the model in this way.
    pub fn hold_as(self: &Arc<Self>, asked: Asked) -> Held {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Held(Arc::clone(self), asked)
    }

    /// How many sequences it has.
    pub fn sequences(&self) -> usize {
        self.predictor.sequences().map_or(0, Sequences::count)
    }

    /// Ends its sequences, those that run with their request; none begins.
    pub fn end_sequences(&self) {
        self.predictor.sequences().map(Sequences::end_all);
    }

    /// The same but for freeing what they keep, which takes its time: that is [`Self::end_closed`].
    pub fn close_sequences(&self) {
        self.predictor.sequences().map(Sequences::close);
    }

    /// Frees what its closed sequences keep.
    pub fn end_closed(&self) {
        self.predictor.sequences().map(Sequences::end_closed);
    }

    /// Sequences may begin on it, which is routed.
    pub fn open_sequences(&self) {
        self.predictor.sequences().map(Sequences::open_again);
    }

    /// Time that its sequences have to end when another release takes over: as long as one may go without a
    /// request, and none where they have been ended.
    pub fn sequence_time(&self) -> Duration {
        let going_on = self.predictor.sequences().filter(|its| its.count() > 0 && !its.is_closed());
        going_on.map_or(Duration::ZERO, Sequences::idle_time)
    }

    /// A sequence begins here: it does not go on in the releases that this one has taken over from.
    pub fn begins(&self, id: &Id) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for served in before.iter().filter_map(Weak::upgrade) {
            served.predictor.sequences().inspect(|its| its.end(id));
        }
    }

    /// It takes over from these.
    pub fn follow(&self, before: Vec<Weak<Self>>) {
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = before;
    }

    /// Whether no request holds it, and no sequence may go on.
    pub fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0 && self.sequences() == 0
    }

    /// Waits until no request holds it and it has no sequences.
    pub async fn idle(&self) {
        let mut sequences = self.predictor.sequences().map(Sequences::live);
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.is_idle() {
                return;
            }
            match &mut sequences {
                None => notified.await,
                Some(live) => tokio::select! {
                    () = notified => {}
                    // Its sender is the package's, which this holds.
                    _ = live.changed() => {}
                },
            }
        }
    }
}

/// How a request names its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// By its name: whichever release is routed.
    ByName,
    /// By its version, too.
    ByVersion,
}

/// A package held by a request: it is not dropped before this is.
pub struct Held(Arc<Served>, Asked);

impl Held {
    /// Holds it once more, for what may outlive the request.
    pub fn again(&self) -> Self {
        self.0.hold_as(self.1)
    }

    /// The release that this one has taken over from and that has the sequence of which this is no first request,
    /// unless the request names a version.
    pub fn holder(&self, part: &Part) -> Option<Self> {
        let has = |served: &Served| served.predictor.sequences().is_some_and(|its| its.has(&part.id));
        if self.1 == Asked::ByVersion || part.first || has(&self.0) {
            return None;
        }
        let before = self.0.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.iter().filter_map(Weak::upgrade).find(|served| has(served)).map(|served| served.hold())
    }
}

impl Held {
    /// The package, which this does not hold for any request.
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.0)
    }
}

impl std::ops::Deref for Held {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The longest JSON body: what the package's tensors may take, and where every shape is fixed no
/// more than that many elements can be written in.
fn json_limit(manifest: &Manifest) -> usize {
    let most = u64::from(manifest.module.tensor_mib) << 20;
    let elements = manifest.inputs.iter().try_fold(0_u64, |sum, input| {
        input.datatype.size()?;
        let count = input
            .shape
            .iter()
            .try_fold(1_u64, |product, &extent| product.checked_mul(u64::try_from(extent).ok()?));
        sum.checked_add(count?)
    });
    let needed = elements.and_then(|count| count.checked_mul(TEXT_PER_ELEMENT)?.checked_add(TEXT_BESIDE));
    usize::try_from(needed.map_or(most, |needed| needed.min(most).max(TEXT_BESIDE))).unwrap_or(usize::MAX)
}
