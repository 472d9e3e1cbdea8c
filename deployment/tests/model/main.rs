//! The state machine under random histories of a device: invariants hold after every step, whatever comes.
//!
//! `moves` makes histories, `world` is a device round the state machine (a driver and a host that has
//! packages open), `invariants` is what must hold; `examples` tells single histories.

#![allow(clippy::unwrap_used)]

mod examples;
mod invariants;
mod moves;
mod refusals;
mod world;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use selvedge_deployment::*;

use moves::{happen, moves, name, release, rules};
use world::{Open, World};

/// Steps in which any state comes to rest when nothing happens from outside: for each of two packages
/// what is committed is fetched, two releases are tried up to their end, a probation takes its time.
const REST: usize = 160;

/// Invariants after every step of every history. And whatever was before: when from then on everything goes
/// well, what is assigned and was not refused is what answers in the end, and nothing else is open.
#[test]
fn invariants_hold_and_the_right_version_answers_afterwards() {
    let taken = AtomicU64::new(0);
    let sequences = run(1, moves(60), |moves| {
        let mut world = World::default();
        for one in &moves {
            happen(&mut world, one);
        }
        taken.fetch_add(world.taken, Ordering::Relaxed);
        world.settle(REST, || 9).map_err(|plan| TestCaseError::fail(format!("still planning {plan:?}")))?;
        for (name, slot) in &world.state.slots {
            let open = world.host.get(name).map(Vec::as_slice).unwrap_or_default();
            if slot.failure.is_none() {
                assert_eq!(slot.committed.as_ref().map(|c| &c.release), slot.wanted.as_ref(), "{slot:?}");
            }
            match slot.servable() {
                Some(committed) => {
                    let is = |o: &Open| {
                        o.serving
                            && o.digest == committed.release.digest
                            && o.settings == committed.release.settings
                    };
                    assert!(matches!(open, [one] if is(one)), "{slot:?} and {open:?}");
                }
                None => assert!(open.is_empty(), "{slot:?} and {open:?}"),
            }
        }
        Ok(())
    });
    say(&format!("model: {sequences} event sequences, {} events taken", taken.into_inner()));
}

/// Whatever was before: a driver whose effects end well or badly comes to rest. Nothing loops for ever, also
/// not where hosts die and power goes, as long as that ends.
#[test]
fn every_history_comes_to_rest() {
    let outcomes = proptest::collection::vec(0u8..12, 1..20);
    let sequences = run(1, (moves(20), outcomes, 0usize..10), |(moves, outcomes, deaths)| {
        let mut world = World::default();
        for one in &moves {
            happen(&mut world, one);
        }
        let mut outcomes = outcomes.into_iter().cycle();
        // `Damaged` is an accident, not an answer that comes for ever; nor is one that does not fit.
        let mut outcome = || outcomes.next().map_or(9, |one| if one == 2 || one == 3 { 9 } else { one });
        for death in 0..deaths {
            let _ = world.settle(death % 5, &mut outcome);
            if death % 3 == 0 { world.power_cut() } else { world.host_dies(Vec::new()) }
        }
        match world.settle(REST, outcome) {
            Ok(_) => Ok(()),
            Err(plan) => Err(TestCaseError::fail(format!("still planning {plan:?}"))),
        }
    });
    say(&format!("model: {sequences} event sequences came to rest"));
}

/// Starts that are cut every time end after [`MAX_ATTEMPTS`], with the release given up.
#[test]
fn a_release_that_takes_the_device_down_is_given_up() {
    run(50, proptest::collection::vec(0u8..3, MAX_ATTEMPTS as usize + 3), |cuts| {
        let (package, release) = (name(0), release(0, 2));
        let mut world = World::default();
        world.feed(Event::desired(1, vec![(package.clone(), release.clone())]));
        world.feed(Event::Fetched { package: package.clone(), digest: release.digest, rules: rules(2) });
        let mut starts = 0;
        for cut in cuts {
            let Some(Effect::Begin(_)) = plan(&world.state).into_iter().next() else { break };
            world.feed(Event::Begin { package: package.clone() });
            if plan(&world.state).iter().any(|effect| matches!(effect, Effect::Load(..))) {
                starts += 1;
            }
            match cut {
                0 => world.restart(false),
                1 => world.power_cut(),
                _ => world.host_dies(Vec::new()),
            }
        }
        let slot = &world.state.slots[&package];
        assert_eq!(starts, MAX_ATTEMPTS);
        assert_eq!(slot.stage, Stage::Idle);
        assert_eq!(slot.failure.as_ref().unwrap().reason, "attempts-exhausted");
        assert!(slot.committed.is_none());
        Ok(())
    });
}

/// Says how much was tried, also to the file that `SELVEDGE_COUNTS` names.
fn say(line: &str) {
    println!("{line}");
    if let Some(file) = std::env::var_os("SELVEDGE_COUNTS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Runs a property over one in so many of 100,000 random histories; `SELVEDGE_MODEL_CASES` sets another
/// number. What fails is printed as the moves that lead to it, made as few as can be.
fn run<S: Strategy>(one_in: u32, strategy: S, test: impl Fn(S::Value) -> TestCaseResult) -> u32 {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let cases: u32 = number("SELVEDGE_MODEL_CASES").unwrap_or(100_000) / one_in;
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    if let Err(error) = TestRunner::new(config).run(&strategy, test) {
        panic!("{error}");
    }
    cases
}
