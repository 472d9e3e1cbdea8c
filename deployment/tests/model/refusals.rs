//! Single histories of a host that refuses.

use selvedge_deployment::*;

use crate::examples::{feed, install};
use crate::moves::{name, release};

fn refused(number: u8) -> Event {
    let (reason, what) = ("bad-model".into(), "an operator that it does not know".into());
    Event::Refused { package: name(0), digest: release(0, number).digest, reason, what }
}

/// A trial that the host hinders starts again a few times, and what answers does so in between.
#[test]
fn a_trial_that_is_hindered_is_tried_again_and_not_for_ever() {
    let (package, digest) = (name(0), release(0, 2).digest);
    let [desired, _, begin, ..] = install(2, 2);
    let rules = Rules { swap: Swap::StopFirst, ..Rules::default() };
    let fetched = Event::Fetched { package: package.clone(), digest, rules };
    let mut state = feed(State::default(), install(1, 1).into_iter().chain([desired, fetched]));
    let hindered = Event::Hindered { package: package.clone(), digest, what: "no room in /tmp".into() };
    for attempt in 1..=MAX_ATTEMPTS {
        let serve = Effect::Serve(package.clone(), release(0, 1));
        assert_eq!(plan(&state), [serve, Effect::Begin(package.clone())]);
        state = feed(state, [begin.clone()]);
        let trial = plan(&state);
        assert!(matches!(trial[..], [Effect::Load(..)]), "start {attempt}: {trial:?}");
        state = feed(state, [hindered.clone()]);
    }
    assert_eq!(plan(&state), [Effect::Serve(package.clone(), release(0, 1))]);
    let failure = state.slots[&package].failure.as_ref().unwrap();
    assert_eq!(failure.reason, "attempts-exhausted");
    assert!(failure.what.contains("no room in /tmp"), "{}", failure.what);
}

/// What is committed and refused gives way to the release before it, which is tried like any other.
#[test]
fn what_is_refused_gives_way_to_the_release_before_it() {
    let package = name(0);
    let state = feed(State::default(), install(1, 1).into_iter().chain(install(2, 2)));
    let stepped = step(&state, refused(2)).unwrap();
    assert_eq!(stepped.notes, [Note::GivesWay(package.clone(), release(0, 1))]);
    let serve = Effect::Serve(package.clone(), release(0, 2));
    assert_eq!(plan(&stepped.state), [serve.clone(), Effect::Begin(package.clone())], "as soon as it can be");
    assert_eq!(stepped.state.slots[&package].failure.as_ref().unwrap().reason, "bad-model");

    let [_, _, begin, accepted, activated] = install(1, 1);
    let answers = feed(stepped.state.clone(), [begin.clone(), accepted, activated]);
    assert_eq!(plan(&answers), [Effect::Serve(package.clone(), release(0, 1))]);
    let slot = &answers.slots[&package];
    assert_eq!(slot.failure.as_ref().unwrap().release, 2, "the report goes on to say so");
    assert_eq!(slot.previous, None, "what was refused is none to go back to");
    // Refused as well: there is nothing left, and it does not go to and fro.
    let stuck = step(&answers, refused(1)).unwrap();
    assert_eq!((stuck.notes, &stuck.state), (vec![], &answers));
    // Ways out: the next release, and the same one after something else.
    let mut out = answers.clone();
    for (number, sequence) in [(3, 4), (2, 5)] {
        out = feed(out, install(number, sequence));
        assert_eq!(plan(&out), [Effect::Serve(package.clone(), release(0, number))]);
        assert_eq!(out.slots[&package].failure, None);
    }

    // The one before fails, too: what is refused is all that there is, and is asked for again.
    let failed = Event::TrialFailed {
        package: package.clone(),
        digest: release(0, 1).digest,
        reason: "bad-model".into(),
        what: "w".into(),
    };
    let left = feed(stepped.state, [begin, failed]);
    assert_eq!(plan(&left), std::slice::from_ref(&serve));
    assert_eq!(feed(left.clone(), [refused(2)]), left);

    // Without one before it likewise; and what is on its way is not disturbed.
    let alone = feed(State::default(), install(2, 1));
    assert_eq!(feed(alone.clone(), [refused(2)]), alone);
    let [desired, ..] = install(3, 3);
    assert!(step(&feed(state, [desired]), refused(2)).is_err());
}

/// The release before is below the floor that the one after it has set: it does not come back.
#[test]
fn what_is_refused_gives_way_to_nothing_below_the_floor() {
    let state = feed(State::default(), install(2, 1).into_iter().chain(install(4, 2)));
    assert_eq!(feed(state.clone(), [refused(4)]), state);
}
