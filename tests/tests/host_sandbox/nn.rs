//! Guests that use `wasi:nn`: as it is meant, and to do harm.

use std::collections::BTreeMap;
use std::sync::Arc;

use selvedge_host::failure::PredictError;
use selvedge_host::runtime::Loaded;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use selvedge_tests::onnx_writer::{self, Element, Extent};
use serde_json::json;

use crate::fixture::{Package, Written, ask, floats, fp32, hostile, module, small};
use crate::models::TYPES;

/// The element types that it has.
const NAMED: [Datatype; 7] = [
    Datatype::Fp16,
    Datatype::Bf16,
    Datatype::Fp32,
    Datatype::Fp64,
    Datatype::Uint8,
    Datatype::Int32,
    Datatype::Int64,
];

/// A package, and the directory that it may look into.
type Opened = (Arc<Loaded>, Written);

/// `y = x` through the guest `nn`, with the settings that it has.
fn through(element: Element, name: &str, extents: &[Extent], settings: (&str, &str)) -> Opened {
    let free = vec![-1; extents.len()];
    let model = onnx_writer::identity_of(element, extents);
    let package = Package::new(model, &[("x", name, &free)], &[("y", name, &free)])
        .component(module("nn"))
        .module("capabilities", json!(["package-files"]))
        .set("settings", json!({"load": "name", "tensors": "handles"}))
        .write();
    let settings = [("load", settings.0), ("tensors", settings.1)];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    (package.open_with(&BTreeMap::from(settings)).unwrap(), package)
}

#[test]
fn every_type_that_it_has_comes_back_by_handle_and_by_copy() {
    for (name, datatype, element) in TYPES.into_iter().filter(|(_, datatype, _)| NAMED.contains(datatype)) {
        let size = datatype.size().unwrap();
        for settings in [("name", "handles"), ("bytes", "copies")] {
            let (loaded, _directory) =
                through(element, name, &[Extent::Named("A"), Extent::Fixed(3)], settings);
            for shape in [[2_u64, 3], [0, 3]] {
                let count = (shape[0] * shape[1]) as usize * size;
                let bytes: Vec<u8> = (0..count).map(|at| (at * 37 % 256) as u8).collect();
                let input = Tensor::fixed(datatype, shape, bytes.clone()).unwrap();
                let answer = ask(&loaded, vec![NamedTensor::new("x", input)]).unwrap();
                let output = &answer[0].tensor;
                assert_eq!(
                    (output.datatype(), output.shape()),
                    (datatype, &shape[..]),
                    "{name} {settings:?}"
                );
                assert_eq!(output.as_fixed().unwrap(), bytes, "{name} {settings:?}");
            }
            assert_eq!(loaded.instances_made(), 1);
        }
    }
}

#[test]
fn a_single_value_is_a_scalar_where_the_model_has_one() {
    let (loaded, _directory) = through(Element::Float, "FP32", &[], ("name", "handles"));
    let answer = ask(&loaded, vec![fp32("x", &[], &[2.5])]).unwrap();
    assert_eq!((answer[0].tensor.shape(), floats(&answer[0].tensor)), (&[][..], vec![2.5]));
}

