//! The plan of a transfer, event by event.

mod alone;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, Event, LARGEST_WINDOW, Layout, OPEN_CHUNKS, Plan, answer};
use selvedge_protocol::message::Need;

use alone::Alone;

const BLOCK: u32 = 16_384;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn plan(size: u64) -> Alone {
    let layout = Layout::new(size, BlockSize::PREFERRED).expect("few blocks");
    Alone::new(Plan::new(1, Digest::of(b"x"), layout, |_| false, 7))
}

fn connected(size: u64) -> Alone {
    let mut plan = plan(size);
    plan.step(ms(0), Event::Connected);
    plan
}

fn asks(plan: &mut Alone, at: Duration) -> Vec<Need> {
    std::iter::from_fn(|| plan.ask(at, u32::MAX)).collect()
}

fn numbers(needs: &[Need], size: u64) -> Vec<u32> {
    needs.iter().flat_map(|need| answer(need, size).expect("it fits").map(|span| span.number)).collect()
}

/// Delivers a block, and the chunk when it is whole.
fn deliver(plan: &mut Alone, at: Duration, number: u32) {
    assert!(plan.wants(number), "block {number}");
    plan.step(at, Event::Block(number));
    let chunk = number / 4;
    if plan.is_whole(chunk) {
        plan.step(at, Event::Kept(chunk));
    }
}

#[test]
fn nothing_is_asked_without_a_connection() {
    let mut plan = plan(1_000_000);
    assert_eq!(plan.ask(ms(0), u32::MAX), None);
    assert_eq!(plan.wake_at(), None);
    plan.step(ms(1), Event::Connected);
    assert!(plan.ask(ms(1), u32::MAX).is_some());
    plan.step(ms(2), Event::Disconnected);
    assert_eq!(plan.ask(ms(999_999), u32::MAX), None);
}

#[test]
fn the_first_window_is_two_blocks_and_half_of_it_makes_the_next_request() {
    let size = 1_000_000;
    let mut plan = connected(size);
    assert_eq!(numbers(&asks(&mut plan, ms(0)), size), [0, 1]);
    deliver(&mut plan, ms(50), 0);
    let next = numbers(&asks(&mut plan, ms(50)), size);
    assert_eq!(next.first(), Some(&2));
}

#[test]
fn every_block_is_asked_for_once_when_nothing_is_lost() {
    let size = 3_000_001;
    let mut plan = connected(size);
    let mut seen = BTreeSet::new();
    let mut at = ms(0);
    let mut flight = asks(&mut plan, at);
    while !plan.is_complete() {
        let needs = std::mem::take(&mut flight);
        assert!(!needs.is_empty(), "it stopped asking");
        at += ms(30);
        for number in numbers(&needs, size) {
            assert!(seen.insert(number), "block {number} twice");
            deliver(&mut plan, at, number);
            flight.extend(asks(&mut plan, at));
        }
    }
    assert_eq!(seen.len(), size.div_ceil(u64::from(BLOCK)) as usize);
    assert_eq!(plan.wake_at(), None);
}

#[test]
fn what_is_in_flight_stays_under_the_ceiling_and_within_the_open_chunks() {
    let size = 50_000_000;
    let mut plan = connected(size);
    let mut waiting: Vec<u32> = numbers(&asks(&mut plan, ms(0)), size);
    let mut at = 0;
    let mut largest = 0;
    for _ in 0..2000 {
        at += 1;
        let number = waiting.remove(0);
        // The first block never comes, so its chunk stays open.
        if number != 0 {
            deliver(&mut plan, ms(at), number);
        }
        waiting.extend(numbers(&asks(&mut plan, ms(at)), size));
        largest = largest.max(waiting.len() as u32 * BLOCK);
        let chunks: BTreeSet<u32> = waiting.iter().map(|number| number / 4).collect();
        assert!(chunks.len() <= OPEN_CHUNKS);
        if waiting.is_empty() {
            break;
        }
    }
    assert!(largest <= LARGEST_WINDOW + BLOCK, "{largest}");
    assert!(!plan.wants(4 * (OPEN_CHUNKS as u32 + 2000)), "far beyond what is open");
}

#[test]
fn lost_blocks_are_asked_for_again_after_a_timeout_that_grows() {
    let size = 100_000;
    let mut plan = connected(size);
    let mut at = ms(0);
    let mut waits = Vec::new();
    // The first request, then one block at a time; at the end the last one again.
    for round in 0..12 {
        let asked = numbers(&asks(&mut plan, at), size);
        match round {
            0 => assert_eq!(asked, [0, 1]),
            _ => assert_eq!(asked, [(round + 1).min(6)]),
        }
        let wake = plan.wake_at().expect("a timeout");
        plan.step(wake - ms(1), Event::Tick);
        assert_eq!(plan.ask(wake - ms(1), u32::MAX), None, "too early");
        plan.step(wake, Event::Tick);
        waits.push(wake - at);
        at = wake;
    }
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(waits[0] >= Duration::from_secs(3) && waits[11] == Duration::from_secs(60), "{waits:?}");
}

#[test]
fn a_registry_that_is_back_is_asked_at_once() {
    let size = 100_000;
    let mut plan = connected(size);
    let mut at = ms(0);
    for _ in 0..6 {
        asks(&mut plan, at);
        at = plan.wake_at().expect("a timeout");
        plan.step(at, Event::Tick);
    }
    assert_eq!(numbers(&asks(&mut plan, at), size), [6]);
    at += ms(10);
    plan.step(at, Event::Heard);
    assert_eq!(numbers(&asks(&mut plan, at), size), [6], "whether it answers");
    let patience = plan.wake_at().expect("a timeout") - at;
    assert!(patience < Duration::from_secs(5), "{patience:?}");
    // A healthy transfer is not disturbed by it.
    plan.step(at + ms(1), Event::Heard);
    assert_eq!(plan.ask(at + ms(1), u32::MAX), None);
    // It does, and nothing else comes: that is lost, and asked for again.
    deliver(&mut plan, at + ms(50), 6);
    at = plan.wake_at().expect("an end of the grace");
    plan.step(at, Event::Tick);
    assert_eq!(numbers(&asks(&mut plan, at), size), [0, 1]);
}

