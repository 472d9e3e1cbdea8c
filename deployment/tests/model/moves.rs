//! What may happen to a device, in terms of the state that it is in: answers to what the plan asks for,
//! well or badly, and noise of any kind.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use selvedge_deployment::*;
use selvedge_package::{Digest, PackageName};

use crate::world::World;

static NAMES: LazyLock<[PackageName; 2]> = LazyLock::new(|| ["file-type", "vad"].map(|n| n.parse().unwrap()));
static DIGESTS: LazyLock<[[Digest; 8]; 2]> = LazyLock::new(|| {
    std::array::from_fn(|p| std::array::from_fn(|number| Digest::of(&[p as u8, number as u8])))
});

/// Something that happens.
#[derive(Debug, Clone)]
pub enum Move {
    /// A desired state with these releases (0 and 6: not assigned; from 6 on with settings), newer by so
    /// much; bits: 1 the Director's keys were changed, 2 and 4 the device's hardware cannot run it.
    Desired([u8; 2], u8, u8),
    /// Effect number n of the plan is done, with outcome m.
    Answer(usize, u8),
    /// An event about release r of package p that nobody asked for.
    Noise(usize, u8, u8),
    /// The host ends; it may be put down to these releases of the two packages.
    HostDied([Option<u8>; 2]),
    /// The agent ends, in order or not, and starts again.
    Restarted(bool),
    /// The machine loses power.
    PowerCut,
    /// So many milliseconds go by.
    Passed(u16),
}

/// A history of one device, of up to so many moves.
pub fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    let suspect = || proptest::option::weighted(0.7, 1u8..6);
    let one = prop_oneof![
        3 => (any::<[u8; 2]>(), 0u8..3, any::<u8>(), any::<bool>())
            .prop_map(|(r, d, bits, odd)| Move::Desired(r.map(|r| r % 12), d, if odd { bits % 8 } else { 0 })),
        14 => (0usize..4, 0u8..12).prop_map(|(n, m)| Move::Answer(n, m)),
        2 => (0usize..2, 1u8..6, 0u8..12).prop_map(|(p, r, k)| Move::Noise(p, r, k)),
        2 => (suspect(), suspect()).prop_map(|(a, b)| Move::HostDied([a, b])),
        1 => any::<bool>().prop_map(Move::Restarted),
        1 => Just(Move::PowerCut),
        1 => any::<u16>().prop_map(Move::Passed),
    ];
    proptest::collection::vec(one, 1..most)
}

pub fn name(n: usize) -> PackageName {
    NAMES[n].clone()
}

pub fn release(package: usize, number: u8) -> Release {
    Release {
        digest: DIGESTS[package][usize::from(number)],
        length: 100,
        release: u64::from(number),
        // Release 4 shuts out what is below 3.
        min_release: if number == 4 { 3 } else { 0 },
        settings: BTreeMap::new(),
    }
}

/// What a desired state assigns: from 6 on the same releases with settings.
pub fn assigned(package: usize, number: u8) -> Option<(PackageName, Release)> {
    let (number, with) = (number % 6, number >= 6);
    let settings = with.then(|| ("k".to_owned(), "v".to_owned())).into_iter().collect();
    (number > 0).then(|| (name(package), Release { settings, ..release(package, number) }))
}

pub fn rules(number: u64) -> Rules {
    Rules {
        swap: if number.is_multiple_of(2) { Swap::Handover } else { Swap::StopFirst },
        probation_ms: if number.is_multiple_of(3) { 1000 } else { 0 },
        probation_requests: 5,
        budget: Budget { failures_percent: 20, latency_ms: 100, memory_mib: 1 },
    }
}

