//! Sequences with real instances: what a module finds again, what ends with its request, and what ends the sequence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_host::failure::PredictError;
use selvedge_host::runtime::Loaded;
use selvedge_host::sequence::{Ended, Id, Part, SequenceError};
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::{counts, onnx_writer};
use serde_json::json;

use crate::fixture::{LONG, Package, ask, executor, hostile};
use crate::hostile::check_neighbour;

fn keeper() -> Package {
    Package::guest(hostile("keeper")).module("sequences", json!({"most": 4, "idle-seconds": 600}))
}

fn word(word: &str) -> Vec<NamedTensor> {
    let tensor = Tensor::fixed(Datatype::Uint8, [word.len() as u64], word.as_bytes().to_vec()).unwrap();
    vec![NamedTensor::new("x", tensor)]
}

fn text(answer: Vec<NamedTensor>) -> String {
    String::from_utf8(answer[0].tensor.as_fixed().unwrap().to_vec()).unwrap()
}

fn part(id: u64) -> Part {
    Part { id: Id::Number(id), first: false, last: false }
}

fn first(id: u64) -> Part {
    Part { first: true, ..part(id) }
}

fn last(id: u64) -> Part {
    Part { last: true, ..part(id) }
}

async fn turn(loaded: &Loaded, part: Part) -> Result<selvedge_host::sequence::Turn, SequenceError> {
    loaded.sequences().unwrap().enter(part, clock() + LONG).await
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}

fn say(loaded: &Loaded, part: Part, said: &str) -> Result<String, PredictError> {
    executor().block_on(async {
        let turn = turn(loaded, part).await.unwrap();
        loaded.proceed(turn, word(said), LONG).await.map(text)
    })
}

