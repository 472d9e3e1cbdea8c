//! Several models in one package, called one after another by one module, with something of its own before and after.

use selvedge_host::failure::PredictError;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_tests::onnx_writer::{self, Element, Extent, graph, initializer, node, value};
use serde_json::json;

use crate::fixture::{Package, Written, ask, floats};

/// Counts to three features, and features to two scores: row by row.
const FEATURES: [[f32; 3]; 4] = [[0.5, -1.0, 0.25], [-0.5, 1.0, 0.0], [2.0, 0.0, -1.0], [0.0, 0.5, 0.5]];
const SCORES: [[f32; 2]; 3] = [[1.0, -0.5], [-0.25, 0.75], [0.5, 0.5]];

/// `to = operator(from × weights)`.
fn layer<const N: usize, const M: usize>(
    (from, to): (&str, &str),
    operator: &str,
    weights: &[[f32; M]; N],
) -> Vec<u8> {
    let of = |name, extent: usize| {
        value(name, Element::Float, &[Extent::Named("N"), Extent::Fixed(extent as i64)])
    };
    let bytes: Vec<u8> = weights.as_flattened().iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let weights = initializer("w", Element::Float, &[N as i64, M as i64], &bytes);
    let nodes = [node("MatMul", &[from, "w"], &["product"]), node(operator, &["product"], &[to])];
    onnx_writer::model(graph(nodes, [weights], [of(from, N)], [of(to, M)]))
}

fn package(first: Vec<u8>, second: Vec<u8>) -> Package {
    let guest = std::fs::read(crate::fixture::options().modules.join("pipeline.wasm")).unwrap();
    Package::new(first, &[("text", "BYTES", &[1])], &[("label", "BYTES", &[1]), ("score", "FP32", &[1])])
        .component(guest)
        .file("second.onnx", second)
        .set(
            "models",
            json!([
                {"name": "features", "file": "model.onnx"},
                {"name": "scores", "file": "second.onnx"},
            ]),
        )
        .set("settings", json!({"labels": "numbers,words"}))
}

fn good() -> Written {
    package(
        layer(("counts", "features"), "Relu", &FEATURES),
        layer(("features", "scores"), "Softmax", &SCORES),
    )
    .write()
}

fn text(text: &str) -> Vec<NamedTensor> {
    vec![NamedTensor::new("text", Tensor::single(text))]
}

/// The same in plain numbers.
fn expected(counts: [f32; 4]) -> [f32; 2] {
    let times = |row: &[f32], column: &dyn Fn(usize) -> f32| -> f32 {
        row.iter().enumerate().map(|(at, number)| number * column(at)).sum()
    };
    let features: [f32; 3] = std::array::from_fn(|to| times(&counts, &|from| FEATURES[from][to]).max(0.0));
    let scores: [f32; 2] = std::array::from_fn(|to| times(&features, &|from| SCORES[from][to]));
    let sum: f32 = scores.iter().map(|score| score.exp()).sum();
    scores.map(|score| score.exp() / sum)
}

#[test]
fn a_module_calls_one_model_after_another() {
    let loaded = good().open().unwrap();
    for (said, counts, label) in
        [("hello worlds", [3.0, 8.0, 0.0, 1.0], "words"), ("1234 5", [0.0, 0.0, 5.0, 1.0], "numbers")]
    {
        let answer = ask(&loaded, text(said)).unwrap();
        let scores = expected(counts);
        let best = if label == "numbers" { scores[0] } else { scores[1] };
        assert!(best > 0.5, "{said}: {scores:?}");
        assert_eq!(answer[0].tensor.as_strings().unwrap().get(0), Some(label.as_bytes()), "{said}");
        let found = floats(&answer[1].tensor)[0];
        assert!((found - best).abs() < 1e-6, "{said}: {found}, not {best}");
    }
    // Its models are told of in its metadata, both.
    let names: Vec<_> = loaded.models().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["features", "scores"]);
}

#[test]
fn models_that_do_not_fit_together_say_so_to_the_caller() {
    let two = layer(("counts", "features"), "Relu", &SCORES);
    let loaded = package(layer(("counts", "features"), "Relu", &FEATURES), two).write().open().unwrap();
    assert!(ask(&loaded, text("a")).is_ok());
    // Three features for a model that takes four.
    let four = layer(("features", "scores"), "Softmax", &FEATURES);
    let loaded = package(layer(("counts", "features"), "Relu", &FEATURES), four).write().open().unwrap();
    match ask(&loaded, text("a")) {
        Err(PredictError::InvalidInput(why)) => assert!(why.contains("features"), "{why}"),
        other => panic!("{other:?}"),
    }
    // One number too many for the labels.
    let three = layer(("features", "scores"), "Softmax", &[[0.0; 3]; 3]);
    let loaded = package(layer(("counts", "features"), "Relu", &FEATURES), three).write().open().unwrap();
    match ask(&loaded, text("a")) {
        Err(PredictError::Module(why)) => assert!(why.contains("3 numbers for 2 labels"), "{why}"),
        other => panic!("{other:?}"),
    }
}
