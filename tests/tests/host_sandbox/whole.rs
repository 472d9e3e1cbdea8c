//! Guests that take their requests as wholes: what they may say of one, and what of it counts.

use std::sync::Arc;

use selvedge_host::failure::{OpenError, PredictError};
use selvedge_host::runtime::Loaded;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::{counts, onnx_writer};
use serde_json::json;

use crate::fixture::{Package, Written, ask, hostile};
use crate::hostile::check_neighbour;
use crate::requests::{bytes, named, stale};

/// A guest that takes its requests as wholes, and what it does with them, with memory for so much.
fn relay(how: &str, tensor_mib: u32) -> Arc<Loaded> {
    relay_package(how, tensor_mib).open().unwrap()
}

fn relay_package(how: &str, tensor_mib: u32) -> Written {
    let of = &[("x", "UINT8", &[-1_i64][..])];
    let model = onnx_writer::identity_of(onnx_writer::Element::Uint8, &[onnx_writer::Extent::Named("N")]);
    let package = Package::new(model, of, &[("y", "UINT8", &[-1])]).component(hostile("relay"));
    package
        .module("concurrency", json!(1))
        .module("tensor-mib", json!(tensor_mib))
        .set("settings", json!({"how": how}))
        .write()
}

#[test]
fn a_request_as_a_whole_is_answered_once() {
    // Half a megabyte each time: what is left behind would not fit soon.
    let (loaded, large) = (relay("", 1), vec![7; 500_000]);
    for turn in 0..20 {
        let inputs =
            vec![NamedTensor::new("x", Tensor::fixed(Datatype::Uint8, [500_000], large.clone()).unwrap())];
        match ask(&loaded, inputs) {
            // Its model knows from now on what it takes, and runs where it is asked.
            Ok(answer) if turn == 0 => assert_eq!(bytes(&answer), large),
            Err(PredictError::Module(why)) if turn > 0 => assert!(why.contains("before"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((loaded.instances_made(), loaded.idle_instances()), (1, 1));
    check_neighbour();
    counts::say("hostile guest relay (again): request failed: it was handed to a model before");
}

#[test]
fn a_request_as_a_whole_without_an_answer_fails() {
    let loaded = relay("nothing", 64);
    for _ in 0..2 {
        match ask(&loaded, named("x", [7, 7, 7])) {
            Err(PredictError::Module(why)) => assert_eq!(why, "it ended without an answer"),
            other => panic!("{other:?}"),
        }
    }
    check_neighbour();
    counts::say("hostile guest relay (nothing): request failed: no answer");
}

#[test]
fn what_is_said_of_a_whole_is_cut() {
    // Fifty times a megabyte.
    match ask(&relay("long", 1), named("x", [7, 7, 7])) {
        Err(PredictError::InvalidInput(why)) => assert_eq!(why, "x".repeat(4096)),
        other => panic!("{other:?}"),
    }
    check_neighbour();
    counts::say("hostile guest relay (long): request failed: what it says was cut");
}

#[test]
fn what_is_said_last_of_a_whole_counts() {
    let loaded = relay("sorry", 64);
    for _ in 0..3 {
        assert_eq!(bytes(&ask(&loaded, named("x", [1, 2, 3])).unwrap()), [1, 2, 3]);
    }
}

#[test]
fn an_answer_that_is_taken_back_is_gone() {
    let (loaded, large) = (relay("regret", 1), vec![7; 500_000]);
    for turn in 0..20 {
        let tensor = Tensor::fixed(Datatype::Uint8, [500_000], large.clone()).unwrap();
        match ask(&loaded, vec![NamedTensor::new("x", tensor)]) {
            Ok(answer) if turn == 0 => assert_eq!(bytes(&answer), large),
            Err(PredictError::InvalidInput(why)) if turn > 0 => assert_eq!(why, "on second thoughts"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((loaded.instances_made(), loaded.idle_instances()), (1, 1));
}

#[test]
fn a_trap_after_a_whole_has_its_answer_fails_the_request_and_ends_the_instance() {
    let loaded = relay("trap", 64);
    for made in 1..4 {
        assert_eq!(bytes(&ask(&loaded, named("x", [1, 2, 3])).unwrap()), [1, 2, 3]);
        // Its model knows from now on what it takes, and answers before the trap.
        match ask(&loaded, named("x", [7, 7, 7])) {
            Err(PredictError::Trap(why)) => assert!(why.contains("unreachable"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!((loaded.instances_made(), loaded.idle_instances()), (made, 0));
    }
    check_neighbour();
    counts::say("hostile guest relay (trap): request failed: trap; its instance thrown away");
}

#[test]
fn a_whole_is_answered_where_there_is_one() {
    let no_whole = "answers requests that come by `relay`";
    match relay_package("early", 64).open().map(drop) {
        Err(OpenError::Component { why, .. }) => assert!(why.contains(no_whole), "{why}"),
        other => panic!("{other:?}"),
    }
    let loaded = stale("package");
    ask(&loaded, named("first", [7, 7, 7])).unwrap();
    match ask(&loaded, named("whole", [1, 2, 3])) {
        Err(PredictError::Trap(why)) => assert!(why.contains(no_whole), "{why}"),
        other => panic!("{other:?}"),
    }
    check_neighbour();
    counts::say(
        "hostile guest relay (early): not opened; stale (whole): request failed: no request as a whole",
    );
}

#[test]
fn what_comes_as_a_whole_counts_with_what_a_module_keeps_and_so_does_what_goes_back() {
    // Two megabytes may be held, of which it keeps 1.5 million.
    let loaded = relay("keep", 1);
    let of = |length: u64| {
        let tensor = Tensor::fixed(Datatype::Uint8, [length], vec![7; length as usize]).unwrap();
        ask(&loaded, vec![NamedTensor::new("x", tensor)])
    };
    for _ in 0..20 {
        for length in [700_000, 400_000] {
            match of(length) {
                Err(PredictError::Limit(why)) => assert!(why.contains("may hold 2 MiB"), "{why}"),
                other => panic!("{length}: {other:?}"),
            }
        }
        assert_eq!(bytes(&of(200_000).unwrap()).len(), 200_000);
    }
}

#[test]
fn what_is_wrong_with_a_whole_is_said_and_the_instance_goes_on() {
    let loaded = relay("once", 64);
    for _ in 0..10_001 {
        match ask(&loaded, named("other", [7, 7, 7])) {
            Err(PredictError::InvalidInput(why)) => assert!(why.contains("no input `other`"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(bytes(&ask(&loaded, named("x", [1, 2, 3])).unwrap()), [1, 2, 3]);
    }
    assert_eq!((loaded.instances_made(), loaded.idle_instances()), (1, 1));
}
