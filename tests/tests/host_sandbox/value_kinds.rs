//! Models that take and give what is no tensor of the protocol: sequences, maps, a table of maps as
//! scikit-learn's classifiers give it, small elements; and tensors that stand for no such value. The public
//! backend cases (`onnx_backend`) have no map.

use selvedge_host::failure::PredictError;
use selvedge_host::tensor::{Buffer, NamedTensor, Strings, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::onnx_writer::{self, Element, Extent, Message};

use crate::fixture::{Package, ask, floats, fp32};

/// A model that may use ONNX's operators for classical machine learning.
fn model(graph: Message) -> Vec<u8> {
    let opset = |domain: &str, version| Message::default().bytes(1, domain).number(2, version);
    let opsets = [opset("", 17), opset("ai.onnx.ml", 3)];
    Message::default().number(1, 8).bytes(7, graph).all(8, opsets).finish()
}

fn tensor_type(element: Element) -> Message {
    Message::default().bytes(1, Message::default().number(1, element as i64))
}

fn sequence_of(item: Message) -> Message {
    Message::default().bytes(4, Message::default().bytes(1, item))
}

fn map_of(key: Element, value: Element) -> Message {
    Message::default().bytes(5, Message::default().number(1, key as i64).bytes(2, tensor_type(value)))
}

fn value(name: &str, of: Message) -> Message {
    Message::default().bytes(1, name).bytes(2, of)
}

fn learned(operator: &str, attribute: Message) -> Message {
    onnx_writer::node(operator, &["x"], &["y"]).bytes(5, attribute).bytes(7, "ai.onnx.ml")
}

fn texts(name: &str, texts: &[&str]) -> Message {
    texts.iter().fold(Message::default().bytes(1, name), |message, text| message.bytes(9, text)).number(20, 8)
}

/// What a classifier of scikit-learn ends with.
fn zip_map(key: Element, classes: Message) -> Vec<u8> {
    let x = onnx_writer::value("x", Element::Float, &[Extent::Named("N"), Extent::Named("C")]);
    let y = value("y", sequence_of(map_of(key, Element::Float)));
    model(onnx_writer::graph([learned("ZipMap", classes)], [], [x], [y]))
}

fn int64(name: &str, shape: &[u64], values: &[i64]) -> NamedTensor {
    NamedTensor::new(name, Tensor::fixed(Datatype::Int64, shape, Buffer::from(values)).unwrap())
}

fn strings(name: &str, elements: &[&str]) -> NamedTensor {
    let shape = [elements.len() as u64];
    NamedTensor::new(name, Tensor::bytes(shape, Strings::from_iter(elements)).unwrap())
}

fn integers(tensor: &Tensor) -> Vec<i64> {
    let bytes = tensor.as_fixed().unwrap().chunks_exact(8);
    bytes.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn refused(answer: Result<Vec<NamedTensor>, PredictError>, says: &str) {
    match answer {
        Err(PredictError::InvalidInput(why)) => assert!(why.contains(says), "{why}"),
        other => panic!("{says}: {other:?}"),
    }
}

#[test]
fn a_sequence_of_maps_is_a_table_and_its_columns() {
    let numbers = [3, 5, 9]
        .iter()
        .fold(Message::default().bytes(1, "classlabels_int64s"), |message, &label| message.number(8, label));
    let names = texts("classlabels_strings", &["cat", "dog", "eel"]);
    for (key, datatype, classes) in
        [(Element::Int64, "INT64", numbers.number(20, 7)), (Element::String, "BYTES", names)]
    {
        let outputs: [(&str, &str, &[i64]); 2] = [("y", "FP32", &[-1, -1]), ("y.keys", datatype, &[-1])];
        let package = Package::new(zip_map(key, classes), &[("x", "FP32", &[-1, -1])], &outputs).write();
        let loaded = package.open().unwrap();
        let rows = [0.5, 0.25, 0.25, 0.0, 1.0, f32::NAN];
        let answer = ask(&loaded, vec![fp32("x", &[2, 3], &rows)]).unwrap();
        assert_eq!(answer[0].tensor.shape(), [2, 3]);
        assert_eq!(floats(&answer[0].tensor)[..5], rows[..5]);
        assert!(floats(&answer[0].tensor)[5].is_nan());
        match answer[1].tensor.as_strings() {
            Some(keys) => assert_eq!(keys.iter().collect::<Vec<_>>(), [b"cat", b"dog", b"eel"]),
            None => assert_eq!(integers(&answer[1].tensor), [3, 5, 9]),
        }
    }
}

#[test]
fn a_map_is_its_values_and_its_keys() {
    let y = onnx_writer::value("y", Element::Float, &[Extent::Fixed(1), Extent::Fixed(3)]);
    let x = value("x", map_of(Element::String, Element::Float));
    let vectorizer = learned("DictVectorizer", texts("string_vocabulary", &["a", "b", "c"]));
    let inputs: [(&str, &str, &[i64]); 2] = [("x", "FP32", &[-1]), ("x.keys", "BYTES", &[-1])];
    let model = model(onnx_writer::graph([vectorizer], [], [x], [y]));
    let package = Package::new(model, &inputs, &[("y", "FP32", &[1, 3])]).write();
    let loaded = package.open().unwrap();
    let of = |values: &[f32], keys: &[&str]| {
        ask(&loaded, vec![strings("x.keys", keys), fp32("x", &[values.len() as u64], values)])
    };
    assert_eq!(floats(&of(&[7.0, 2.0], &["c", "a"]).unwrap()[0].tensor), [2.0, 0.0, 7.0]);
    refused(of(&[7.0, 2.0], &["a", "a"]), "the model's input `x`: key 1 was there before");
    refused(of(&[7.0], &["a", "b"]), "a map has one of each");
    refused(of(&[7.0], &["a\0"]), "element 0 is no ONNX string");
    assert!(of(&[1.0], &["b"]).is_ok());
}

/// The item of a sequence that `at` says, and the sequence itself.
fn sequence(element: Element) -> Vec<u8> {
    let nodes = [
        onnx_writer::node("SequenceAt", &["x", "at"], &["item"]),
        onnx_writer::node("Identity", &["x"], &["y"]),
    ];
    let inputs =
        [value("x", sequence_of(tensor_type(element))), onnx_writer::value("at", Element::Int64, &[])];
    let outputs = [value("item", tensor_type(element)), value("y", sequence_of(tensor_type(element)))];
    model(onnx_writer::graph(nodes, [], inputs, outputs))
}

#[test]
fn a_sequence_is_its_elements_and_the_shapes_of_its_items() {
    let inputs: [(&str, &str, &[i64]); 3] =
        [("x", "FP32", &[-1]), ("x.shapes", "INT64", &[-1, -1]), ("at", "INT64", &[])];
    let outputs: [(&str, &str, &[i64]); 2] = [("y", "FP32", &[-1]), ("y.shapes", "INT64", &[-1, -1])];
    let package = Package::new(sequence(Element::Float), &inputs, &outputs).write();
    let loaded = package.open().unwrap();
    let of = |values: &[f32], shape: &[u64], shapes: &[i64]| {
        let items = fp32("x", &[values.len() as u64], values);
        ask(&loaded, vec![items, int64("x.shapes", shape, shapes), int64("at", &[], &[0])])
    };
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let shapes = [2, 2, 0, -1, -1, -1, 2, -1];
    let answer = of(&values, &[4, 2], &shapes).unwrap();
    assert_eq!(floats(&answer[0].tensor), values);
    assert_eq!((answer[1].tensor.shape(), integers(&answer[1].tensor)), (&[4, 2][..], shapes.to_vec()));
    refused(of(&[], &[0, 0], &[]), "an empty sequence, which ONNX Runtime does not take");
    refused(of(&values, &[1, 1], &[6]), "7 elements, of which its items have 6");
    refused(of(&values, &[1, 1], &[8]), "item 0: [8] goes past the 7 elements");
    refused(of(&values, &[1, 2], &[-1, 7]), "item 0: [-1, 7] are no extents");
    refused(of(&values, &[1 << 40, 0], &[]), "a sequence of 1099511627776 items");
    assert_eq!(loaded.instances_made(), 1, "a caller's mistake costs no instance");
}

#[test]
fn a_sequence_of_strings_keeps_its_items_apart() {
    let inputs: [(&str, &str, &[i64]); 3] =
        [("x", "BYTES", &[-1]), ("x.shapes", "INT64", &[-1, -1]), ("at", "INT64", &[])];
    let outputs: [(&str, &str, &[i64]); 2] = [("item", "BYTES", &[-1]), ("y.shapes", "INT64", &[-1, -1])];
    let package = Package::new(sequence(Element::String), &inputs, &outputs).write();
    let shapes = int64("x.shapes", &[2, 1], &[1, 2]);
    let items = strings("x", &["", "grün", "c"]);
    let answer = ask(&package.open().unwrap(), vec![items, shapes, int64("at", &[], &[1])]).unwrap();
    let item = answer[0].tensor.as_strings().unwrap();
    assert_eq!(item.iter().collect::<Vec<_>>(), ["grün".as_bytes(), b"c"]);
    assert_eq!(integers(&answer[1].tensor), [1, 2]);
}

#[test]
fn what_no_tensors_can_stand_for_is_refused_when_the_package_is_opened() {
    let same = |of: Message| {
        let identity = onnx_writer::node("Identity", &["x"], &["y"]);
        model(onnx_writer::graph([identity], [], [value("x", of.clone())], [value("y", of)]))
    };
    let deep = sequence_of(sequence_of(tensor_type(Element::Float)));
    let clash = {
        let nodes = [
            onnx_writer::node("Identity", &["x"], &["y"]),
            onnx_writer::node("Identity", &["x.shapes"], &["z"]),
        ];
        let floats = || sequence_of(tensor_type(Element::Float));
        let other = |name| onnx_writer::value(name, Element::Float, &[]);
        let inputs = [value("x", floats()), other("x.shapes")];
        model(onnx_writer::graph(nodes, [], inputs, [value("y", floats()), other("z")]))
    };
    for (model, says) in [(same(deep), ""), (clash, "would be called `x.shapes`; rename one")] {
        let one: [(&str, &str, &[i64]); 1] = [("x", "FP32", &[-1])];
        let refusal = Package::new(model, &one, &one).write().refusal().to_string();
        assert!(refusal.contains(says), "{refusal}");
    }
}
