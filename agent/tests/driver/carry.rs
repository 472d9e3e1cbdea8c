//! Blobs on their way: what a registry sends that the test plays, and what the driver makes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_agent::budget;
use selvedge_deployment::Stage;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::trust::Assignment;
use selvedge_package::{Digest, Manifest};
use selvedge_protocol::block::{answer, block_frame};
use selvedge_protocol::message::Need;
use serde_json::json;

use crate::bench::{Bench, PATIENCE, assignment, driver_with};

const MIB: usize = 1 << 20;
const GLANCE: Duration = Duration::from_millis(1);

/// A registry that has everything.
#[derive(Default)]
struct Blobs(BTreeMap<Digest, Vec<u8>>);

impl Blobs {
    fn keep(&mut self, built: &Built, model: &[u8]) {
        for bytes in [&built.manifest, &model.to_vec(), &b"{}".to_vec()] {
            self.0.insert(Digest::of(bytes), bytes.clone());
        }
        self.0.extend(built.blobs.iter().cloned());
    }

    fn frames(&self, need: &Need) -> Vec<Vec<u8>> {
        let bytes = &self.0[&need.digest];
        let spans = answer(need, bytes.len() as u64).unwrap();
        let of = |offset: u64, length: u32| &bytes[offset as usize..][..length as usize];
        spans
            .map(|span| block_frame(need.transfer, span.number, of(span.offset, span.length)).unwrap())
            .collect()
    }
}

fn package(name: &str, release: u64, model: &[u8]) -> Built {
    let manifest: Manifest = serde_json::from_value(json!({
        "format": 1, "name": name, "version": format!("{release}.0.0"), "release": release,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
    }))
    .unwrap();
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), model).unwrap();
    builder.bytes("c.json".parse().unwrap(), b"{}").unwrap();
    builder.build().unwrap()
}

fn model(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|n| (n / 251) as u8 ^ (n as u8).wrapping_mul(seed | 1)).collect()
}

impl Bench {
    /// Carries what is asked of the registry and what it answers, until that is so; the bytes that came. What the
    /// device does beside its loop is over before the next bytes come: a disk's pace decides nothing.
    async fn carry(&mut self, blobs: &Blobs, what: &str, enough: impl Fn(&Self) -> bool) -> usize {
        let mut came = 0;
        let carried = tokio::time::timeout(PATIENCE, async {
            loop {
                self.settle_down().await;
                let errands = self.activation.errands();
                self.told.extend(errands.told.into_iter().map(|told| told.kind.to_owned()));
                let nothing_to_do = errands.needs.is_empty();
                for need in errands.needs {
                    for frame in blobs.frames(&need) {
                        came += frame.len();
                        self.activation.frame(&frame).unwrap();
                    }
                }
                if enough(self) {
                    return;
                }
                // Chunks are kept and trials are run beside the loop, too.
                if nothing_to_do {
                    tokio::time::sleep(GLANCE).await;
                    self.activation.tick().unwrap();
                }
                tokio::task::yield_now().await;
            }
        });
        let carried = carried.await.is_ok();
        assert!(carried, "no {what}: {:?}, told {:?}", self.slot(), self.told);
        came
    }

    /// Takes every outcome that is there, and waits for blobs that are opened or put into their place.
    async fn settle_down(&mut self) {
        loop {
            let outcome = match self.outcomes.try_recv() {
                Ok(outcome) => outcome,
                Err(_) if self.activation.storing() > 0 => self.outcomes.recv().await.unwrap(),
                Err(_) => return,
            };
            self.activation.take(outcome).unwrap();
        }
    }
}

fn staged(bench: &Bench) -> bool {
    matches!(bench.slot().stage, Stage::Staged { .. })
}