#[test]
fn what_a_link_holds_back_is_not_asked_for_again() {
    let size = 3_000_000;
    let mut plan = connected(size);
    let mut at = ms(0);
    let mut flight: VecDeque<u32> = numbers(&asks(&mut plan, at), size).into();
    let mut seen = BTreeSet::new();
    let mut came = |plan: &mut Alone, at, number| {
        assert!(seen.insert(number), "block {number} twice");
        deliver(plan, at, number);
    };
    for _ in 0..60 {
        at += ms(30);
        came(&mut plan, at, flight.pop_front().expect("something is asked"));
        flight.extend(numbers(&asks(&mut plan, at), size));
    }
    // Nothing for twenty seconds, then all of it, in order.
    let end = at + ms(20_000);
    while let Some(wake) = plan.wake_at().filter(|wake| *wake < end) {
        plan.step(wake, Event::Tick);
        flight.extend(numbers(&asks(&mut plan, wake), size));
    }
    at = end;
    while let Some(number) = flight.pop_front() {
        at += ms(1);
        came(&mut plan, at, number);
        flight.extend(numbers(&asks(&mut plan, at), size));
    }
    assert!(plan.is_complete());
}

#[test]
fn blocks_of_later_requests_reveal_a_loss_without_waiting() {
    let size = 2_000_000;
    let mut plan = connected(size);
    let mut at = ms(0);
    let mut flight: VecDeque<u32> = numbers(&asks(&mut plan, at), size).into();
    let lost = flight.pop_front().expect("two blocks");
    // Overtaking a few others is no loss; six are.
    for came in 1.. {
        at += ms(10);
        deliver(&mut plan, at, flight.pop_front().expect("more is asked for"));
        let asked = numbers(&asks(&mut plan, at), size);
        if asked.contains(&lost) {
            // One block of the first request itself is no sign.
            assert_eq!(came, 7);
            break;
        }
        flight.extend(asked);
    }
}

#[test]
fn busy_is_respected_and_bounded() {
    let size = 1_000_000;
    let mut plan = connected(size);
    asks(&mut plan, ms(0));
    plan.step(ms(100), Event::Busy(ms(2000)));
    assert_eq!(plan.ask(ms(2099), u32::MAX), None);
    let wake = plan.wake_at().expect("an end of the pause");
    assert!((ms(2100)..=ms(2600)).contains(&wake), "{wake:?}");
    assert!(plan.ask(wake, u32::MAX).is_some());
    plan.step(wake, Event::Busy(Duration::from_millis(u32::MAX.into())));
    assert!(plan.wake_at().expect("an end") < wake + Duration::from_secs(400));
}

#[test]
fn unknown_counts_once_a_request_and_a_block_clears_it() {
    let size = 1_000_000;
    let mut plan = connected(size);
    asks(&mut plan, ms(0));
    plan.step(ms(10), Event::Unknown);
    plan.step(ms(11), Event::Unknown);
    assert_eq!(plan.unknown(), 1);
    assert_eq!(plan.ask(ms(500), u32::MAX), None, "it waits");
    let wake = plan.wake_at().expect("an end of the pause");
    let needs = asks(&mut plan, wake);
    plan.step(wake, Event::Unknown);
    assert_eq!(plan.unknown(), 2);
    deliver(&mut plan, wake, numbers(&needs, size)[0]);
    assert_eq!(plan.unknown(), 0);
}

#[test]
fn a_spoiled_chunk_is_wanted_again_and_a_stubborn_one_slows_down() {
    let size = 60_000;
    let mut plan = connected(size);
    let mut at = ms(0);
    let mut pauses = 0;
    for _ in 0..6 {
        while !plan.is_whole(0) {
            let needs = asks(&mut plan, at);
            if needs.is_empty() {
                pauses += 1;
                at = plan.wake_at().expect("a pause");
            }
            for number in numbers(&needs, size) {
                plan.step(at, Event::Block(number));
            }
        }
        plan.step(at, Event::Spoiled(0));
        assert!(plan.wants(0) && !plan.is_complete());
    }
    assert!(pauses >= 3, "{pauses}");
    assert!(at > ms(2000), "{at:?}");
}

#[test]
fn a_resumed_plan_asks_only_for_what_is_missing() {
    let size = 1_000_000u64;
    let layout = Layout::new(size, BlockSize::PREFERRED).expect("few blocks");
    let mut plan = Alone::new(Plan::new(1, Digest::of(b"x"), layout, |chunk| chunk != 3 && chunk != 15, 7));
    plan.step(ms(0), Event::Connected);
    let mut all = Vec::new();
    let mut at = ms(0);
    while !plan.is_complete() {
        at += ms(10);
        let asked = numbers(&asks(&mut plan, at), size);
        assert!(!asked.is_empty());
        for &number in &asked {
            deliver(&mut plan, at, number);
        }
        all.extend(asked);
    }
    assert_eq!(all, [12, 13, 14, 15, 60, 61]);
    let done = Alone::new(Plan::new(1, Digest::of(b"x"), layout, |_| true, 7));
    assert!(done.is_complete());
    assert!(plan_of_nothing().is_complete());
}

fn plan_of_nothing() -> Alone {
    plan(0)
}
