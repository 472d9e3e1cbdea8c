//! Models that mean harm. ONNX Runtime has no limits of its own, so what takes too much while it is opened
//! is caught by the throw-away probe, whose limits the system keeps; what a request makes large is refused
//! by ONNX Runtime or by the package's limits.

use std::path::Path;
use std::process::{Command, Output};

use selvedge_control::{ProbeResult, Reason};
use selvedge_host::failure::PredictError;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use selvedge_tests::onnx_writer::{self, Element, Extent, Message};
use selvedge_tests::programs::program;
use serde_json::json;

use crate::fixture::{Package, ask, options};
use crate::hostile::check_neighbour;

const ONE: &[(&str, &str, &[i64])] = &[("y", "FP32", &[1])];
const ANY: &[(&str, &str, &[i64])] = &[("x", "FP32", &[1])];

/// A model whose output `y` is the sum of `b`, which the nodes make of constants, and its input.
fn constant(mut nodes: Vec<Message>, size: &[i64]) -> Vec<u8> {
    let flag = Message::default().bytes(1, "keepdims").number(3, 0).number(20, 2);
    nodes.push(onnx_writer::node("ReduceSum", &["b"], &["c"]).bytes(5, flag));
    nodes.push(onnx_writer::node("Add", &["c", "x"], &["y"]));
    let x = onnx_writer::value("x", Element::Float, &[1.into()]);
    let y = onnx_writer::value("y", Element::Float, &[1.into()]);
    onnx_writer::model(onnx_writer::graph(nodes, [extents("size", size)], [x], [y]))
}

fn extents(name: &str, extents: &[i64]) -> Message {
    let bytes: Vec<u8> = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
    onnx_writer::initializer(name, Element::Int64, &[extents.len() as i64], &bytes)
}

/// `selvedge-host probe`, as the agent starts it.
fn probe(package: &Path, memory_mib: u64, cpu_seconds: u64) -> Output {
    let options = options();
    Command::new(program("selvedge-host"))
        .arg("--onnxruntime")
        .arg(options.onnxruntime)
        .arg("--modules")
        .arg(options.modules)
        .args(["probe", "--memory-mib", &memory_mib.to_string()])
        .args(["--cpu-seconds", &cpu_seconds.to_string(), "--package"])
        .arg(package)
        .output()
        .unwrap()
}

/// What became of a probe: killed by the system, or refused or failed in words.
fn outcome(model: Vec<u8>, memory_mib: u64, cpu_seconds: u64) -> Result<(), String> {
    let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [1], "data": [0]});
    let case = json!({"name": "zero", "inputs": [tensor("x")], "outputs": [tensor("y")]});
    let package = Package::new(model, ANY, ONE).file("cases/one.json", case.to_string()).write();
    let output = probe(package.path(), memory_mib, cpu_seconds);
    if output.status.code().is_none() {
        return Err(format!("killed ({})", output.status));
    }
    match serde_json::from_slice(&output.stdout).unwrap() {
        ProbeResult::Package(loaded) if loaded.accepted() => Ok(()),
        ProbeResult::Package(loaded) => {
            Err(format!("its case failed: {:?}", loaded.first_failure().unwrap()))
        }
        ProbeResult::Refused(error) => Err(format!("refused: {}", error.error)),
        other => panic!("{other:?}"),
    }
}

fn check(name: &str, model: Vec<u8>, memory_mib: u64, cpu_seconds: u64, parts: &[&str]) {
    let how = outcome(model, memory_mib, cpu_seconds).expect_err("accepted");
    assert!(parts.iter().any(|part| how.contains(part)), "{how}");
    counts::say(&format!("hostile model {name}: {}", how.chars().take(160).collect::<String>()));
    check_neighbour();
}

/// The sum of one matrix product, which ONNX Runtime works out while it opens the model.
fn folding(size: i64) -> Vec<u8> {
    let nodes = vec![
        onnx_writer::node("ConstantOfShape", &["size"], &["a"]),
        onnx_writer::node("MatMul", &["a", "a"], &["b"]),
    ];
    constant(nodes, &[size, size])
}

/// The sum of a constant of this shape.
fn wide(shape: &[i64]) -> Vec<u8> {
    constant(vec![onnx_writer::node("ConstantOfShape", &["size"], &["b"])], shape)
}

/// What ONNX Runtime says when an allocation fails.
const NO_MEMORY: &[&str] = &["bad_alloc", "Failed to allocate memory", "larger than"];

#[test]
fn small_constants_are_fine() {
    // The ones below must fail for their size alone.
    assert_eq!(outcome(folding(64), 512, 60), Ok(()));
    assert_eq!(outcome(wide(&[64, 64, 2]), 512, 60), Ok(()));
}