#[tokio::test]
async fn a_used_up_budget_holds_blobs_and_outlives_the_agent() {
    let mut bench = Bench::new().await;
    let bytes = model(3, 3 * MIB);
    let built = package("p", 1, &bytes);
    let mut blobs = Blobs::default();
    blobs.keep(&built, &bytes);
    let traffic = budget::Settings { per_day: Some(MIB as u64), ..Default::default() };
    let limited = |bench: &mut Bench| {
        (bench.activation, bench.outcomes) = driver_with(bench.place.path(), &bench.store, traffic.clone());
        bench.activation.connected(128 * 1024);
        bench.activation.pursue().unwrap();
    };
    limited(&mut bench);
    bench.desire(1, &[&built]);
    let told = |b: &Bench| b.told.contains(&"budget".to_owned());
    let came = bench.carry(&blobs, "end of the budget", told).await;
    assert!(came <= MIB, "{came} bytes of {MIB}");
    assert!(came > MIB * 9 / 10, "{came} bytes of {MIB}");
    let why = bench.activation.metering().unwrap();
    assert!(why.starts_with("budget: the 1 MiB"), "{why}");
    assert!(bench.activation.wake_at().is_some(), "it goes on by itself");

    // A new agent knows what the old one used, however that ended.
    limited(&mut bench);
    let idle = bench.carry(&blobs, "word of the budget", |b| b.activation.metering().is_some()).await;
    assert_eq!(idle, 0);
    assert_eq!(bench.activation.errands().needs.len(), 0);

    // A desired state is no cargo.
    bench.activation.pull(Digest::of(b"state"), 5).unwrap();
    assert_eq!(bench.activation.errands().needs.len(), 1);

    // Without a limit the same bytes go on where they stopped.
    (bench.activation, bench.outcomes) =
        driver_with(bench.place.path(), &bench.store, budget::Settings::default());
    bench.activation.connected(128 * 1024);
    bench.activation.pursue().unwrap();
    let rest = bench.carry(&blobs, "the rest", staged).await;
    assert!(rest < 3 * MIB - came + 200_000, "{rest} bytes more, after {came}");
}

#[tokio::test]
async fn a_desired_state_that_moves_on_ends_the_transfer_at_once_and_keeps_what_came() {
    let mut bench = Bench::new().await;
    bench.activation.connected(128 * 1024);
    let (old, new) = (model(3, 3 * MIB), model(5, 200_000));
    let (first, second) = (package("p", 1, &old), package("p", 2, &new));
    let mut blobs = Blobs::default();
    blobs.keep(&first, &old);
    blobs.keep(&second, &new);
    bench.desire(1, &[&first]);
    let had =
        |b: &Bench, bytes: u64| b.activation.transfers().any(|t| t.size > 3_000_000 && t.bytes >= bytes);
    bench.carry(&blobs, "two megabytes", |b| had(b, 2_000_000)).await;
    bench.desire(2, &[&second]);
    let transfers: Vec<u64> = bench.activation.transfers().map(|transfer| transfer.size).collect();
    assert!(transfers.iter().all(|size| *size < 3_000_000), "{transfers:?}");
    let needs = bench.activation.errands().needs;
    assert!(needs.iter().all(|need| need.digest != Digest::of(&old)), "{needs:?}");
    // Back again before anything else: what had come is still there.
    bench.desire(3, &[&first]);
    let rest = bench.carry(&blobs, "the rest of the first", staged).await;
    assert!(rest < 1_300_000, "{rest} bytes again");
}

#[tokio::test]
async fn an_index_that_contradicts_its_blob_ends_the_release() {
    let mut bench = Bench::new().await;
    bench.activation.connected(128 * 1024);
    let (said, meant) = (model(3, 300_000), model(5, 300_000));
    let built = package("p", 1, &said);
    // The manifest names another blob than its index describes; the registry has what the index says.
    let text = String::from_utf8(built.manifest.clone()).unwrap();
    let (right, wrong) = (Digest::of(&said), Digest::of(&meant));
    let forged = text.replace(&right.hex(), &wrong.hex()).into_bytes();
    assert_ne!(forged, built.manifest);
    let mut blobs = Blobs::default();
    blobs.keep(&built, &said);
    blobs.0.insert(Digest::of(&forged), forged.clone());
    blobs.0.insert(wrong, said.clone());
    let honest = assignment(&built);
    let forged = Assignment { digest: Digest::of(&forged), length: forged.len() as u64, ..honest };
    bench.desire_with(1, vec![forged]);
    let came = bench.carry(&blobs, "a failure", |b| b.slot().failure.is_some()).await;
    let failure = bench.slot().failure.unwrap();
    assert_eq!(failure.reason, "bad-index");
    assert!(failure.what.contains("built and released again"), "{}", failure.what);
    assert!(came < 400_000, "it was fetched once: {came} bytes");
    assert_eq!(bench.activation.errands().needs.len(), 0);
}