/// What comes of an effect. Outcomes below 3 are bad ones.
pub fn answer(effect: &Effect, outcome: u8, now_ms: u64) -> Event {
    let bad = outcome < 3;
    match effect.clone() {
        Effect::Fetch(package, release) if bad => {
            let what = "x".repeat(if outcome == 0 { 3000 } else { 3 });
            Event::Unusable { package, digest: release.digest, reason: "bad-manifest".into(), what }
        }
        Effect::Fetch(package, release) => {
            Event::Fetched { package, digest: release.digest, rules: rules(release.release) }
        }
        Effect::Begin(package) => Event::Begin { package },
        Effect::Load(package, release) => match outcome {
            0 | 1 => {
                let (reason, what) = ("acceptance".into(), "case `a`".into());
                Event::TrialFailed { package, digest: release.digest, reason, what }
            }
            2 => Event::Damaged { package, digest: release.digest },
            3 => Event::Accepted { package, digest: release.digest, cases: 0 },
            4 => Event::Tight { package, digest: release.digest },
            5 => Event::Hindered { package, digest: release.digest, what: "no file".into() },
            _ => Event::Accepted { package, digest: release.digest, cases: 2 },
        },
        Effect::Activate(package, release) if outcome == 0 => {
            Event::Hindered { package, digest: release.digest, what: "it is not loaded".into() }
        }
        Effect::Activate(package, release) => Event::Activated { package, digest: release.digest, now_ms },
        Effect::Watch(package, digest) => {
            let fine =
                Measured { requests: u64::from(outcome), failures: 0, latency_ms: 100, memory: 1 << 20 };
            let measured = match outcome {
                0 => Measured { failures: 9, ..fine },
                1 => Measured { requests: 12, latency_ms: 101, ..fine },
                2 => Measured { memory: 1 + (1 << 20), ..fine },
                3 => Measured { requests: 0, failures: 1, ..fine },
                _ => fine,
            };
            Event::Proved { package, digest, measured, now_ms }
        }
        // What answers is found damaged, or is not opened any more, or is served and there is nothing to say.
        Effect::Serve(package, release) if outcome == 0 => Event::Damaged { package, digest: release.digest },
        Effect::Serve(package, release) if outcome == 1 => {
            let (reason, what) = ("bad-model".into(), "opset".into());
            Event::Refused { package, digest: release.digest, reason, what }
        }
        Effect::Serve(..) => Event::Restarted,
    }
}

fn noise(package: usize, number: u8, kind: u8) -> Event {
    let digest = release(package, number).digest;
    let package = name(package);
    match kind {
        0 => Event::Fetched { package, digest, rules: rules(number.into()) },
        1 => Event::Accepted { package, digest, cases: 1 },
        2 => Event::Activated { package, digest, now_ms: 5 },
        3 => {
            let measured = Measured { requests: 100, ..Measured::default() };
            Event::Proved { package, digest, measured, now_ms: u64::MAX }
        }
        4 => Event::TrialFailed { package, digest, reason: "r".into(), what: "ä".repeat(1500) },
        5 => Event::Damaged { package, digest },
        6 => Event::Begin { package },
        7 => Event::Tight { package, digest },
        8 => Event::Stopping { now_ms: 1 },
        9 => Event::Hindered { package, digest, what: "ä".repeat(1500) },
        10 => Event::Refused { package, digest, reason: "r".into(), what: "ä".repeat(1500) },
        _ => Event::Unusable { package, digest, reason: "r".into(), what: String::new() },
    }
}

/// Has it happen.
pub fn happen(world: &mut World, one: &Move) {
    match one {
        Move::Desired(releases, newer, bits) => world.feed(Event::Desired {
            sequence: (world.state.desired + u64::from(*newer)).saturating_sub(1),
            assignments: (0..2).filter_map(|n| assigned(n, releases[n])).collect(),
            unfit: (0..2).filter(|n| bits & (2 << n) != 0).map(|n| (name(n), "arm".to_owned())).collect(),
            anew: bits & 1 != 0,
        }),
        Move::Answer(n, outcome) => {
            if let Some(effect) = plan(&world.state).get(*n) {
                world.perform(effect, *outcome);
            }
        }
        Move::Noise(package, number, kind) => {
            let event = noise(*package, *number, *kind);
            world.make_true(&event);
            world.feed(event);
        }
        Move::HostDied(numbers) => {
            let named = (0..2).filter_map(|n| Some(release(n, numbers[n]?).digest)).collect();
            world.host_dies(named);
        }
        Move::Restarted(in_order) => world.restart(*in_order),
        Move::PowerCut => world.power_cut(),
        Move::Passed(ms) => world.now_ms += u64::from(*ms),
    }
}
