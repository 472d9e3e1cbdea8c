//! What wins, what is blocked and what is kept; and what holds for any deployments at all.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn assigned(package: &str, release: u64) -> Assigned {
    Assigned {
        package: package.parse().unwrap(),
        target: format!("{package}-{release}"),
        digest: Digest::of(format!("{package}-{release}").as_bytes()),
        length: 1,
        release,
        version: format!("{release}.0.0"),
        settings: BTreeMap::new(),
    }
}

fn signed(package: &str, release: u64) -> AssignedPackage {
    let Assigned { package, target, digest, length, release, settings, .. } = assigned(package, release);
    AssignedPackage { package, target, digest, length, release, settings }
}

/// A deployment of release `release` of the package `a`.
fn offer(number: i64, scope: &str, priority: i32, release: u64) -> Offer {
    let scope = match scope.strip_prefix("target ") {
        Some(name) => Scope::Target(name.parse().unwrap()),
        None => Scope::Selector(scope.parse().unwrap()),
    };
    Offer {
        id: format!("d{number}"),
        number,
        scope,
        priority,
        created_ms: number,
        assigned: assigned("a", release),
        requires: Arc::default(),
    }
}

fn requiring(offer: Offer, requires: Requires) -> Offer {
    Offer { requires: Arc::new(requires), ..offer }
}

#[derive(Debug)]
struct Target {
    labels: BTreeMap<String, String>,
    facts: BTreeMap<String, String>,
    floors: BTreeMap<PackageName, u64>,
    told: Vec<AssignedPackage>,
}

impl Target {
    fn new() -> Self {
        Self {
            labels: map(&[("site", "oslo")]),
            facts: map(&[("architecture", "aarch64"), ("memory-mib", "1000"), ("disk-free-mib", "500")]),
            floors: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            attributes: Attributes {
                name: "edge-1",
                kind: "device",
                labels: &self.labels,
                facts: &self.facts,
            },
            floors: &self.floors,
            told: &self.told,
        }
    }

