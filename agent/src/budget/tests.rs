//! A budget through days, restarts, power cuts and clocks that come and go.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn at(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn budget(mib: u64, windows: &[&str]) -> Budget {
    let settings = Settings { per_day: Some(mib * MIB), windows: Windows::parse(windows).unwrap() };
    Budget::resume(settings, None, seconds(0))
}

/// Writes down what has to be; how much may then be asked for.
fn allowed(budget: &mut Budget) -> u64 {
    while let Some(used) = budget.ahead() {
        budget.kept(used);
    }
    budget.rest().unwrap()
}

#[test]
fn a_used_up_budget_holds_until_midnight() {
    let mut budget = budget(1, &[]);
    budget.pass(seconds(0), at("2026-11-28T23:00:00Z"));
    let mut had = 0;
    while budget.hold().is_none() {
        let now = allowed(&mut budget);
        assert!(now > 0);
        budget.spend(now);
        had += now;
    }
    assert!(had <= MIB && had > MIB - SMALLEST, "{had}");
    assert_eq!(budget.rest(), Some(0));
    assert_eq!(budget.wake_at(), Some(seconds(3600)));
    let trouble = budget.trouble().unwrap();
    assert!(trouble.starts_with("budget") && trouble.contains("2026-11-29T00:00Z"), "{trouble}");
    budget.pass(seconds(3599), at("2026-11-28T23:59:59Z"));
    assert_eq!(budget.hold(), Some(Hold::Budget));
    budget.pass(seconds(3600), at("2026-11-29T00:00:00Z"));
    assert_eq!(budget.hold(), None);
    assert_eq!(budget.rest(), Some(0), "nothing before the new day is written down");
    assert!(allowed(&mut budget) > 0);
    // A clock that goes back brings no second day.
    budget.spend(MIB);
    budget.pass(seconds(3601), at("2026-11-28T10:00:00Z"));
    assert_eq!(budget.hold(), Some(Hold::Budget));
}

#[test]
fn without_a_clock_a_day_is_24_hours_of_running() {
    let mut first = budget(1, &["01:00-02:00"]);
    first.pass(seconds(0), None);
    assert_eq!(first.hold(), None, "windows need a clock");
    assert!(first.idle_windows().is_some());
    first.spend(MIB);
    first.pass(seconds(20 * 3600), None);
    assert_eq!(first.wake_at(), Some(seconds(24 * 3600)));
    let kept = first.at_the_end();
    // It was off for a week: that is no running.
    let settings = Settings { per_day: Some(MIB), ..Settings::default() };
    let mut second = Budget::resume(settings, kept, seconds(5));
    second.pass(seconds(4 * 3600), None);
    assert_eq!(second.hold(), Some(Hold::Budget));
    second.pass(seconds(4 * 3600 + 6), None);
    assert_eq!(second.hold(), None);
    // The clock becomes right: what was counted counts for that day.
    second.spend(MIB);
    second.pass(seconds(5 * 3600), at("2026-11-28T10:00:00Z"));
    assert_eq!(second.hold(), Some(Hold::Budget));
}

#[test]
fn a_clock_that_was_years_ahead_holds_for_a_day_at_most() {
    let mut budget = budget(1, &[]);
    budget.pass(seconds(0), at("2038-01-01T00:00:00Z"));
    budget.spend(MIB);
    budget.pass(seconds(60), at("2026-11-28T10:00:00Z"));
    assert_eq!(budget.hold(), Some(Hold::Budget));
    assert_eq!(budget.wake_at(), Some(seconds(24 * 3600)));
    assert!(budget.trouble().unwrap().contains("2026-11-29T09:59Z"), "{:?}", budget.trouble());
    budget.pass(seconds(24 * 3600), at("2026-11-29T09:59:00Z"));
    assert_eq!(budget.hold(), None);
    budget.spend(MIB);
    assert_eq!(budget.wake_at(), Some(seconds(24 * 3600 + 14 * 3600 + 60)), "midnight again");
}

#[test]
fn a_day_without_a_clock_ends_although_the_power_is_cut_every_few_hours() {
    let settings = Settings { per_day: Some(MIB), ..Settings::default() };
    let (mut durable, mut writes) = (None, 0);
    for start in 0..10 {
        let mut budget = Budget::resume(settings.clone(), durable, seconds(0));
        if start == 0 {
            budget.spend(MIB);
        }
        // Five hours of running, then the power is cut.
        for minute in 0..300 {
            budget.pass(seconds(minute * 60), None);
            if budget.hold().is_none() {
                assert!(start >= 4, "after {start} starts");
                assert!(writes < 30, "{writes} writes");
                return;
            }
            if let Some(used) = budget.ahead() {
                budget.kept(used);
                (durable, writes) = (Some(used), writes + 1);
            }
        }
    }
    panic!("it holds for ever");
}

