//! `probe`: what a bare model is, and a package's trial in a process that is thrown away.

use std::path::Path;
use std::sync::Arc;

use selvedge_control::{ProbeResult, Purpose, Reason};
use selvedge_host::cases;
use selvedge_host::probe::{self, Target};
use selvedge_host::serve::predictor::Predictor;
use selvedge_tests::onnx_writer::{self, Element, Extent};
use serde_json::{Value, json};

use crate::fixture::{Package, executor, hostile, options};
use crate::models::TYPES;

fn probe_model(files: &[(&str, &[u8])]) -> ProbeResult {
    let place = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(place.path().join(name), bytes).unwrap();
    }
    probe::run(Target::Model(place.path().join(files[0].0)), options())
}

fn probe_package(path: &Path) -> ProbeResult {
    probe::run(Target::Package(path.to_owned(), Default::default()), options())
}

#[test]
fn what_may_be_left_out_is_found_and_weights_are_no_inputs() {
    let ProbeResult::Model(scaled) = probe_model(&[("model.onnx", &crate::optional::scaled())]) else {
        panic!("scaled")
    };
    let inputs: Vec<_> = scaled.inputs.iter().map(|spec| (spec.name.as_str(), spec.optional)).collect();
    assert_eq!(inputs, [("x", false)], "it has a value of its own for `scale`");
    let ProbeResult::Model(perhaps) = probe_model(&[("model.onnx", &crate::optional::perhaps())]) else {
        panic!("perhaps")
    };
    let outputs: Vec<_> = perhaps.outputs.iter().map(|spec| (spec.name.as_str(), spec.optional)).collect();
    assert_eq!(outputs, [("y", true), ("z", false)]);
}

#[test]
fn a_bare_model_becomes_a_package_that_passes_its_recorded_case() {
    let (external, data) = onnx_writer::two_layers_external("model.onnx.data");
    let mut models = vec![
        ("identity", onnx_writer::identity(), None),
        ("add", onnx_writer::add(), None),
        ("layers", onnx_writer::two_layers(), None),
        ("external", external, Some(data)),
        ("shape", onnx_writer::shape(4), None),
    ];
    for (name, _, element) in TYPES {
        models.push((name, onnx_writer::identity_of(element, &[]), None));
        models.push((name, onnx_writer::identity_of(element, &[2.into(), Extent::Named("A")]), None));
    }
    models.push(("BYTES", onnx_writer::identity_of(Element::String, &[3.into()]), None));
    for (name, model, data) in models {
        let mut files = vec![("model.onnx", &model[..])];
        files.extend(data.iter().map(|data| ("model.onnx.data", &data[..])));
        let ProbeResult::Model(probed) = probe_model(&files) else { panic!("{name}") };
        assert_eq!(probed.external_data.len(), usize::from(data.is_some()), "{name}");
        let mut package = Package::new(model, &[], &[])
            .set("inputs", serde_json::to_value(&probed.inputs).unwrap())
            .set("outputs", serde_json::to_value(&probed.outputs).unwrap())
            .file("cases/one.json", probed.case.to_string());
        if let Some(data) = data {
            package = package.file("model.onnx.data", data).set(
                "models",
                json!([{"name": "main", "file": "model.onnx", "external-data": ["model.onnx.data"]}]),
            );
        }
        let package = package.write();
        match probe_package(package.path()) {
            ProbeResult::Package(loaded) => {
                assert_eq!(loaded.package.digest, package.digest);
                assert!(loaded.accepted(), "{name}: {loaded:?}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn free_extents_are_one_and_names_and_types_are_the_models() {
    let ProbeResult::Model(probed) = probe_model(&[("m.onnx", &onnx_writer::add())]) else { panic!() };
    let seen = |specs: &[selvedge_package::tensor::TensorSpec]| serde_json::to_value(specs).unwrap();
    let of = |name| json!({"name": name, "datatype": "FP32", "shape": [-1, 2]});
    assert_eq!(seen(&probed.inputs), json!([of("a"), of("b")]));
    assert_eq!(seen(&probed.outputs), json!([of("y")]));
    assert_eq!(probed.case["inputs"][0]["shape"], json!([1, 2]));
    let value = |tensor: &Value, at: usize| tensor["data"][at].as_f64().unwrap();
    let (inputs, outputs) = (&probed.case["inputs"], &probed.case["outputs"]);
    for at in 0..2 {
        let sum = value(&inputs[0], at) + value(&inputs[1], at);
        assert!((sum - value(&outputs[0], at)).abs() < 1e-6);
    }
}

#[test]
fn a_wrong_case_fails_and_says_what_came() {
    let case = json!({
        "name": "wrong",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 7]}],
    });
    let package = Package::identity().file("cases/one.json", case.to_string()).write();
    let ProbeResult::Package(loaded) = probe_package(package.path()) else { panic!() };
    assert!(!loaded.accepted());
    let failure = loaded.cases[0].failure.as_deref().unwrap();
    assert!(failure.contains('7') && failure.contains('6'), "{failure}");
}

#[test]
fn what_does_not_work_is_a_refusal_with_its_reason() {
    let reason = |result: ProbeResult| match result {
        ProbeResult::Refused(error) => error.reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(probe_model(&[("m.onnx", b"garbage")])), Reason::BadModel);
    assert_eq!(reason(probe::run(Target::Model("/nowhere/m.onnx".into()), options())), Reason::BadModel);
    let (external, _) = onnx_writer::two_layers_external("m.data");
    assert_eq!(reason(probe_model(&[("m.onnx", &external)])), Reason::BadModel);
    let (escape, _) = onnx_writer::two_layers_external("../m.data");
    assert_eq!(reason(probe_model(&[("m.onnx", &escape)])), Reason::BadModel);
    // A model that runs, but not with whatever one may send.
    assert_eq!(reason(probe_package(Package::identity().write().path())), Reason::BadCase);
    assert_eq!(
        reason(probe_package(Package::guest(hostile("wrong-export")).write().path())),
        Reason::BadComponent
    );
    let spinning = Package::guest(hostile("spin-init")).module("deadline-ms", json!(100)).write();
    assert_eq!(reason(probe_package(spinning.path())), Reason::Limit);
}

#[test]
fn cases_run_against_a_loaded_package() {
    let case = json!({
        "name": "right",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}],
    });
    let package = Package::identity().file("cases/one.json", case.to_string()).write();
    let loaded: Arc<dyn Predictor> = package.open().unwrap();
    let results = executor().block_on(cases::run_all(&loaded, Purpose::Trial)).unwrap();
    assert_eq!((results.len(), results[0].failure.as_deref()), (1, None));
}
