//! Devices that share what a registry may send: each comes to its share, and all of it is used.

#![allow(clippy::unwrap_used)]

mod alone;

use std::collections::BTreeMap;
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, Bucket, Event, HEADER, Layout, Plan, Rate, answer, take_of_both};

use alone::Alone;

const SIZE: u64 = 2_000_000;
const DELAY: Duration = Duration::from_millis(40);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Parcel {
    Need { device: usize, need: Vec<(u64, u32, u32)> },
    Block { device: usize, number: u32 },
    Busy { device: usize, wait: Duration },
}

/// When each device has its blob, and how many refusals there were. `late`: a device that begins when the
/// others are under way.
fn run(devices: usize, device: Rate, all: Rate, late: Option<Duration>) -> (Vec<Duration>, usize) {
    let layout = Layout::new(SIZE, BlockSize::PREFERRED).unwrap();
    let plan =
        |n: usize| Alone::new(Plan::new(n as u32, Digest::of(b"x"), layout, |_| false, n as u64 * 7919));
    let mut plans: Vec<Alone> = (0..devices).map(plan).collect();
    let mut buckets: Vec<Bucket> = plans.iter().map(|_| Bucket::new(device, Duration::ZERO)).collect();
    let mut together = Bucket::new(all, Duration::ZERO);
    let mut parcels: BTreeMap<(Duration, u64), Parcel> = BTreeMap::new();
    let mut ends = vec![Duration::ZERO; devices];
    let (mut now, mut order, mut refusals) = (Duration::ZERO, 0, 0);
    let mut waits = late;
    for plan in plans.iter_mut().skip(usize::from(late.is_some())) {
        plan.step(now, Event::Connected);
    }
    while plans.iter().any(|plan| !plan.is_complete()) {
        if let Some(at) = waits.filter(|at| now >= *at) {
            plans[0].step(at, Event::Connected);
            waits = None;
        }
        let mut post = |at: Duration, parcel| {
            order += 1;
            parcels.insert((at, order), parcel);
        };
        for (device, plan) in plans.iter_mut().enumerate() {
            plan.step(now, Event::Tick);
            while let Some(need) = plan.ask(now, u32::MAX) {
                let spans = answer(&need, SIZE).unwrap();
                let need = spans.map(|span| (span.offset, span.number, span.length)).collect();
                post(now + DELAY / 2, Parcel::Need { device, need });
            }
        }
        let wakes = plans.iter().filter_map(Alone::wake_at).min();
        let arrives = parcels.keys().next().map(|(at, _)| *at);
        now = now.max([wakes, arrives, waits].into_iter().flatten().min().unwrap());
        while let Some(entry) = parcels.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Parcel::Need { device, need } => {
                    let costs: Vec<u64> =
                        need.iter().map(|(_, _, length)| u64::from(*length) + HEADER as u64).collect();
                    let (given, wait) = take_of_both(&mut buckets[device], &mut together, &costs, now);
                    let mut post = |parcel| {
                        order += 1;
                        parcels.insert((now + DELAY / 2, order), parcel);
                    };
                    for (_, number, _) in &need[..given] {
                        post(Parcel::Block { device, number: *number });
                    }
                    if let Some(wait) = wait {
                        refusals += 1;
                        post(Parcel::Busy { device, wait });
                    }
                }
                Parcel::Block { device, number } => {
                    let plan = &mut plans[device];
                    plan.step(now, Event::Block(number));
                    let chunk = number / layout.per_chunk();
                    if plan.is_whole(chunk) {
                        plan.step(now, Event::Kept(chunk));
                    }
                    if plan.is_complete() {
                        ends[device] = now;
                    }
                }
                Parcel::Busy { device, wait } => plans[device].step(now, Event::Busy(wait)),
            }
        }
    }
    (ends, refusals)
}

fn rate(per_second: u64) -> Rate {
    Rate { per_second, burst: (1 << 20) + (64 << 10) }
}

#[test]
fn a_device_gets_its_rate_and_asks_seldom() {
    let (ends, refusals) = run(1, rate(200_000), rate(1 << 30), None);
    let least = (SIZE - (1 << 20)) as f64 / 200e3 * 0.9;
    let took = ends[0].as_secs_f64();
    assert!((least..7.5).contains(&took), "{took} s for what takes {least} after a full bucket");
    assert!(refusals < 60, "{refusals} refusals in {took} s");
}

#[test]
fn all_come_to_their_share_and_nothing_is_wasted() {
    let (ends, refusals) = run(8, rate(1 << 30), rate(1_000_000), None);
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    let ideal = (8 * SIZE - (1 << 20)) as f64 / 1e6;
    assert!(last.as_secs_f64() < ideal * 1.15, "{last:?}, ideal {ideal} s");
    assert!(first.as_secs_f64() > last.as_secs_f64() * 0.5, "the first after {first:?}, the last {last:?}");
    assert!(refusals < 1500, "{refusals} refusals");
}

#[test]
fn who_comes_late_to_a_used_up_rate_gets_something_too() {
    let (ends, _) = run(6, rate(1 << 30), rate(1_000_000), Some(Duration::from_secs(3)));
    let others = ends[1..].iter().max().unwrap();
    assert!(ends[0] < *others + Duration::from_secs(4), "{:?}, the others {others:?}", ends[0]);
}