#[test]
fn blobs_come_within_windows_only() {
    let settings = Settings { per_day: None, windows: Windows::parse(&["22:00-05:00"]).unwrap() };
    let mut budget = Budget::resume(settings, None, seconds(0));
    budget.pass(seconds(0), at("2026-11-28T21:59:30Z"));
    assert_eq!((budget.hold(), budget.rest()), (Some(Hold::Window), Some(0)));
    assert_eq!(budget.wake_at(), Some(seconds(30)));
    assert!(budget.trouble().unwrap().contains("2026-11-28T22:00Z"));
    budget.pass(seconds(30), at("2026-11-28T22:00:00Z"));
    assert_eq!((budget.hold(), budget.rest(), budget.ahead()), (None, None, None));
    assert_eq!(budget.wake_at(), Some(seconds(30 + 7 * 3600)));
}

#[test]
fn few_writes_count_a_day() {
    let mut budget = budget(100, &[]);
    budget.pass(seconds(0), at("2026-11-28T12:00:00Z"));
    let mut writes = 0;
    while budget.hold().is_none() {
        if let Some(used) = budget.ahead() {
            budget.kept(used);
            writes += 1;
        }
        budget.spend(budget.rest().unwrap().min(16_512));
    }
    assert!(writes <= 140, "{writes} writes for 100 MiB");
    assert!(on_the_wire(16_384) > 16_384 + 600 && on_the_wire(0) > 80);
}

#[derive(Debug, Clone)]
enum Event {
    Receive(u64),
    Pass(u32),
    Clock(bool),
    /// An orderly end, and a start.
    Restart,
    /// The power is cut: only what was written down is left.
    Cut,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => (1..600_000u64).prop_map(Event::Receive),
        3 => (1..30_000u32).prop_map(Event::Pass),
        1 => any::<bool>().prop_map(Event::Clock),
        1 => Just(Event::Restart),
        1 => Just(Event::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever happens: between two new beginnings never more than the budget comes, and a day begins
    /// anew only at midnight of a clock that is trusted, or after 24 hours of running.
    #[test]
    fn the_budget_is_never_exceeded(synchronised: bool, events in prop::collection::vec(event(), 1..120)) {
        let most = 3 * MIB;
        let settings = Settings { per_day: Some(most), windows: Windows::default() };
        let (mut now, mut utc) = (seconds(0), at("2026-11-28T00:00:00Z").unwrap());
        let mut durable = None;
        let mut clock = synchronised;
        let mut budget = Budget::resume(settings.clone(), None, now);
        let (mut had, mut day, mut running) = (0u64, None, Duration::ZERO);
        for event in events {
            let mut passed = Duration::ZERO;
            match event {
                Event::Receive(bytes) => {
                    let bytes = bytes.min(budget.rest().unwrap());
                    budget.spend(bytes);
                    had += bytes;
                }
                Event::Pass(seconds) => passed = Duration::from_secs(u64::from(seconds)),
                Event::Clock(right) => clock = right,
                Event::Restart | Event::Cut => {
                    if let Event::Restart = event
                        && let Some(used) = budget.at_the_end()
                    {
                        durable = Some(used);
                    }
                    budget = Budget::resume(settings.clone(), durable, now);
                    prop_assert!(budget.bytes >= had, "{} of {had} bytes are known", budget.bytes);
                }
            }
            (now, running) = (now + passed, running + passed);
            utc = utc.checked_add(passed).unwrap();
            let today = utc.as_second().div_euclid(SECONDS);
            let before = budget.bytes;
            budget.pass(now, clock.then_some(utc));
            if budget.bytes < before {
                let midnight = clock && day.is_some_and(|day| day < today);
                prop_assert!(midnight || running >= DAY, "a day began after {running:?}");
                (had, running) = (0, Duration::ZERO);
            }
            day = if clock { day.max(Some(today)) } else { day };
            // As the driver does, whenever it has told the time.
            if let Some(used) = budget.ahead() {
                durable = Some(used);
                budget.kept(used);
            }
            prop_assert!(had <= most, "{had} bytes of {most}");
        }
    }
}