    /// The release of `a` that it shall run and whether that is kept, then the verdicts by id.
    fn check(&self, offers: Vec<Offer>, expected: (Option<u64>, bool), verdicts: &[(&str, &str)]) {
        let offers = Offers::new(offers.into_iter().map(Arc::new).collect());
        let subject = self.subject();
        let resolution = resolve(&subject, &offers);
        let a: PackageName = "a".parse().unwrap();
        let decision = resolution.packages.get(&a).cloned().unwrap_or_default();
        assert_eq!(
            (decision.chosen().map(|(_, _, release)| release), decision.kept.is_some()),
            expected,
            "{decision:?}"
        );
        let found: Vec<(String, String)> = decision
            .verdicts
            .iter()
            .map(|(offer, verdict)| {
                (offer.id.clone(), format!("{}: {}", verdict.word(), verdict.why(offer, &subject)))
            })
            .collect();
        let expected: Vec<(String, String)> =
            verdicts.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_largest_priority_wins_then_the_newest() {
    let target = Target::new();
    target.check(
        vec![
            offer(1, "target edge-1", 0, 1),
            offer(2, "site = oslo", 5, 2),
            offer(3, "name", 5, 3),
            offer(4, "site = bergen", 9, 4),
            offer(5, "target edge-2", 9, 5),
        ],
        (Some(3), false),
        &[
            ("d4", "no-match: `site = bergen` does not hold: its `site` is `oslo`"),
            ("d3", "wins: its selector matches, and nothing beats its priority 5"),
            ("d2", "lost: deployment d3 (name) is newer, at the same priority"),
            ("d1", "lost: deployment d3 (name) has the larger priority 5"),
        ],
    );
    target.check(vec![], (None, false), &[]);
}

#[test]
fn what_a_target_cannot_run_is_skipped() {
    let mut target = Target::new();
    target.floors.insert("a".parse().unwrap(), 3);
    let architectures = Requires { architectures: vec!["x86_64".into()], ..Requires::default() };
    let labels = Requires { labels: map(&[("camera", "csi")]), ..Requires::default() };
    let ram = Requires { ram_mib: 1001, ..Requires::default() };
    let enough = Requires {
        architectures: vec!["aarch64".into()],
        labels: map(&[("site", "oslo")]),
        ram_mib: 1000,
        disk_mib: 10_000,
    };
    target.check(
        vec![
            requiring(offer(9, "name", 0, 9), architectures),
            requiring(offer(8, "name", 0, 8), labels),
            requiring(offer(7, "name", 0, 7), ram),
            offer(6, "name", 0, 2),
            offer(5, "disk > 1GiB", 0, 6),
            requiring(offer(4, "name", 0, 3), enough),
            offer(3, "name", 0, 4),
        ],
        (Some(3), false),
        &[
            ("d9", "blocked: the target is aarch64, and the package runs on x86_64"),
            ("d8", "blocked: the package requires the label camera=csi, which the target lacks"),
            ("d7", "blocked: the package requires 1001 MiB of memory, and the target has 1000"),
            ("d6", "blocked: release 2 is below 3, under which the target never goes again"),
            ("d5", "blocked: `disk > 1GiB` does not hold: its `disk` is `500MiB`"),
            ("d4", "wins: its selector matches, and nothing beats its priority 0"),
            ("d3", "lost: deployment d4 (name) is newer, at the same priority"),
        ],
    );
}

#[test]
fn what_is_not_known_yet_blocks_nothing() {
    let mut target = Target::new();
    target.facts.clear();
    let requires = Requires { architectures: vec!["x86_64".into()], ram_mib: 9999, ..Requires::default() };
    let verdicts = [("d1", "wins: it is for this target, and nothing beats its priority 0")];
    target.check(vec![requiring(offer(1, "target edge-1", 0, 1), requires)], (Some(1), false), &verdicts);
}

#[test]
fn a_target_keeps_what_it_was_told_while_all_is_blocked() {
    let mut target = Target::new();
    target.told = vec![signed("a", 4), signed("b", 1)];
    target.floors.insert("a".parse().unwrap(), 3);
    let blocked = [("d1", "blocked: release 2 is below 3, under which the target never goes again")];
    target.check(vec![offer(1, "name", 0, 2)], (Some(4), true), &blocked);
    // Nothing in scope: it goes.
    let other = [("d1", "no-match: `site = bergen` does not hold: its `site` is `oslo`")];
    target.check(vec![offer(1, "site = bergen", 0, 5)], (None, false), &other);
    // Free disk falls when it is installed: that does not uninstall it.
    let full = [("d1", "blocked: `disk > 1GiB` does not hold: its `disk` is `500MiB`")];
    target.check(vec![offer(1, "disk > 1GiB", 0, 4)], (Some(4), true), &full);
    // It was told before its architecture was known, and can never run it.
    target.told = vec![signed("a", 9)];
    let requires = Requires { architectures: vec!["x86_64".into()], ..Requires::default() };
    let never = [("d1", "blocked: the target is aarch64, and the package runs on x86_64")];
    target.check(vec![requiring(offer(1, "name", 0, 9), requires)], (None, false), &never);
}

#[test]
fn a_device_gets_no_more_than_it_takes() {
    let limit = MetadataLimits::DEVICE.assignments;
    let many = |settings: &BTreeMap<String, String>, count: usize| {
        let offers = (0..count).map(|number| {
            let mut offer = offer(i64::try_from(number).unwrap(), "name", 0, 1);
            offer.assigned = assigned(&format!("p{number:03}"), 1);
            offer.assigned.settings = settings.clone();
            Arc::new(offer)
        });
        Offers::new(offers.collect())
    };
    let chosen = |target: &Target, offers: &Offers| -> BTreeSet<String> {
        let resolution = resolve(&target.subject(), offers);
        let chosen = resolution.packages.values().filter_map(Decision::chosen);
        chosen.map(|(package, _, _)| package.to_string()).collect()
    };
    let mut target = Target::new();
    let offers = many(&BTreeMap::new(), limit + 3);
    let first = chosen(&target, &offers);
    assert_eq!((first.len(), first.contains("p066")), (limit, false));
    // What it has comes first.
    target.told = vec![signed("p066", 1)];
    let second = chosen(&target, &offers);
    assert_eq!((second.len(), second.contains("p066"), second.contains("p063")), (limit, true, false));
    // Settings count as they are written.
    let long = BTreeMap::from([("k".to_owned(), "\u{1}".repeat(4000))]);
    let third = chosen(&Target::new(), &many(&long, limit));
    let written = serde_json::to_vec(&long).unwrap().len();
    assert!((1..limit).contains(&third.len()), "{third:?}");
    assert!(third.len() * written < MetadataLimits::DEVICE.assignment_bytes);
}

#[test]
fn the_same_package_scope_and_priority_is_replaced() {
    let offers = Offers::new(vec![
        Arc::new(offer(1, "site in (a, b)", 0, 1)),
        Arc::new(offer(2, "site in (a, b)", 1, 1)),
        Arc::new(offer(3, "target edge-1", 0, 1)),
    ]);
    let (with, replaced) = offers.with(offer(i64::MAX, "site in (b,a)", 0, 2));
    assert_eq!(replaced.map(|offer| offer.id.clone()), Some("d1".to_owned()));
    assert_eq!(with.iter().count(), 3);
    let (with, replaced) = offers.with(offer(i64::MAX, "site in (b,c)", 0, 2));
    assert_eq!((with.iter().count(), replaced), (4, None));
}

#[derive(Debug, Clone)]
struct Any {
    package: String,
    scope: &'static str,
    priority: i32,
    release: u64,
    arm: bool,
}

fn any_offer() -> impl Strategy<Value = Any> {
    let scopes = ["name", "site = oslo", "site != oslo", "zone", "disk > 1GiB", "target edge-1", "target x"];
    (0..3_u8, prop::sample::select(scopes.to_vec()), -1..2_i32, 1..5_u64, any::<bool>()).prop_map(
        |(package, scope, priority, release, arm)| Any {
            package: format!("p{package}"),
            scope,
            priority,
            release,
            arm,
        },
    )
}

fn build(offers: &[Any]) -> Vec<Arc<Offer>> {
    let built = offers.iter().enumerate().map(|(number, any)| {
        let architecture = if any.arm { "aarch64" } else { "x86_64" };
        let requires = Requires { architectures: vec![architecture.into()], ..Requires::default() };
        let offer = offer(i64::try_from(number).unwrap(), any.scope, any.priority, any.release);
        let offer = Offer { assigned: assigned(&any.package, any.release), ..offer };
        Arc::new(requiring(offer, requires))
    });
    built.collect()
}

fn any_target() -> impl Strategy<Value = Target> {
    let site = prop::option::of(prop::sample::select(vec!["oslo", "bergen"]));
    let told = prop::collection::btree_map(0..3_u8, 1..5_u64, 0..3);
    let floors = prop::collection::btree_map(0..3_u8, 1..5_u64, 0..3);
    (site, any::<bool>(), told, floors).prop_map(|(site, heard, told, floors)| {
        let mut target = Target::new();
        target.labels = site.map(|site| map(&[("site", site)])).unwrap_or_default();
        if !heard {
            target.facts.clear();
        }
        target.told = told.into_iter().map(|(name, release)| signed(&format!("p{name}"), release)).collect();
        target.floors =
            floors.into_iter().map(|(name, floor)| (format!("p{name}").parse().unwrap(), floor)).collect();
        target
    })
}

proptest! {
    #[test]
    fn the_winner_is_the_best_that_may_run(
        target in any_target().no_shrink(),
        offers in prop::collection::vec(any_offer(), 0..12),
    ) {
        let built = build(&offers);
        let in_order = Offers::new(built.clone());
        let subject = target.subject();
        let resolution = resolve(&subject, &in_order);
        for decision in resolution.packages.values() {
            let may = |verdict: &Verdict<'_>| matches!(verdict, Verdict::Wins | Verdict::Lost(..));
            let best = decision
                .verdicts
                .iter()
                .filter(|(_, verdict)| may(verdict))
                .map(|(offer, _)| *offer)
                .max_by_key(|offer| (offer.priority, offer.number));
            prop_assert_eq!(decision.winner, best);
            let wins = decision.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Wins).count();
            prop_assert_eq!(wins, usize::from(best.is_some()));
            // Nothing is removed by omission, and nothing stays that nobody wants.
            let package = &decision.verdicts[0].0.assigned.package;
            let strange = |offer: &Offer| offer.scope == Scope::Target("x".parse().unwrap());
            prop_assert!(!decision.verdicts.iter().any(|(offer, _)| strange(offer)));
            let told = target.told.iter().find(|told| told.package == *package);
            if decision.in_scope() && told.is_some() {
                let possible = decision.verdicts.iter().all(|(offer, verdict)| {
                    !(matches!(verdict, Verdict::Blocked(Block::Architecture { .. }))
                        && offer.assigned.digest == told.unwrap().digest)
                });
                prop_assert!(decision.chosen().is_some() || !possible);
            }
            if !decision.in_scope() {
                prop_assert_eq!(decision.chosen(), None);
            }
            // Only what fits is ever new.
            if let Some(winner) = decision.winner {
                let floor = target.floors.get(package).copied().unwrap_or(0);
                prop_assert!(winner.assigned.release >= floor);
            }
        }
        // The order in which they were read does not matter.
        let mut turned = built;
        turned.reverse();
        let turned = Offers::new(turned);
        prop_assert_eq!(&resolution, &resolve(&subject, &turned));
    }

    #[test]
    fn what_was_told_is_told_again(
        mut target in any_target().no_shrink(),
        offers in prop::collection::vec(any_offer(), 0..12),
    ) {
        let offers = Offers::new(build(&offers));
        let decide = |target: &Target| -> Vec<AssignedPackage> {
            let subject = target.subject();
            let resolution = resolve(&subject, &offers);
            let chosen = resolution.packages.values().filter_map(|decision| match (decision.winner, decision.kept) {
                (Some(winner), _) => Some(signed(winner.assigned.package.as_str(), winner.assigned.release)),
                (None, kept) => kept.cloned(),
            });
            chosen.collect()
        };
        target.told = decide(&target);
        let again = decide(&target);
        prop_assert_eq!(&target.told, &again);
    }
}
