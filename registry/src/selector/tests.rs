//! What selectors match, what their errors say, and that their canonical form is one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn matching(text: &str, labels: &[(&str, &str)], facts: &[(&str, &str)]) -> bool {
    let selector: Selector = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let (labels, facts) = (map(labels), map(facts));
    let target = Attributes { name: "edge-1", kind: "device", labels: &labels, facts: &facts };
    selector.matches(&target) == Match::Yes
}

#[test]
fn terms_hold_for_what_they_say() {
    let labels = [("site", "oslo"), ("floor", "2"), ("limit", "1.5k"), ("text", "a \"b\" \\"), ("empty", "")];
    let facts = [
        ("architecture", "aarch64"),
        ("memory-mib", "926"),
        ("disk-free-mib", "4000"),
        ("cores", "4"),
        ("site", "fact"),
        ("name", "forged"),
        ("kind", "forged"),
    ];
    for (text, expected) in [
        ("name", true),
        ("name = edge-1", true),
        ("name = forged", false),
        ("kind = device", true),
        ("arch = aarch64, site in (oslo, bergen), ram >= 900MiB", true),
        ("arch = aarch64, site in (oslo, bergen), ram >= 1GiB", false),
        ("architecture = aarch64", true),
        ("site == oslo", true),
        ("site = fact", false),
        ("site != oslo", false),
        ("site notin (oslo)", false),
        ("site notin (bergen, trondheim)", true),
        ("other != x", true),
        ("other notin (x, y)", true),
        ("other = x", false),
        ("other > 1", false),
        ("other", false),
        ("!other", true),
        ("! site", false),
        ("empty", true),
        ("empty = \"\"", true),
        ("text = \"a \\\"b\\\" \\\\\"", true),
        ("cores > 4", false),
        ("cores >= 4", true),
        ("cores < 4.001", true),
        ("cores <= 3.999", false),
        ("cores > -1", true),
        ("limit = 1500", false),
        ("limit >= 1500", true),
        ("limit > 1500", false),
        ("memory-mib >= 926", true),
        ("memory-mib >= 1GiB", false),
        ("memory-mib < 1GiB", true),
        ("disk > 3GiB, disk < 4TiB", true),
        ("site > 1", false),
        ("floor < 10", true),
    ] {
        assert_eq!(matching(text, &labels, &facts), expected, "{text}");
    }
    assert!(matching("ram >= 2GiB", &[("ram", "4GiB")], &facts), "a label wins");
    assert!(!matching("ram >= 2GiB", &[], &[]), "nothing is known yet");
}

#[test]
fn what_does_not_match_is_named() {
    let (labels, facts) = (map(&[("site", "oslo")]), map(&[("disk-free-mib", "10")]));
    let target = Attributes { name: "edge-1", kind: "device", labels: &labels, facts: &facts };
    let check = |text: &str, expected: &str| {
        let selector: Selector = text.parse().unwrap();
        let (kind, term) = match selector.matches(&target) {
            Match::Yes => panic!("{text} matches"),
            Match::NoRoom(term) => ("no room", term),
            Match::No(term) => ("no", term),
        };
        assert_eq!(format!("{kind}: {}", term.why_not(&target)), expected);
    };
    check("site = bergen", "no: `site = bergen` does not hold: its `site` is `oslo`");
    check("zone in (b, a)", "no: `zone in (a, b)` does not hold: it has no `zone`");
    check("disk > 1GiB", "no room: `disk > 1GiB` does not hold: its `disk` is `10MiB`");
    check("disk > 1GiB, site = x", "no: `site = x` does not hold: its `site` is `oslo`");
}

