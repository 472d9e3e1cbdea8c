//! Guests that mean harm: each ends its own request with a typed error, and nothing else.

use selvedge_host::failure::{OpenError, PredictError};
use selvedge_host::runtime::Loaded;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use serde_json::json;

use crate::fixture::{LONG, Package, Written, answers_beside, ask, executor, floats, fp32, hostile, small};

/// A guest with a short deadline.
fn guest(name: &str) -> Written {
    Package::guest(hostile(name)).module("deadline-ms", json!(2000)).write()
}

/// A well-behaved package still answers.
pub fn check_neighbour() {
    let package = Package::identity().write();
    let loaded = package.open().unwrap();
    let outputs = ask(&loaded, vec![fp32("x", &[2, 3], &[7.0; 6])]).unwrap();
    assert_eq!(floats(&outputs[0].tensor), [7.0; 6]);
}

fn limit(name: &str, loaded: &Loaded, part: &str) {
    match ask(loaded, small()) {
        Err(PredictError::Limit(why)) => {
            assert!(why.contains(part), "{why}");
            counts::say(&format!("hostile guest {name}: request failed: {why}"));
        }
        other => panic!("{other:?}"),
    }
    check_neighbour();
}

#[test]
fn an_endless_loop_ends_at_the_deadline() {
    let package = guest("spin");
    let loaded = package.open().unwrap();
    for _ in 0..2 {
        assert!(matches!(ask(&loaded, small()), Err(PredictError::Deadline(_))));
    }
    assert_eq!(loaded.instances_made(), 2, "an instance that missed its deadline is thrown away");
    check_neighbour();
    counts::say("hostile guest spin: request failed: its deadline");
}

#[test]
fn endless_loops_on_every_thread_leave_others_answering() {
    let package = Package::guest(hostile("spin"))
        .module("deadline-ms", json!(3000))
        .module("concurrency", json!(4))
        .write();
    let spinning = package.open().unwrap();
    let neighbour = Package::identity().write();
    let neighbour = neighbour.open().unwrap();
    executor().block_on(answers_beside(&spinning, 4, &neighbour));
}

#[test]
fn a_request_that_finds_no_free_instance_says_so_at_its_deadline() {
    let package = Package::guest(hostile("spin"))
        .module("deadline-ms", json!(2000))
        .module("concurrency", json!(1))
        .write();
    let loaded = package.open().unwrap();
    executor().block_on(async {
        let first = tokio::spawn({
            let loaded = loaded.clone();
            async move { loaded.predict(small(), LONG).await }
        });
        tokio::task::yield_now().await;
        while loaded.idle_instances() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let second = loaded.predict(small(), std::time::Duration::from_millis(50)).await;
        assert!(matches!(second, Err(PredictError::Busy(_))), "{second:?}");
        assert!(matches!(first.await.unwrap(), Err(PredictError::Deadline(_))));
    });
}

#[test]
fn an_endless_init_refuses_the_package() {
    match guest("spin-init").refusal() {
        OpenError::Limit(why) => assert!(why.contains("init"), "{why}"),
        other => panic!("{other:?}"),
    }
    counts::say("hostile guest spin-init: not opened: its deadline");
    check_neighbour();
}

#[test]
fn a_memory_balloon_stops_at_the_packages_memory() {
    let package = Package::guest(hostile("balloon")).module("memory-mib", json!(32)).write();
    limit("balloon", &package.open().unwrap(), "32 MiB");
}

#[test]
fn deep_recursion_ends_with_the_stack() {
    let package = Package::guest(hostile("recursion")).write();
    limit("recursion", &package.open().unwrap(), "stack");
}

#[test]
fn handles_are_counted() {
    let package = Package::guest(hostile("handles")).write();
    limit("handles", &package.open().unwrap(), "handles");
}

#[test]
fn tensors_beyond_the_packages_limit_are_refused_one_by_one_and_as_an_answer() {
    let package = Package::guest(hostile("huge-output")).module("tensor-mib", json!(32)).write();
    limit("huge-output", &package.open().unwrap(), "may give 32 MiB");
}

#[test]
fn a_trap_costs_its_own_request_and_instance() {
    let package = Package::guest(hostile("trap")).write();
    let loaded = package.open().unwrap();
    assert!(ask(&loaded, small()).is_ok());
    let tensor = Tensor::fixed(Datatype::Uint8, [1], vec![0]).unwrap();
    match ask(&loaded, vec![NamedTensor::new("trap", tensor)]) {
        Err(PredictError::Trap(why)) => assert!(why.contains("unreachable"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(loaded.instances_made(), 1);
    assert!(ask(&loaded, small()).is_ok());
    assert!(ask(&loaded, small()).is_ok());
    assert_eq!(loaded.instances_made(), 2);
    counts::say("hostile guest trap: request failed: trap; its instance thrown away");
}

#[test]
fn isolation_by_request_makes_a_fresh_instance_for_each() {
    let package = Package::guest(hostile("trap")).module("isolation", json!("request")).write();
    let loaded = package.open().unwrap();
    for _ in 0..3 {
        assert!(ask(&loaded, small()).is_ok());
    }
    assert_eq!(loaded.instances_made(), 4);
    assert_eq!(loaded.idle_instances(), 0);
}

#[test]
fn nonsense_to_every_host_function_gives_errors_and_harms_nobody() {
    let package = Package::new(
        selvedge_tests::onnx_writer::identity(),
        &[("x", "UINT8", &[-1])],
        &[("errors", "BYTES", &[-1])],
    )
    .component(hostile("lies"))
    .write();
    let loaded = package.open().unwrap();
    let outputs = ask(&loaded, small()).unwrap();
    let errors: Vec<_> = outputs[0]
        .tensor
        .as_strings()
        .unwrap()
        .iter()
        .map(|error| String::from_utf8_lossy(error).into_owned())
        .collect();
    assert_eq!(errors.len(), 20, "{errors:#?}");
    for error in &errors {
        assert!(!error.ends_with("no error"), "{errors:#?}");
    }
    check_neighbour();
    counts::say("hostile guest lies: answered: 20 calls of nonsense gave 20 errors");
}
