//! Guests that no compiler makes, written by hand: what they do happens while they are instantiated, so
//! that the package is refused as it is opened.

use selvedge_host::failure::OpenError;
use selvedge_tests::counts;
use serde_json::json;

use crate::fixture::{Package, Written, hostile_text};
use crate::hostile::check_neighbour;

fn guest(text: &str) -> Written {
    let component = wat::parse_str(text).unwrap();
    Package::guest(component).module("deadline-ms", json!(2000)).write()
}

fn check(guest_name: &str, text: &str, part: &str) {
    match guest(text).refusal() {
        OpenError::Limit(why) => {
            assert!(why.contains(part), "{why}");
            counts::say(&format!("hostile guest {guest_name}: not opened: {why}"));
        }
        other => panic!("{other:?}"),
    }
    check_neighbour();
}

/// A component of these core definitions, with a predictor that does nothing.
fn component(core: &str) -> String {
    format!(
        r#"(component
            (core module $nothing (func (export "predict")))
            (core instance $instance (instantiate $nothing))
            {core}
            (func $predict (canon lift (core func $instance "predict")))
            (instance $predictor (export "predict" (func $predict)))
            (export "selvedge:model/predictor@0.1.0" (instance $predictor)))"#
    )
}

#[test]
fn an_endless_start_function_ends_at_the_deadline() {
    check("start", &hostile_text("start"), "deadline");
}

#[test]
fn a_table_balloon_stops_at_the_limit_of_tables() {
    check("table-balloon", &hostile_text("table-balloon"), "may have 100000");
}

#[test]
fn a_table_declared_too_large_is_refused() {
    let core = r#"(core module $m (table 200000 funcref)) (core instance (instantiate $m))"#;
    check("large table", &component(core), "may have 100000");
}

#[test]
fn a_memory_declared_too_large_is_refused() {
    let core = r#"(core module $m (memory 65536)) (core instance (instantiate $m))"#;
    check("large memory", &component(core), "asked for 4096 MiB");
}

#[test]
fn many_memories_share_one_limit() {
    let core = r#"(core module $m (memory 512)) (core instance (instantiate $m))
        (core instance (instantiate $m)) (core instance (instantiate $m))"#;
    check("several memories", &component(core), "may have 64 MiB");
}

#[test]
fn an_instance_balloon_is_refused() {
    // Tables and memories count each for itself.
    for (what, module, count) in [
        ("instances", "(core module $m)", 100),
        ("memories", "(core module $m (memory 0))", 40),
        ("tables", "(core module $m (table 0 funcref))", 40),
    ] {
        let core = format!("{module} {}", "(core instance (instantiate $m)) ".repeat(count));
        check(&format!("many {what}"), &component(&core), "resource limit exceeded");
    }
}

#[test]
fn a_component_within_the_limits_opens() {
    // The ones above must not fail for another reason: this differs in numbers alone.
    let core = format!("(core module $m) {}", "(core instance (instantiate $m)) ".repeat(10));
    match guest(&component(&core)).refusal() {
        // Its `predict` has another type, which is looked at last.
        OpenError::Component { why, .. } => assert!(!why.contains("limit"), "{why}"),
        other => panic!("{other:?}"),
    }
}