#[test]
fn constants_that_take_minutes_to_fold_end_their_probe() {
    // What else a probe does takes less.
    assert_eq!(outcome(folding(64), 4096, 6), Ok(()));
    check("constant folding (time)", folding(9000), 4096, 6, &["SIGKILL", "SIGXCPU"]);
}

#[test]
fn constants_larger_than_memory_end_their_probe() {
    check("constant folding (memory)", folding(12_000), 512, 60, NO_MEMORY);
}

#[test]
fn shapes_that_explode_while_a_model_is_opened_end_its_probe() {
    check("exploding shape", wide(&[1 << 20, 1 << 20, 1 << 10]), 1024, 60, NO_MEMORY);
    check(
        "overflowing shape",
        wide(&[i64::MAX, i64::MAX]),
        1024,
        60,
        &["overflow", "bad_alloc", "larger", "Integer"],
    );
}

#[test]
fn a_bomb_of_empty_messages_ends_its_probe() {
    // Two bytes of a file become a node of hundreds in memory.
    let y = onnx_writer::value("y", Element::Float, &[]);
    let mut graph = onnx_writer::graph([], [], [], [y]).finish();
    graph.extend([0x0a, 0x00].repeat(16 << 20));
    let model = Message::default()
        .number(1, 8)
        .bytes(7, graph)
        .bytes(8, Message::default().bytes(1, "").number(2, 17))
        .finish();
    check("protobuf bomb", model, 512, 60, NO_MEMORY);
}

#[test]
fn graphs_within_graphs_are_refused_before_onnx_runtime_sees_them() {
    let mut graph = Message::default().bytes(2, "deepest").finish();
    for _ in 0..5000 {
        let attribute = Message::default().bytes(1, "body").bytes(6, graph).number(20, 5);
        let node = Message::default().bytes(4, "If").bytes(5, attribute);
        graph = Message::default().bytes(1, node).bytes(2, "g").finish();
    }
    let model = Message::default().number(1, 8).bytes(7, graph).finish();
    let error = Package::new(model, ANY, ONE).write().refusal();
    assert_eq!(error.reason(), Reason::BadModel);
    assert!(error.to_string().contains("nested"), "{error}");
    counts::say("hostile model nested graphs: not opened: nested more than 64 deep");
}

#[test]
fn operators_of_a_library_that_is_not_there_are_refused_by_name() {
    let node = onnx_writer::node("Evil", &["x"], &["y"]).bytes(7, "../../evil.so");
    let x = onnx_writer::value("x", Element::Float, &[1.into()]);
    let y = onnx_writer::value("y", Element::Float, &[1.into()]);
    let graph = onnx_writer::graph([node], [], [x], [y]);
    let model = Message::default()
        .number(1, 8)
        .bytes(7, graph)
        .bytes(8, Message::default().bytes(1, "").number(2, 17))
        .bytes(8, Message::default().bytes(1, "../../evil.so").number(2, 1))
        .finish();
    let package = Package::new(model, &[("x", "FP32", &[1])], &[("y", "FP32", &[1])]);
    let error = package.write().refusal();
    assert_eq!(error.reason(), Reason::BadModel);
    assert!(error.to_string().contains("Evil"), "{error}");
    counts::say("hostile model custom operators: not opened: no library is ever loaded for a model");
    check_neighbour();
}

#[test]
fn shapes_that_a_request_makes_explode_fail_that_request() {
    let size = onnx_writer::value("size", Element::Int64, &[Extent::Named("R")]);
    let y = onnx_writer::value("y", Element::Float, &[Extent::Named("A"), Extent::Named("B")]);
    let node = onnx_writer::node("ConstantOfShape", &["size"], &["y"]);
    let model = onnx_writer::model(onnx_writer::graph([node], [], [size], [y]));
    let package = Package::new(model, &[("size", "INT64", &[-1])], &[("y", "FP32", &[-1, -1])])
        .module("tensor-mib", json!(16))
        .write();
    let loaded = package.open().unwrap();
    let of = |rows: i64, columns: i64| {
        let bytes = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
        ask(&loaded, vec![NamedTensor::new("size", Tensor::fixed(Datatype::Int64, [2], bytes).unwrap())])
    };
    assert_eq!(of(3, 4).unwrap()[0].tensor.shape(), [3, 4]);
    let more_than_there_is = of(1 << 24, 1 << 24);
    assert!(matches!(more_than_there_is, Err(PredictError::Model(_))), "{more_than_there_is:?}");
    let more_than_it_may = of(4096, 4096);
    assert!(matches!(more_than_it_may, Err(PredictError::Limit(_))), "{more_than_it_may:?}");
    let negative = of(-1, 4);
    assert!(matches!(negative, Err(PredictError::Model(_) | PredictError::InvalidInput(_))), "{negative:?}");
    assert_eq!(of(3, 4).unwrap()[0].tensor.shape(), [3, 4]);
    check_neighbour();
    counts::say("hostile model exploding output: request failed; the next one answered");
}