#[test]
fn a_type_that_it_has_not_is_said() {
    let (loaded, _directory) = through(Element::Int8, "INT8", &[Extent::Named("A")], ("name", "handles"));
    let input = NamedTensor::new("x", Tensor::fixed(Datatype::Int8, [1], vec![1]).unwrap());
    match ask(&loaded, vec![input]) {
        Err(PredictError::InvalidInput(why)) => {
            assert!(why.contains("wasi:nn has no tensors of INT8"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}

/// The hostile guest, by what it does.
fn harm(how: &str) -> Opened {
    let package = harmful(how).write();
    (package.open().unwrap(), package)
}

fn harmful(how: &str) -> Package {
    // Only one of them is to miss it, whatever else the machine does.
    let deadline = if how == "loads" { 1000 } else { 60_000 };
    let package = Package::guest(hostile("nn"))
        .module("capabilities", json!(["package-files"]))
        .module("memory-mib", json!(256))
        .module("tensor-mib", json!(16))
        .module("deadline-ms", json!(deadline))
        .set("settings", json!({"how": how}));
    match how {
        "lies" => package.set("outputs", json!([{"name": "errors", "datatype": "BYTES", "shape": [-1]}])),
        _ => package,
    }
}

fn said_by(loaded: &Loaded) -> Vec<String> {
    let answer = ask(loaded, small()).unwrap();
    let said = answer[0].tensor.as_strings().unwrap();
    said.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

#[test]
fn a_module_is_told_what_may_be_left_out() {
    let package = harmful("lies").file("model.onnx", crate::optional::scaled()).write();
    let said = said_by(&package.open().unwrap());
    assert!(said.contains(&"may be left out: scale []".to_owned()), "{said:#?}");
}

#[test]
fn nonsense_in_every_call_gives_an_error_and_nothing_else() {
    let (loaded, _directory) = harm("lies");
    let said = said_by(&loaded);
    for expected in [
        "no bytes: ErrorCode::InvalidArgument: 0 builders came",
        "two: ErrorCode::InvalidArgument: 2 builders came",
        "other bytes: ErrorCode::Security: the bytes are none of the package's models",
        "another encoding: ErrorCode::InvalidEncoding",
        "no such name: ErrorCode::NotFound: no model `/etc/passwd` in the package; it has `main`",
        "gpu: ErrorCode::UnsupportedOperation: the model runs on cpu as the package's manifest says, and not on gpu",
        "tpu: ErrorCode::UnsupportedOperation",
        "a bit: ErrorCode::Security",
        "unknown: ErrorCode::InvalidArgument: the model has no input `uuu",
        "type: ErrorCode::InvalidArgument: the model's input `x` is FP32, and UINT8 came",
        "shape: ErrorCode::InvalidArgument",
        "short: ErrorCode::InvalidArgument: input `x`: shape [2, 3] of FP32 takes 24 bytes, and 23 came",
        "overflow: ErrorCode::InvalidArgument: input `x`: shape [4294967295, ",
        "rank: ErrorCode::InvalidArgument: input `x`: 100000 dimensions",
        "nothing: ErrorCode::InvalidArgument: the model's input `x` is missing",
        "twice: ErrorCode::InvalidArgument: the model's input `x` was given twice",
        "good: no error",
        "to: wasi:nn has no tensors of BYTES",
        "from: shape [2] of INT64 takes 16 bytes, and 8 came",
        "may be left out: ",
    ] {
        assert!(said.iter().any(|line| line.starts_with(expected)), "{expected}: {said:#?}");
    }
    assert_eq!(said.len(), 20, "{said:#?}");
    assert!(said.iter().all(|line| line.len() < 1200), "an error has a length");
    counts::say(
        "hostile guest: nonsense to every call of wasi:nn: an error each, and the next request is answered",
    );
    assert!(ask(&loaded, small()).is_ok());
    assert_eq!(loaded.instances_made(), 1);
}

#[test]
fn what_it_has_no_error_for_ends_the_request_at_the_limit() {
    for (how, says) in
        [("hoard", "10000 handles"), ("errors", "10000 handles"), ("large", "too much data is being copied")]
    {
        let (loaded, _directory) = harm(how);
        for _ in 0..2 {
            match ask(&loaded, small()) {
                Err(PredictError::Limit(why)) => assert!(why.contains(says), "{how}: {why}"),
                other => panic!("{how}: {other:?}"),
            }
        }
        counts::say(&format!("hostile guest: wasi:nn, {how}: the request ends at the limit"));
    }
}

#[test]
fn a_tensor_of_an_earlier_request_is_gone() {
    let (loaded, _directory) = harm("stale");
    assert!(ask(&loaded, small()).is_ok());
    match ask(&loaded, small()) {
        Err(PredictError::Trap(why)) => assert!(why.contains("belongs to an earlier request"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(ask(&loaded, small()).is_ok(), "another instance");
}

#[test]
fn wrong_bytes_without_end_end_at_the_deadline() {
    assert!(matches!(ask(&harm("loads").0, small()), Err(PredictError::Deadline(_))));
}