#[tokio::test]
async fn a_small_package_passes_two_large_ones() {
    let mut bench = Bench::new().await;
    bench.activation.connected(128 * 1024);
    let mut blobs = Blobs::default();
    let mut assignments = Vec::new();
    for (name, size) in [("a", 4 * MIB), ("b", 4 * MIB), ("c", 4 * MIB), ("small", 100_000)] {
        let bytes = model(name.as_bytes()[0], size);
        let built = package(name, 1, &bytes);
        blobs.keep(&built, &bytes);
        assignments.push(assignment(&built));
    }
    bench.desire_with(1, assignments);
    let is_staged = |b: &Bench, name: &str| {
        let slot = &b.activation.state().slots[&name.parse().unwrap()];
        matches!(slot.stage, Stage::Staged { .. })
    };
    let came = bench.carry(&blobs, "the small one", |b| is_staged(b, "small")).await;
    assert!(came < 6 * MIB, "{came} bytes came before the smallest package was whole");
    let all = ["a", "b", "c"];
    bench.carry(&blobs, "all", |b| all.iter().all(|name| is_staged(b, name))).await;
}

/// Four packages of which everything but the models has come: three of those are under way, and the fourth waits
/// for a place. What was asked for of them; nothing where three were begun before the fourth's index came.
async fn three_of_four() -> Option<(Bench, Blobs, Vec<(Digest, Digest)>, Vec<Need>)> {
    let mut bench = Bench::new().await;
    bench.activation.connected(128 * 1024);
    let (mut blobs, mut assignments, mut models) = (Blobs::default(), Vec::new(), Vec::new());
    for name in ["a", "c", "e", "g"] {
        let bytes = model(name.as_bytes()[0], 200_000);
        let built = package(name, 1, &bytes);
        blobs.keep(&built, &bytes);
        assignments.push(assignment(&built));
        models.push((Digest::of(&bytes), built.bundle.index_of(&Digest::of(&bytes)).unwrap().digest));
    }
    bench.desire_with(1, assignments);
    let mut asked: Vec<Need> = Vec::new();
    let is_model = |digest: &Digest| models.iter().any(|(model, _)| model == digest);
    let three = |b: &Bench| running(b).len() == 3 && running(b).iter().all(is_model);
    let indexed = |b: &Bench| models.iter().all(|(_, index)| b.store.has(index).unwrap());
    while !(three(&bench) && bench.activation.storing() == 0) {
        for need in bench.activation.errands().needs {
            match is_model(&need.digest) {
                true => asked.push(need),
                false => blobs.frames(&need).iter().for_each(|frame| bench.activation.frame(frame).unwrap()),
            }
        }
        while let Ok(outcome) = bench.outcomes.try_recv() {
            bench.activation.take(outcome).unwrap();
        }
        tokio::task::yield_now().await;
    }
    indexed(&bench).then_some((bench, blobs, models, asked))
}

fn running(bench: &Bench) -> Vec<Digest> {
    bench.activation.transfers().map(|transfer| transfer.digest).collect()
}

#[tokio::test]
async fn an_index_that_vanishes_before_its_blob_is_begun_is_fetched_again() {
    let mut found = None;
    for _ in 0..50 {
        found = three_of_four().await;
        if found.is_some() {
            break;
        }
    }
    let (mut bench, blobs, models, mut asked) = found.expect("a fourth model that waits for a place");
    let begun = running(&bench);
    let (_, index) = models.iter().find(|(model, _)| !begun.contains(model)).unwrap();
    std::fs::remove_file(bench.place.path().join("data/blobs/sha256").join(index.hex())).unwrap();
    // One becomes whole: its place is the fourth's.
    asked.extend(bench.activation.errands().needs);
    for need in asked {
        blobs.frames(&need).iter().for_each(|frame| bench.activation.frame(frame).unwrap());
    }
    let all = |b: &Bench| {
        b.activation.state().slots.values().all(|slot| matches!(slot.stage, Stage::Staged { .. }))
    };
    bench.carry(&blobs, "all four", all).await;
}
