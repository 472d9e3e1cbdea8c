//! Models of every element type through the built-in module, and what the caller may get wrong.

use std::time::Duration;

use selvedge_host::deadline::Deadline;
use selvedge_host::engine::ticker::Ticker;
use selvedge_host::failure::PredictError;
use selvedge_host::runtime::Loaded;
use selvedge_host::session::{How, Model, Ran, Source, Timed, blocking};
use selvedge_host::tensor::{NamedTensor, Strings, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use selvedge_tests::onnx_writer::{self, Element, Extent};

use crate::fixture::{FATAL, LONG, Package, ask, executor, floats, fp32, runtime};

#[test]
fn two_layers_give_what_arithmetic_gives() {
    let package =
        Package::new(onnx_writer::two_layers(), &[("x", "FP32", &[-1, 4])], &[("y", "FP32", &[-1, 2])])
            .write();
    let loaded = package.open().unwrap();
    check_layers(&loaded);
}

#[test]
fn external_data_is_read_from_beside_the_model() {
    let (model, data) = onnx_writer::two_layers_external("model.onnx.data");
    let package = Package::new(model, &[("x", "FP32", &[-1, 4])], &[("y", "FP32", &[-1, 2])])
        .set(
            "models",
            serde_json::json!([{
                "name": "main", "file": "m/model.onnx", "external-data": ["m/model.onnx.data"]
            }]),
        )
        .file("m/model.onnx.data", data);
    let package = package.rename("model.onnx", "m/model.onnx").write();
    check_layers(&package.open().unwrap());
}

fn check_layers(loaded: &selvedge_host::runtime::Loaded) {
    let x = [1.0_f32, -2.0, 0.5, 3.0, 0.0, 1.0, 1.0, -1.0];
    let (first, second) = onnx_writer::LAYERS;
    let mut expected = Vec::new();
    for row in x.chunks(4) {
        let hidden: Vec<f32> = (0..3)
            .map(|to| (0..4).map(|from| row[from] * first[from * 3 + to]).sum::<f32>().max(0.0))
            .collect();
        expected
            .extend((0..2).map(|to| (0..3).map(|from| hidden[from] * second[from * 2 + to]).sum::<f32>()));
    }
    let outputs = ask(loaded, vec![fp32("x", &[2, 4], &x)]).unwrap();
    assert_eq!((outputs.len(), outputs[0].name.as_str(), outputs[0].tensor.shape()), (1, "y", &[2, 2][..]));
    for (expected, actual) in expected.iter().zip(floats(&outputs[0].tensor)) {
        assert!((expected - actual).abs() < 1e-5, "{expected} {actual}");
    }
}

#[test]
fn several_inputs_are_given_by_name() {
    let of: &[i64] = &[-1, 2];
    let package =
        Package::new(onnx_writer::add(), &[("a", "FP32", of), ("b", "FP32", of)], &[("y", "FP32", of)])
            .write();
    let loaded = package.open().unwrap();
    let inputs = vec![fp32("b", &[1, 2], &[10.0, 20.0]), fp32("a", &[1, 2], &[1.0, 2.0])];
    assert_eq!(floats(&ask(&loaded, inputs).unwrap()[0].tensor), [11.0, 22.0]);
}

/// Element types of fixed size: the protocol's name, ours, and ONNX's.
pub const TYPES: [(&str, Datatype, Element); 13] = [
    ("BOOL", Datatype::Bool, Element::Bool),
    ("UINT8", Datatype::Uint8, Element::Uint8),
    ("UINT16", Datatype::Uint16, Element::Uint16),
    ("UINT32", Datatype::Uint32, Element::Uint32),
    ("UINT64", Datatype::Uint64, Element::Uint64),
    ("INT8", Datatype::Int8, Element::Int8),
    ("INT16", Datatype::Int16, Element::Int16),
    ("INT32", Datatype::Int32, Element::Int32),
    ("INT64", Datatype::Int64, Element::Int64),
    ("FP16", Datatype::Fp16, Element::Float16),
    ("BF16", Datatype::Bf16, Element::Bfloat16),
    ("FP32", Datatype::Fp32, Element::Float),
    ("FP64", Datatype::Fp64, Element::Double),
];

#[test]
fn every_element_type_and_empty_and_scalar_shapes_come_back_unchanged() {
    for (name, datatype, element) in TYPES {
        let size = datatype.size().unwrap();
        for (shape, extents) in [
            (&[2_u64, 3][..], &[Extent::Named("A"), Extent::Named("B")][..]),
            (&[0, 3], &[Extent::Named("A"), Extent::Named("B")]),
            (&[], &[]),
        ] {
            let free = vec![-1; shape.len()];
            let model = onnx_writer::identity_of(element, extents);
            let package = Package::new(model, &[("x", name, &free)], &[("y", name, &free)]).write();
            let loaded = package.open().unwrap();
            let count = shape.iter().product::<u64>() as usize * size;
            // Every bit pattern of a number must survive; a BOOL has two.
            let byte = |at: usize| if datatype == Datatype::Bool { at % 2 } else { at * 37 % 256 };
            let bytes: Vec<u8> = (0..count).map(|at| byte(at) as u8).collect();
            let input = Tensor::fixed(datatype, shape, bytes.clone()).unwrap();
            let outputs = ask(&loaded, vec![NamedTensor::new("x", input)]).unwrap();
            let output = &outputs[0].tensor;
            assert_eq!((output.datatype(), output.shape()), (datatype, shape), "{name}");
            assert_eq!(output.as_fixed().unwrap(), bytes, "{name} {shape:?}");
        }
    }
}

#[test]
fn bytes_become_strings_at_the_run_and_what_cannot_is_the_callers_fault() {
    let model = onnx_writer::identity_of(Element::String, &[Extent::Named("N")]);
    let package = Package::new(model, &[("x", "BYTES", &[-1])], &[("y", "BYTES", &[-1])]).write();
    let loaded = package.open().unwrap();
    let ask_for = |elements: &[&[u8]]| {
        let strings = Strings::from_iter(elements);
        let tensor = Tensor::bytes([elements.len() as u64], strings).unwrap();
        ask(&loaded, vec![NamedTensor::new("x", tensor)])
    };
    let good: [&[u8]; 3] = ["grün".as_bytes(), b"", b"third"];
    let outputs = ask_for(&good).unwrap();
    assert_eq!(outputs[0].tensor.as_strings().unwrap().iter().collect::<Vec<_>>(), good);
    for bad in [&b"%PDF\xff\xfe"[..], b"nul\0inside"] {
        match ask_for(&[b"good", bad]) {
            Err(PredictError::InvalidInput(why)) => assert!(why.contains("element 1"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    // The package answers on.
    assert!(ask_for(&[b"again"]).is_ok());
}

#[test]
fn wrong_names_types_and_shapes_are_the_callers_fault_and_say_what_is_right() {
    let package = Package::identity().write();
    let loaded = package.open().unwrap();
    let six = [0.0_f32; 6];
    let double = Tensor::fixed(Datatype::Fp64, [2, 3], vec![0; 48]).unwrap();
    for (inputs, part) in [
        (vec![], "x"),
        (vec![fp32("z", &[2, 3], &six)], "`x`"),
        (vec![fp32("x", &[3, 2], &six)], "x"),
        (vec![fp32("x", &[6], &six)], "x"),
        (vec![NamedTensor::new("x", double)], "FP32"),
        (vec![fp32("x", &[2, 3], &six), fp32("x", &[2, 3], &six)], "twice"),
        (vec![fp32("x", &[2, 3], &six), fp32("z", &[2, 3], &six)], "`z`"),
    ] {
        let given: Vec<_> = inputs.iter().map(|input| input.name.clone()).collect();
        match ask(&loaded, inputs) {
            Err(PredictError::InvalidInput(why)) => assert!(why.contains(part), "{given:?}: {why}"),
            other => panic!("{given:?}: {other:?}"),
        }
    }
    assert_eq!(loaded.instances_made(), 1, "a caller's mistake costs no instance");
}

#[test]
fn inputs_beyond_the_packages_limit_are_refused() {
    let model = onnx_writer::identity_of(Element::Uint8, &[Extent::Named("N")]);
    let package = Package::new(model, &[("x", "UINT8", &[-1])], &[("y", "UINT8", &[-1])])
        .module("tensor-mib", 1.into())
        .write();
    let loaded = package.open().unwrap();
    let of = |size: usize| {
        let tensor = Tensor::fixed(Datatype::Uint8, [size as u64], vec![7; size]).unwrap();
        ask(&loaded, vec![NamedTensor::new("x", tensor)])
    };
    assert!(of(1 << 20).is_ok());
    assert!(matches!(of((1 << 20) + 1), Err(PredictError::Limit(_))));
}

#[test]
fn only_what_ran_is_a_run() {
    let ticker = Ticker::start(selvedge_host::engine::new_engine().unwrap()).unwrap();
    let model = onnx_writer::identity_of(Element::String, &[Extent::Named("N")]);
    let source = Source::Bytes(&model);
    let model = Model::open(runtime().environment(), &ticker, source, How::PLAIN, || {}).unwrap();
    let ask = |name: &str, text: &[u8], time| {
        let tensor = Tensor::bytes([1], [text].into_iter().collect::<Strings>()).unwrap();
        let (now, mut ran) = (selvedge_tests::clock::now(), None);
        let (deadline, timed) =
            (Deadline::new(now, now + time, LONG), Timed::ByCaller { began: now, ran: &mut ran });
        let inputs = [(name.to_owned(), tensor)];
        let answer = blocking::allow(|| model.run_at_once(&inputs, &[], deadline, timed)).unwrap();
        (answer.is_ok(), ran)
    };
    assert_eq!(ask("x", b"a", LONG), (true, Some(Ran::Through)));
    assert_eq!(ask("z", b"a", LONG), (false, None));
    assert_eq!(ask("x", b"a\0", LONG), (false, None));
    assert_eq!(ask("x", b"a", Duration::ZERO), (false, None));
}

#[test]
fn a_loop_without_end_is_stopped_at_the_deadline_and_the_session_answers_on() {
    let package =
        Package::new(onnx_writer::count_to(), &[("trips", "INT64", &[])], &[("count", "INT64", &[])])
            .module("deadline-ms", 2000.into())
            .write();
    let mut loaded = package.open().unwrap();
    let count = |loaded: &Loaded, trips: i64| {
        let tensor = Tensor::fixed(Datatype::Int64, [], trips.to_le_bytes().to_vec()).unwrap();
        let outputs = ask(loaded, vec![NamedTensor::new("trips", tensor)])?;
        let bytes = outputs[0].tensor.as_fixed().unwrap().try_into().unwrap();
        Ok::<_, PredictError>(i64::from_le_bytes(bytes))
    };
    assert_eq!(count(&loaded, 5).unwrap(), 5);
    assert!(matches!(count(&loaded, i64::MAX), Err(PredictError::Deadline(_))));
    assert_eq!(count(&loaded, 7).unwrap(), 7);
    // Its first run, of which nobody knows how long it takes, is one that the module does not wait for.
    loaded = package.open().unwrap();
    assert!(matches!(count(&loaded, i64::MAX), Err(PredictError::Deadline(_))));
    assert_eq!(count(&loaded, 7).unwrap(), 7);
    assert!(FATAL.lock().unwrap().iter().all(|fatal| fatal.package.digest != package.digest));
    counts::say("hostile model endless Loop: request failed: stopped at its deadline; the next one answered");
}

#[test]
fn a_model_that_cannot_be_stopped_is_reported_with_its_package() {
    let package =
        Package::new(onnx_writer::square(), &[("x", "INT64", &[-1, -1])], &[("y", "INT64", &[-1, -1])])
            .module("deadline-ms", 200.into())
            .set("name", "stubborn".into())
            .write();
    let loaded = package.open().unwrap();
    // One MatMul of so many elements takes more than the second of grace, however fast the machine.
    let size = 2600_u64;
    let data = vec![1; (size * size * 8) as usize];
    let input = NamedTensor::new("x", Tensor::fixed(Datatype::Int64, [size, size], data).unwrap());
    let answer = executor().block_on(async {
        let answer = loaded.predict(vec![input.clone()], LONG).await;
        let give_up = selvedge_tests::clock::now() + LONG;
        while !FATAL.lock().unwrap().iter().any(|fatal| fatal.package.digest == package.digest) {
            assert!(selvedge_tests::clock::now() < give_up, "never reported");
            // On a busy machine a request can miss its deadline before the model has begun.
            drop(loaded.predict(vec![input.clone()], LONG).await);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        answer
    });
    assert!(matches!(answer, Err(PredictError::Deadline(_))), "{answer:?}");
    let fatal = FATAL.lock().unwrap();
    let fatal = fatal.iter().find(|fatal| fatal.package.digest == package.digest).unwrap();
    assert_eq!(
        (fatal.package.name.as_str(), fatal.model.as_ref().map(|model| model.as_str())),
        ("stubborn", Some("main"))
    );
    counts::say("hostile model long operator: the host is told to end, and which package it was");
}

#[test]
fn requests_side_by_side_are_all_answered() {
    let package = Package::identity().module("concurrency", 3.into()).write();
    let loaded = package.open().unwrap();
    executor().block_on(async {
        let requests: Vec<_> = (0..200)
            .map(|number| {
                let loaded = loaded.clone();
                tokio::spawn(async move {
                    let values = [number as f32; 6];
                    let outputs = loaded.predict(vec![fp32("x", &[2, 3], &values)], LONG).await.unwrap();
                    assert_eq!(floats(&outputs[0].tensor), values);
                })
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
    });
    assert!(loaded.instances_made() <= 3, "{}", loaded.instances_made());
}

#[test]
fn an_output_outlives_its_package() {
    let package = Package::identity().write();
    let loaded = package.open().unwrap();
    let outputs = ask(&loaded, vec![fp32("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]).unwrap();
    drop(loaded);
    assert_eq!(floats(&outputs[0].tensor), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}
