//! Guests that reach for what is not theirs: files outside of the package, descriptors of the host, the
//! network, other people's time, and more memory than there is.

use std::os::unix::fs::symlink;

use selvedge_control::Reason;
use selvedge_host::failure::PredictError;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use serde_json::json;

use crate::fixture::{Package, answers_beside, ask, executor, hostile, hostile_text, small};
use crate::hostile::check_neighbour;

const FREE: &[(&str, &str, &[i64])] = &[("x", "UINT8", &[-1])];

#[test]
fn sleeping_ends_at_the_deadline_with_and_without_a_clock() {
    for capabilities in [json!([]), json!(["clocks"])] {
        let package = Package::guest(hostile("sleep"))
            .module("deadline-ms", json!(300))
            .module("capabilities", capabilities)
            .write();
        let loaded = package.open().unwrap();
        for made in 1..3 {
            assert!(matches!(ask(&loaded, small()), Err(PredictError::Deadline(_))));
            assert_eq!((loaded.instances_made(), loaded.idle_instances()), (made, 0));
        }
    }
    check_neighbour();
    counts::say("hostile guest sleep: request failed: its deadline");
}

#[test]
fn sleepers_at_their_concurrency_leave_others_answering() {
    let package = Package::guest(hostile("sleep"))
        .module("deadline-ms", json!(2000))
        .module("concurrency", json!(8))
        .write();
    let loaded = package.open().unwrap();
    let neighbour = Package::identity().write();
    let neighbour = neighbour.open().unwrap();
    executor().block_on(answers_beside(&loaded, 8, &neighbour));
}

#[test]
fn no_path_leads_out_of_the_packages_folder_and_nothing_in_it_changes() {
    let package = Package::new(selvedge_tests::onnx_writer::identity(), FREE, &[("tried", "BYTES", &[-1])])
        .component(hostile("escape"))
        .module("capabilities", json!(["package-files"]))
        .write();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path().join("secret"), package.path().join("link-to-a-file")).unwrap();
    symlink(outside.path(), package.path().join("link-to-a-folder")).unwrap();
    symlink("..", package.path().join("link-up")).unwrap();
    let model = std::fs::read(package.path().join("model.onnx")).unwrap();
    let answer = ask(&package.open().unwrap(), small()).unwrap();
    let tried = answer[0].tensor.as_strings().unwrap();
    assert_eq!(tried.len(), 18);
    let mut lines = tried.iter().map(String::from_utf8_lossy);
    assert!(lines.next().unwrap().starts_with("its own: SUCCEEDED"));
    for line in lines {
        assert!(line.contains(": refused "), "{line}");
    }
    assert_eq!(std::fs::read(package.path().join("model.onnx")).unwrap(), model);
    let names = std::fs::read_dir(package.path()).unwrap().count();
    assert_eq!(names, 8, "five of the package, three links");
    counts::say("hostile guest escape: 17 ways out of its folder, or to change it: all refused");
}

#[test]
fn open_files_are_bounded_and_the_host_keeps_its_descriptors() {
    let package = |concurrency: u32| {
        Package::new(selvedge_tests::onnx_writer::identity(), FREE, &[("opened", "UINT64", &[1])])
            .component(hostile("files"))
            .module("capabilities", json!(["package-files"]))
            .module("concurrency", json!(concurrency))
            .write()
    };
    for (concurrency, some, more) in [(1, 40, 100), (200, 8, 40)] {
        let package = package(concurrency);
        let loaded = package.open().unwrap();
        let open = |count: usize| {
            let input = Tensor::fixed(Datatype::Uint8, [count as u64], vec![0; count]).unwrap();
            ask(&loaded, vec![NamedTensor::new("x", input)])
        };
        assert_eq!(open(some).unwrap()[0].tensor.as_fixed(), Some(&(some as u64).to_le_bytes()[..]));
        match open(more) {
            Err(PredictError::Limit(why)) => assert!(why.contains("files"), "{why}"),
            other => panic!("{other:?}"),
        }
        counts::say(&format!(
            "hostile guest files: request failed: {more} files at a concurrency of {concurrency}"
        ));
    }
    check_neighbour();
}

#[test]
fn a_component_that_asks_for_the_network_is_refused() {
    let refused = |component: Vec<u8>| Package::guest(component).write().refusal();
    let http = wat::parse_str(hostile_text("http")).unwrap();
    for (component, part) in [(hostile("sockets"), "network"), (http, "wasi:http")] {
        let error = refused(component);
        assert_eq!(error.reason(), Reason::BadComponent, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    counts::say("hostile guest sockets: not opened: it asks for the network");
}

#[test]
fn tensors_that_cannot_be_are_refused_however_they_are_asked_for() {
    for (how, part) in [("shape", "takes"), ("elements", "too much data"), ("read", "memory")] {
        let loaded = Package::guest(hostile("huge-tensor")).write().open().unwrap();
        let tensor = Tensor::fixed(Datatype::Uint8, [1], vec![0]).unwrap();
        match ask(&loaded, vec![NamedTensor::new(how, tensor)]) {
            // A shape that its data does not have is an error that the guest gets and passes on.
            Err(PredictError::InvalidInput(why)) if how == "shape" => assert!(why.contains(part), "{why}"),
            Err(PredictError::Limit(why)) => assert!(why.contains(part), "{how}: {why}"),
            other => panic!("{how}: {other:?}"),
        }
        counts::say(&format!("hostile guest huge-tensor ({how}): request failed"));
    }
    check_neighbour();
}
