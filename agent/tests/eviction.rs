//! What goes when there is no room, and in which order, whatever the device holds: packages that were kept
//! for later and what nobody needs, then what is on its way; never a blob of a release that is committed, was
//! committed before it, is staged or on trial.
#![allow(clippy::unwrap_used)]

mod hostless;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hostless::driver;
use proptest::prelude::*;
use selvedge_agent::clock;
use selvedge_agent::store::{Key, RealDisk, Store};
use selvedge_deployment::{Committed, Health, Release, Rules, Slot, Stage, State, StateRecord};
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::chunks::ChunkIndex;
use selvedge_package::{Digest, Manifest, PackageName};
use serde_json::json;

/// What is held of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Committed,
    Previous,
    Staged,
    Fetching,
    Prefetched,
    Garbage,
}

const ALL: [Held; 6] =
    [Held::Committed, Held::Previous, Held::Staged, Held::Fetching, Held::Prefetched, Held::Garbage];

/// A release; the models of some are the same.
fn package(name: &str, release: u64, model: u8) -> (Built, Vec<Vec<u8>>) {
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1, "name": name, "version": format!("{release}.0.0"), "release": release,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
    }))
    .unwrap();
    let model = vec![model; 3000];
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), &model).unwrap();
    builder.bytes("c.json".parse().unwrap(), b"{}").unwrap();
    let built = builder.build().unwrap();
    let blobs = [built.manifest.clone(), b"{}".to_vec(), model];
    let blobs = blobs.into_iter().chain(built.blobs.iter().map(|b| b.1.clone())).collect();
    (built, blobs)
}

fn check(held: &[Vec<(Held, u8)>]) {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(Arc::new(RealDisk), place.path()).unwrap();
    let (mut needed, mut manifests, mut gone, mut partial) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), None);
    let mut state = State { desired: 1, ..State::default() };
    let mut prefetched = BTreeSet::new();
    for (n, releases) in held.iter().enumerate() {
        let name: PackageName = format!("p{n}").parse().unwrap();
        let mut slot = Slot::default();
        let mut taken = Vec::new();
        for (counter, (held, model)) in (1..).zip(releases) {
            // One release of a slot for each.
            if taken.contains(held) && !matches!(held, Held::Prefetched | Held::Garbage) {
                continue;
            }
            // Two things cannot be on their way at once.
            let way = [Held::Staged, Held::Fetching];
            if way.contains(held) && taken.iter().any(|taken| way.contains(taken)) {
                continue;
            }
            taken.push(*held);
            let (built, blobs) = package(name.as_str(), counter, *model);
            let release = Release {
                digest: built.bundle.digest(),
                length: built.bundle.length(),
                release: counter,
                min_release: 0,
                settings: BTreeMap::new(),
            };
            let digests: Vec<Digest> = blobs.iter().map(|bytes| Digest::of(bytes)).collect();
            match held {
                Held::Committed => {
                    slot.wanted.get_or_insert_with(|| release.clone());
                    let rules = Rules::default();
                    slot.committed = Some(Committed { release, rules, health: Health::SOUND });
                }
                Held::Previous => slot.previous = Some((release, Rules::default())),
                Held::Staged => {
                    slot.wanted = Some(release.clone());
                    slot.stage =
                        Stage::Staged { release, rules: Rules::default(), attempts: 0, proved_ms: 0 };
                }
                Held::Fetching => {
                    slot.wanted = Some(release.clone());
                    slot.stage = Stage::Fetching(release);
                }
                Held::Prefetched => drop(prefetched.insert(release.digest)),
                Held::Garbage => {}
            }
            if *held == Held::Fetching {
                // Its manifests have come; its model is on its way, unless another release has it.
                manifests.extend(digests.iter().copied());
                for bytes in blobs.iter().filter(|bytes| bytes.len() != 3000) {
                    store.put_blob(bytes).unwrap();
                }
                partial = Some(blobs.iter().find(|bytes| bytes.len() == 3000).unwrap().clone());
                continue;
            }
            for bytes in &blobs {
                store.put_blob(bytes).unwrap();
            }
            let to = if matches!(held, Held::Prefetched | Held::Garbage) { &mut gone } else { &mut needed };
            to.extend(digests);
        }
        state.slots.insert(name, slot);
    }
    // A release before the committed one without a committed one cannot be.
    state.slots.values_mut().filter(|slot| slot.committed.is_none()).for_each(|slot| slot.previous = None);
    let stored = selvedge_deployment::stored(&state);
    needed.retain(|digest| kept(&store, &stored, digest));
    store.prefetch(&prefetched).unwrap();
    store.database().write(|t| t.put(Key::Deployment, &StateRecord::from(state.clone()))).unwrap();
    let mut way = None;
    if let Some(model) = partial.filter(|model| !store.has(&Digest::of(model)).unwrap()) {
        let digest = Digest::of(&model);
        let index = ChunkIndex::without_index(digest, model.len() as u64).unwrap();
        drop(store.partial(digest, index).unwrap());
        way = Some(store.root().join("partial").join(digest.hex()));
    }
    gone.retain(|digest| !needed.contains(digest) && !manifests.contains(digest));

    // Too little room for what is on its way: what was kept for later goes.
    let (mut activation, _) = driver(&store);
    activation.give_up_prefetched(|_| true).unwrap();
    activation.pursue().unwrap();
    let all = |digests: &BTreeSet<Digest>, there: bool| {
        digests.iter().all(|digest| store.has(digest).unwrap() == there)
    };
    assert!(all(&needed, true), "something that is needed has gone");
    assert!(all(&gone, false), "something that nobody needs is there");
    assert!(way.as_ref().is_none_or(|way| way.exists()), "what is on its way went too early");

    // Full to the last: what is on its way goes, and nothing more.
    activation.connected(131_072);
    activation.make_room(clock::since_boot() + Duration::from_secs(600));
    assert!(way.is_none_or(|way| !way.exists()), "what is on its way takes up room");
    assert!(all(&needed, true), "something that is needed has gone");
    activation.make_room(clock::since_boot());
    activation.pursue().unwrap();
    assert!(all(&needed, true), "something that is needed has gone");
}

/// Whether a blob belongs to one of these releases.
fn kept(store: &Store, releases: &BTreeSet<Digest>, digest: &Digest) -> bool {
    releases.iter().any(|release| match store.bundle(release) {
        Ok(Some(Ok(bundle))) => {
            bundle.digest() == *digest || bundle.blobs().iter().any(|blob| blob.digest == *digest)
        }
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_held(
        held in prop::collection::vec(
            prop::collection::vec((prop::sample::select(&ALL[..]), 0u8..4), 0..6), 1..3),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { check(&held) });
    }
}
