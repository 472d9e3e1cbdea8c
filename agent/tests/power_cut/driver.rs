//! Everything that the agent writes down during a first install, an update, a rollback, a garbage
//! collection and a change of roots, each operation on the disk cut once before, once in the middle and
//! once after it.
//!
//! The real acceptance, driver, transfers and reports run; registry and host are played. After each cut
//! the device starts again, at first without a registry: what was committed, or a trial that was written
//! down, answers. Then the registry is there, and it ends as if nothing had happened.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use selvedge_agent::store::{Disk, Key, Store};
use selvedge_deployment::{Phase, Stage, State, StateRecord};
use selvedge_package::Digest;
use selvedge_package::trust::{MetadataBundle, TrustState};
use selvedge_signing::roots::{RootSpec, sign_root};
use serde_json::json;

use crate::device::{Failure, Life, Promised, ROOT, Surroundings};
use crate::disk::{CutDisk, Loss, Moment};
use crate::world::{DEVICE, World, package};

/// What an install or an update may write besides its package, in bytes, and how often it may make something
/// durable: docs/agent.md says so. A larger package adds its bytes, and two for every 4 MiB.
const BESIDES: u64 = 1 << 20;
const SYNCS: u64 = 150;

/// Where a part ends.
#[derive(Clone, Default)]
struct End {
    /// Which release answers, as a place in the world.
    serving: Option<usize>,
    /// Releases of which everything is kept.
    kept: Vec<usize>,
    /// Which release was not kept.
    failed: Option<usize>,
    generation: u64,
    roots: u64,
}

struct Part {
    around: Surroundings,
    /// The device when the part begins.
    before: CutDisk,
    offers: Vec<MetadataBundle>,
    end: End,
}

/// Three releases of one package, of which the second is on probation for an hour.
fn world() -> World {
    let probation = json!({ "activation": { "probation-seconds": 3600 } });
    World::new(vec![package("p", 1, json!({})), package("p", 2, json!({})), package("p", 3, probation)])
}