#[test]
fn errors_say_where_and_what() {
    for (text, expected) in [
        ("", "it is empty; `name` matches every target"),
        (" \n ", "it is empty; `name` matches every target"),
        (
            "site =",
            "character 7: expected a value, in double quotes where it has spaces or signs, found the end",
        ),
        ("site = oslo bergen", "character 13: expected `,` and another term, or the end, found `bergen`"),
        ("site = a,", "character 10: expected a key such as `site`, `arch` or `ram`, found the end"),
        (",site", "character 1: expected a key such as `site`, `arch` or `ram`, found `,site`"),
        (
            "site ~ x",
            "character 6: expected one of `=`, `!=`, `in`, `notin`, `<`, `<=`, `>`, `>=`, or a `,`, found `~ x`",
        ),
        ("site in oslo", "character 9: expected `(` and a list such as `(oslo, bergen)`, found `oslo`"),
        ("site in (oslo", "character 14: expected `,` and another value, or `)`, found the end"),
        (
            "site in ()",
            "character 10: expected a value, in double quotes where it has spaces or signs, found `)`",
        ),
        ("site ! oslo", "character 7: expected `=` behind `!`, found ` oslo`"),
        ("ram > 512", "character 7: expected a size with its unit, such as `512MiB`, found `512`"),
        (
            "cores > many",
            "character 9: expected a number such as `4`, `1.5`, `2k` or `512MiB` (at most 15 digits and 3 decimals), found `many`",
        ),
        ("æ = x", "character 1: expected a key such as `site`, `arch` or `ram`, found `æ = x`"),
        ("a = \"x", "character 7: expected the closing `\"`, found the end"),
        ("a = \"x\\y\"", "character 8: expected `\"` or `\\` behind `\\`, found `y\\\"`"),
    ] {
        assert_eq!(text.parse::<Selector>().unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn hostile_selectors_are_refused() {
    let terms = |count: usize| (0..count).map(|at| format!("k{at}")).collect::<Vec<_>>().join(",");
    assert!(terms(TERMS).parse::<Selector>().is_ok());
    assert!(matches!(terms(TERMS + 1).parse::<Selector>(), Err(SelectorError::TooMany { limit: TERMS, .. })));
    let list = |count: usize| format!("k in ({})", terms(count));
    assert!(list(VALUES).parse::<Selector>().is_ok());
    assert!(matches!(list(VALUES + 1).parse::<Selector>(), Err(SelectorError::TooMany { .. })));
    assert!(matches!("a".repeat(LONGEST + 1).parse::<Selector>(), Err(SelectorError::TooLong(_))));
    for bad in [
        "a".repeat(KEY + 1),
        format!("k = {}", "v".repeat(VALUE + 1)),
        "k = \"line\nbreak\"".to_owned(),
        "k > 1234567890123456".to_owned(),
        "k > 1.2345".to_owned(),
        "k > 0x10".to_owned(),
        "k > 1e9".to_owned(),
        "k > --1".to_owned(),
        "k in ((a))".to_owned(),
        "!!k".to_owned(),
        "(k)".to_owned(),
    ] {
        assert!(bad.parse::<Selector>().is_err(), "{bad}");
    }
}

#[test]
fn the_order_does_not_matter() {
    let check = |text: &str, canonical: &str| {
        assert_eq!(text.parse::<Selector>().unwrap().to_string(), canonical);
    };
    check("site in (oslo,bergen) ,arch=aarch64", "arch = aarch64, site in (bergen, oslo)");
    check("a in (x)", "a = x");
    check("a notin (\"x\")", "a != x");
    check("a,a,b,a", "a, b");
    check("n >= 01.500GiB, n > -0", "n > 0, n >= 1.5GiB");
    check("t = \"two words\"", "t = \"two words\"");
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9:.@~+/_-]{1,6}", "[ -~æ]{0,8}"]
}

fn term() -> impl Strategy<Value = Term> {
    let key = prop_oneof![Just("site".to_owned()), Just("cores".to_owned()), "[A-Za-z0-9_./-]{1,9}"];
    let values = || prop::collection::btree_set(value(), 1..4).prop_map(|set| set.into_iter().collect());
    let relation = prop_oneof![
        Just(Relation::Less),
        Just(Relation::LessOrEqual),
        Just(Relation::More),
        Just(Relation::MoreOrEqual)
    ];
    let number = (any::<bool>(), 0_u64..1_000_000_000_000_000, 0_u32..1000, 0..=8_usize).prop_map(
        |(negative, whole, rest, unit)| {
            let unit = ["KiB", "MiB", "GiB", "TiB", "k", "M", "G", "T", ""][unit];
            let sign = if negative { "-" } else { "" };
            Number::parse(&format!("{sign}{whole}.{rest:03}{unit}")).unwrap()
        },
    );
    let test = prop_oneof![
        Just(Test::Exists),
        Just(Test::Missing),
        values().prop_map(Test::In),
        values().prop_map(Test::NotIn),
        (relation, number).prop_map(|(relation, number)| Test::Compare(relation, number)),
    ];
    (key, test)
        .prop_filter("sizes want a unit", |(key, test)| {
            !SIZES.iter().any(|(size, _)| size == key) || !matches!(test, Test::Compare(..))
        })
        .prop_map(|(key, test)| Term { key, test })
}

proptest! {
    #[test]
    fn what_is_shown_reads_back_the_same(terms in prop::collection::btree_set(term(), 1..8)) {
        let selector = Selector { terms: terms.into_iter().collect() };
        prop_assert_eq!(selector.to_string().parse(), Ok(selector));
    }

    #[test]
    fn the_same_terms_in_any_order_are_the_same(
        terms in prop::collection::vec(term(), 1..6).prop_shuffle(),
        spaces in "[ \t]{0,3}",
    ) {
        let shown: Vec<String> = terms.iter().map(Term::to_string).collect();
        let text = format!("{spaces}{}{spaces}", shown.join(&format!("{spaces},{spaces}")));
        let mut sorted = terms;
        sorted.sort();
        sorted.dedup();
        prop_assert_eq!(text.parse(), Ok(Selector { terms: sorted }));
    }

    #[test]
    fn anything_is_read_or_refused(text in "\\PC{0,60}|[a-c =!<>(),\"\\\\0-9.]{0,60}") {
        if let Ok(selector) = text.parse::<Selector>() {
            prop_assert_eq!(selector.to_string().parse(), Ok(selector));
        }
    }

    #[test]
    fn a_term_and_its_opposite_never_both_hold(
        key in "a|b|name|ram",
        values in prop::collection::btree_set("[xyz]", 1..3),
        labels in prop::collection::btree_map("a|b", "[xyz]", 0..3),
    ) {
        let facts = BTreeMap::new();
        let target = Attributes { name: "x", kind: "device", labels: &labels, facts: &facts };
        let values: Vec<String> = values.into_iter().collect();
        let holds = |test| Term { key: key.clone(), test }.holds(&target);
        prop_assert_ne!(holds(Test::In(values.clone())), holds(Test::NotIn(values)));
        prop_assert_ne!(holds(Test::Exists), holds(Test::Missing));
    }
}