/// Why there is no sequence any more.
fn ended(loaded: &Loaded, id: u64) -> Option<Ended> {
    match executor().block_on(turn(loaded, part(id))) {
        Err(SequenceError::Unknown { why, .. }) => why,
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn a_sequence_has_an_instance_to_itself() {
    let loaded = keeper().write().open().unwrap();
    let counted = |part: Part| say(&loaded, part, "count").unwrap();
    assert_eq!((counted(first(1)), counted(first(2))), ("1".to_owned(), "1".to_owned()));
    assert_eq!((counted(part(1)), counted(part(1)), counted(part(2))), ("2".into(), "3".into(), "2".into()));
    // Who belongs to none finds nothing of theirs, and leaves nothing.
    for _ in 0..2 {
        assert_eq!(text(ask(&loaded, word("count")).unwrap()), "1");
    }
    assert_eq!(loaded.idle_instances(), 0);
    assert_eq!(counted(last(1)), "4");
    assert_eq!(ended(&loaded, 1), Some(Ended::Last));
    assert_eq!(counted(first(1)), "1");
    // Begun anew in the middle.
    assert_eq!((counted(first(2)), counted(part(2))), ("1".to_owned(), "2".to_owned()));
}

#[test]
fn a_module_knows_which_part_it_answers() {
    let loaded = keeper().write().open().unwrap();
    let asked = |part: Part| say(&loaded, part, "part").unwrap();
    assert_eq!(asked(first(7)), "Some(\"7\") first=true last=false");
    assert_eq!(asked(part(7)), "Some(\"7\") first=false last=false");
    assert_eq!(asked(last(7)), "Some(\"7\") first=false last=true");
    let named = Part { id: Id::Text("a\"b".to_owned()), first: true, last: true };
    assert_eq!(asked(named), "Some(\"a\\\"b\") first=true last=true");
    assert_eq!(text(ask(&loaded, word("part")).unwrap()), "None first=true last=true");
}

#[test]
fn tensors_of_a_sequence_stay_but_not_those_that_came_with_a_request() {
    let loaded = keeper().write().open().unwrap();
    for (id, kept, found) in [(1, "made", "[1, 2, 3, 4]"), (2, "output", "[0, 0, 0, 0]")] {
        assert_eq!(say(&loaded, first(id), kept).unwrap(), "1");
        assert_eq!(say(&loaded, part(id), "read").unwrap(), found);
        assert_eq!(say(&loaded, part(id), "read").unwrap(), found);
    }
    assert_eq!(say(&loaded, first(3), "input").unwrap(), "1");
    match say(&loaded, part(3), "read") {
        Err(PredictError::Module(why)) => assert!(why.contains("earlier request"), "{why}"),
        other => panic!("{other:?}"),
    }
    counts::say(
        "hostile guest keeper (input): request failed: a tensor that came with a request ends with it",
    );
    check_neighbour();
}

#[test]
fn what_a_sequence_holds_is_bounded_over_all_its_requests() {
    let loaded = keeper().module("tensor-mib", json!(4)).write().open().unwrap();
    let mut held = say(&loaded, first(1), "hoard").unwrap();
    let refused = loop {
        match say(&loaded, part(1), "hoard") {
            Ok(count) => held = count,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(&refused, PredictError::Limit(why) if why.contains("may hold 8 MiB")), "{refused:?}");
    assert_eq!(held, "7");
    // Another one has its own.
    assert_eq!(say(&loaded, first(2), "hoard").unwrap(), "1");
    counts::say("hostile guest keeper (hoard): request failed: limit of tensors held; its sequence ended");
    check_neighbour();
}

#[test]
fn a_trap_or_a_missed_deadline_ends_the_sequence_and_no_other() {
    let loaded = keeper().write().open().unwrap();
    assert_eq!(say(&loaded, first(9), "count").unwrap(), "1");
    assert_eq!(say(&loaded, first(1), "count").unwrap(), "1");
    assert!(matches!(say(&loaded, part(1), "trap"), Err(PredictError::Trap(_))));
    assert_eq!(ended(&loaded, 1), Some(Ended::Failed));
    assert_eq!(say(&loaded, first(1), "count").unwrap(), "1");
    let spun = executor().block_on(async {
        let turn = turn(&loaded, part(1)).await.unwrap();
        loaded.proceed(turn, word("spin"), Duration::from_millis(50)).await
    });
    assert!(matches!(spun, Err(PredictError::Deadline(_))), "{spun:?}");
    assert_eq!(ended(&loaded, 1), Some(Ended::Failed));
    assert_eq!(say(&loaded, part(9), "count").unwrap(), "2");
    counts::say("hostile guest keeper (trap, spin): request failed; its sequence ended, the others went on");
    check_neighbour();
}

#[test]
fn an_error_of_the_module_ends_only_a_sequence_that_has_not_begun() {
    let loaded = keeper().write().open().unwrap();
    assert_eq!(say(&loaded, first(1), "count").unwrap(), "1");
    assert!(matches!(say(&loaded, part(1), "error"), Err(PredictError::InvalidInput(_))));
    assert_eq!(say(&loaded, part(1), "count").unwrap(), "3");
    assert!(matches!(say(&loaded, first(2), "error"), Err(PredictError::InvalidInput(_))));
    assert_eq!(ended(&loaded, 2), Some(Ended::Failed));
}

#[test]
fn what_comes_as_a_whole_ends_with_its_request_in_a_sequence_too() {
    let model = onnx_writer::identity_of(onnx_writer::Element::Uint8, &[onnx_writer::Extent::Named("N")]);
    let package = Package::new(model, &[("x", "UINT8", &[-1])], &[("y", "UINT8", &[-1])]);
    let loaded = package
        .component(hostile("relay"))
        .module("sequences", json!({"most": 4, "idle-seconds": 600}))
        .module("tensor-mib", json!(1))
        .set("settings", json!({"how": "once"}))
        .write()
        .open()
        .unwrap();
    // Half a megabyte each time: what stays would not fit soon.
    let long = "seven bytes".repeat(45_000);
    assert_eq!(say(&loaded, first(7), &long).unwrap(), long);
    for _ in 0..20 {
        assert_eq!(say(&loaded, part(7), &long).unwrap(), long);
    }
    assert_eq!(say(&loaded, last(7), "end").unwrap(), "end");
    // The first instance was made to see that it can be.
    assert_eq!(loaded.instances_made(), 2);
}

#[test]
fn sequences_end_with_their_package() {
    let loaded = keeper().write().open().unwrap();
    let weak = Arc::downgrade(&loaded);
    assert_eq!(say(&loaded, first(1), "count").unwrap(), "1");
    loaded.sequences().unwrap().end_all();
    assert_eq!(ended(&loaded, 1), Some(Ended::Gone));
    loaded.sequences().unwrap().open_again();
    assert_eq!(say(&loaded, first(1), "count").unwrap(), "1");
    // Nothing of a sequence holds the package.
    drop(loaded);
    assert!(weak.upgrade().is_none());
}