fn around(world: &mut World) -> Surroundings {
    let known = Arc::new(std::mem::take(&mut world.packages));
    let blobs = known.iter().flat_map(|p| &p.blobs).map(|bytes| (Digest::of(bytes), bytes.clone())).collect();
    let place = tempfile::tempdir().unwrap();
    let launcher = place.path().join("launcher");
    let probed = json!({ "package": { "package": { "name": "p", "digest": Digest::of(b"") },
        "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 } });
    std::fs::write(&launcher, format!("#!/bin/sh\necho '{probed}'\n")).unwrap();
    std::fs::set_permissions(&launcher, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let enrolment = serde_json::from_value(world.enrolment()).unwrap();
    Surroundings { place, enrolment, known, blobs, refused: BTreeSet::new(), crashing: BTreeSet::new() }
}

fn live<T>(life: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(life)
}

impl Part {
    /// A device that has gone through these offers, and is to take these; nothing is cut yet.
    fn new(before: &[&[usize]], offers: &[&[usize]], end: End) -> Self {
        Self::with(before, offers, end, |_, _| {})
    }

    fn with(
        before: &[&[usize]],
        offers: &[&[usize]],
        end: End,
        change: impl Fn(&mut World, &mut Vec<MetadataBundle>),
    ) -> Self {
        let mut world = world();
        let bundles = |world: &World, offers: &[&[usize]], from: u64| -> Vec<_> {
            (from..).zip(offers).map(|(sequence, offer)| world.bundle(sequence, DEVICE, offer)).collect()
        };
        let first = bundles(&world, before, 1);
        let mut offers = bundles(&world, offers, before.len() as u64 + 1);
        change(&mut world, &mut offers);
        let mut part =
            Self { around: around(&mut world), before: CutDisk::new(), offers: first, end: End::default() };
        // The last of what went before is what is kept.
        if let Some(last) = before.last() {
            part.end = End { roots: 1, ..part.kept_after(before) };
            part.end.serving = last.first().copied();
            let disk = CutDisk::new();
            part.run(&disk, &mut Promised::default()).unwrap();
            part.before = disk.restart(Loss::Nothing);
        }
        Self { offers, end, ..part }
    }

    fn kept_after(&self, offers: &[&[usize]]) -> End {
        let kept = offers.iter().rev().take(2).flat_map(|offer| offer.iter().copied()).collect();
        End { kept, generation: offers.len() as u64, ..End::default() }
    }

    /// A release came by a file, before the part begins: nothing of it has to be fetched.
    fn stock(&self, n: usize) {
        let store = Store::open(Arc::new(self.before.clone()), Path::new(ROOT)).unwrap();
        store.prefetch(&BTreeSet::from([self.digest(n)])).unwrap();
        for bytes in &self.around.known[n].blobs {
            store.put_blob(bytes).unwrap();
        }
    }

    fn digest(&self, n: usize) -> Digest {
        self.around.known[n].built.bundle.digest()
    }

    /// A life without registry at first, where something is committed until it answers; then with one, to
    /// the end.
    fn run(&self, disk: &CutDisk, promised: &mut Promised) -> Result<(), Failure> {
        live(async {
            let mut life = Life::start(&self.around, disk, promised)?;
            let result = self.go_on(&mut life).await;
            *promised = life.promised.clone();
            let faults = std::mem::take(&mut life.host.lock().unwrap().faults);
            assert!(faults.is_empty(), "{faults:?}");
            let trouble = |kind: &&String| kind.contains("disk") || kind.contains("corrupt");
            assert_eq!(life.told.iter().find(trouble), None, "{:?}", life.told);
            result
        })
    }

    async fn go_on(&self, life: &mut Life<'_>) -> Result<(), Failure> {
        let committed = life.activation.state().slots.values().any(|slot| slot.committed.is_some());
        life.host_up()?;
        if committed {
            life.until("answer without a registry", |life| !life.host.lock().unwrap().serving().is_empty())
                .await?;
        }
        life.until("a ready host", |life| life.host.lock().unwrap().ready).await?;
        life.connected()?;
        for (n, offer) in self.offers.iter().enumerate() {
            // The registry offers nothing that the device says it has.
            if sequence(offer) > life.trust.sequence() {
                life.offer(offer)?;
            }
            let last = n + 1 == self.offers.len();
            if !last {
                life.until("rest between two offers", |life| is_quiet(life)).await?;
            }
        }
        let seen = Cell::new(String::new());
        let ended = life.until("end", |life| match self.lacks(life) {
            None => true,
            Some(what) => {
                seen.set(what);
                false
            }
        });
        ended.await.map_err(|error| format!("{error}; lacking: {}", seen.take()))?;
        life.acknowledged()
    }

    /// What keeps a life from being at the part's end.
    fn lacks(&self, life: &Life<'_>) -> Option<String> {
        let End { serving, kept, failed, generation, roots } = &self.end;
        let served: Vec<_> = serving.iter().map(|n| self.digest(*n)).collect();
        let host = life.host.lock().unwrap();
        if host.serving() != served || host.packages.len() != served.len() || !host.ready {
            return Some(format!("the host has {:?}", host.packages));
        }
        let state = life.activation.state();
        let slot = state.slots.values().next();
        let stage = slot.map_or(&Stage::Idle, |slot| &slot.stage);
        let committed = slot.and_then(|slot| slot.committed.as_ref()).map(|c| c.release.digest);
        let failure = slot.and_then(|slot| slot.failure.as_ref()).map(|failure| failure.digest);
        if *stage != Stage::Idle
            || committed.as_ref() != served.first()
            || failure != failed.map(|n| self.digest(n))
            || state.generation != *generation
        {
            return Some(format!("the state is {state:?}"));
        }
        let found = life.trust.director_root_version().unwrap();
        if found != *roots {
            return Some(format!("root {found}"));
        }
        let blobs =
            kept.iter().flat_map(|n| &self.around.known[*n].blobs).map(|bytes| Digest::of(bytes).hex());
        let packages = kept.iter().map(|n| self.digest(*n).hex());
        let expected: [(&str, BTreeSet<String>); 3] = [
            ("blobs/sha256", blobs.collect()),
            ("packages", packages.collect()),
            ("partial", BTreeSet::new()),
        ];
        expected.iter().find_map(|(place, expected)| {
            let found = names(&life.disk, place);
            (found != *expected).then(|| format!("in {place} {found:?} instead of {expected:?}"))
        })
    }

    /// What was promised is there, and nothing is half there.
    fn holds(&self, disk: &CutDisk, promised: &Promised, what: &str) {
        let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT))
            .unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let database = store.database();
        let record: Option<StateRecord> = database.read(Key::Deployment).unwrap();
        let state = record.map(State::from).unwrap_or_default();
        let trust: Option<TrustState> = database.read(Key::Trust).unwrap();
        assert!(trust.is_some() || !promised.enrolled, "{what}: the enrolment was promised");
        let sequence = trust.as_ref().map_or(0, TrustState::sequence);
        assert_eq!(sequence, state.desired, "{what}: trust and deployment are of two moments");
        assert!(sequence >= promised.sequence, "{what}: sequence {} was promised", promised.sequence);
        let roots = trust.as_ref().map_or(0, |trust| trust.director_root_version().unwrap());
        assert!(roots >= promised.roots, "{what}: root {} was promised, {roots} found", promised.roots);
        let promise = &promised.state;
        assert!(rank(&state) >= rank(promise), "{what}: promised {promise:?}, found {state:?}");
        for (package, floor) in &promise.floors {
            assert!(state.floors.get(package) >= Some(floor), "{what}: the floor of {package} has sunk");
        }
        for name in names(disk, "blobs/sha256") {
            if let Ok(digest) = Digest::from_hex(&name) {
                store.check_blob(&digest).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        // What answers can answer again without anybody's help.
        for slot in state.slots.values() {
            let Some(committed) = &slot.committed else { continue };
            let bundle = store.bundle(&committed.release.digest).unwrap().unwrap().unwrap();
            for blob in bundle.blobs() {
                assert!(store.has(&blob.digest).unwrap(), "{what}: {} of what is committed", blob.digest);
            }
        }
    }

    /// Cuts at every operation. Prints and returns how many there were.
    fn sweep(&self, name: &str) -> usize {
        let mut counts = BTreeMap::new();
        let mut twice = 0;
        for operation in 0.. {
            let mut ended = 0;
            for (moment, loss) in [
                (Moment::Before, Loss::Everything),
                (Moment::Middle, Loss::Some(0)),
                (Moment::After, Loss::Everything),
            ] {
                let seed = operation * 2_654_435_761 + 17;
                let loss = if loss == Loss::Some(0) { Loss::Some(seed) } else { loss };
                let disk = self.before.copy();
                disk.cut_at(operation, moment);
                let mut promised = Promised::default();
                let result = self.run(&disk, &mut promised);
                if !disk.is_dead() {
                    result.unwrap_or_else(|error| panic!("{name}: {error}"));
                    ended += 1;
                    continue;
                }
                *counts.entry(format!("{moment:?}")).or_insert(0) += 1;
                let what = format!("{name}, operation {operation}, {moment:?}, {loss:?}");
                let mut disk = disk.restart(loss);
                self.holds(&disk, &promised, &what);
                // Now and then it goes again while the device recovers.
                if operation % 5 == 2 {
                    disk.cut_at(seed % 60, Moment::Middle);
                    let mut promised = Promised::default();
                    let _ = self.run(&disk, &mut promised);
                    if disk.is_dead() {
                        twice += 1;
                        disk = disk.restart(Loss::Some(seed + 1));
                        self.holds(&disk, &promised, &format!("{what}, and again at {}", seed % 60));
                    }
                }
                disk.cut_at(u64::MAX, Moment::Before);
                let mut after = Promised::default();
                self.run(&disk, &mut after).unwrap_or_else(|error| panic!("{what}: {error}"));
                self.holds(&disk, &after, &what);
            }
            if ended == 3 {
                break;
            }
        }
        let points: usize = counts.values().sum();
        say(&format!(
            "{name}: {points} cut points ({counts:?}), none skipped; {twice} cut again while recovering"
        ));
        points
    }
}

/// Counts are printed, and kept where a file for them is named.
pub fn say(counted: &str) {
    use std::io::Write;
    println!("{counted}");
    if let Some(file) = std::env::var_os("SELVEDGE_COUNTS") {
        let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
        file.write_all(format!("power cut: {counted}\n").as_bytes()).unwrap();
    }
}

fn sequence(offer: &MetadataBundle) -> u64 {
    let assignment: serde_json::Value = serde_json::from_slice(&offer.assignment).unwrap();
    assignment["sequence"].as_u64().unwrap()
}

fn is_quiet(life: &Life<'_>) -> bool {
    let host = life.host.lock().unwrap();
    let committed = life.activation.state().slots.values().filter_map(|slot| slot.committed.as_ref());
    let committed: Vec<_> = committed.map(|committed| committed.release.digest).collect();
    life.activation.state().slots.values().all(|slot| slot.stage == Stage::Idle)
        && host.serving() == committed
}

fn names(disk: &CutDisk, place: &str) -> BTreeSet<String> {
    disk.list(&Path::new(ROOT).join(place)).unwrap_or_default().into_iter().collect()
}

/// How far a state is: what was written down later is further.
fn rank(state: &State) -> (u64, u64, u32) {
    let Some(slot) = state.slots.values().next() else { return (state.desired, state.generation, 0) };
    let stage = match &slot.stage {
        Stage::Idle => u32::MAX,
        Stage::Fetching(_) => 1,
        Stage::Staged { attempts, .. } => 2 + attempts * 4,
        Stage::Trial { attempt, phase, .. } => {
            let phase = match phase {
                Phase::Loading => 0,
                Phase::Accepted => 1,
                Phase::Probation { .. } => 2,
            };
            2 + attempt * 4 - 3 + phase
        }
    };
    (state.desired, state.generation, stage)
}

#[test]
fn a_first_install() {
    let end = End { serving: Some(0), kept: vec![0], generation: 1, roots: 1, ..End::default() };
    let points = Part::new(&[], &[&[0]], end).sweep("first install");
    assert!(points > 300, "only {points}");
}

#[test]
fn an_update() {
    let end = End { serving: Some(1), kept: vec![0, 1], generation: 2, roots: 1, ..End::default() };
    let points = Part::new(&[&[0]], &[&[1]], end).sweep("update");
    assert!(points > 200, "only {points}");
}

#[test]
fn a_rollback_of_what_is_refused() {
    let end = End { serving: Some(0), kept: vec![0], failed: Some(1), generation: 1, roots: 1 };
    let mut part = Part::new(&[&[0]], &[&[1]], end);
    part.around.refused.insert(part.digest(1));
    part.stock(1);
    let points = part.sweep("rollback of a refused release");
    assert!(points > 200, "only {points}");
}

#[test]
fn a_rollback_of_what_crashes_on_probation() {
    let end = End { serving: Some(0), kept: vec![0], failed: Some(2), generation: 1, roots: 1 };
    let mut part = Part::new(&[&[0]], &[&[2]], end);
    part.around.crashing.insert(part.digest(2));
    part.stock(2);
    let points = part.sweep("rollback of a release that crashes on probation");
    assert!(points > 200, "only {points}");
}

#[test]
fn a_collection_of_what_nothing_needs() {
    let end = End { generation: 3, roots: 1, ..End::default() };
    let points = Part::new(&[&[0], &[1]], &[&[]], end).sweep("collection");
    assert!(points > 60, "only {points}");
}

#[test]
fn a_way_back_to_the_release_before() {
    let end = End { serving: Some(0), kept: vec![0, 1], generation: 3, roots: 1, ..End::default() };
    let points = Part::new(&[&[0], &[1]], &[&[0]], end).sweep("way back");
    assert!(points > 60, "only {points}");
}

#[test]
fn a_change_of_roots_with_an_assignment() {
    let end = End { serving: Some(0), kept: vec![0], generation: 1, roots: 3, ..End::default() };
    let part = Part::with(&[&[0]], &[&[0]], end, |world, offers| {
        let mut spec = RootSpec::read(&world.roots.director).unwrap();
        for _ in 0..2 {
            spec.version += 1;
            let root = sign_root(&spec, &[&world.keys.director_root]).unwrap();
            offers[0].director.roots.push(root);
        }
    });
    let points = part.sweep("change of roots");
    assert!(points > 30, "only {points}");
}

#[test]
fn what_an_install_and_an_update_cost_a_memory_card() {
    let first = End { serving: Some(0), kept: vec![0], generation: 1, roots: 1, ..End::default() };
    let next = End { serving: Some(1), kept: vec![0, 1], generation: 2, roots: 1, ..End::default() };
    for (name, part, package) in [
        ("first install", Part::new(&[], &[&[0]], first), 0),
        ("update", Part::new(&[&[0]], &[&[1]], next), 1),
    ] {
        let disk = part.before.copy();
        part.run(&disk, &mut Promised::default()).unwrap();
        let wear = disk.wear();
        let size: u64 = part.around.known[package].blobs.iter().map(|bytes| bytes.len() as u64).sum();
        let besides = wear.bytes - size;
        println!("{name}: {size} bytes of package, {besides} besides, {} times made durable", wear.syncs);
        assert!(besides < BESIDES && wear.syncs < SYNCS, "{name}: {besides} bytes, {} syncs", wear.syncs);
    }
}
