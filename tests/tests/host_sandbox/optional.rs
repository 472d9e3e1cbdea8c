//! What a request and an answer may go without: inputs that a model has a value of its own for, values that
//! it declares optional; and outputs that nobody asked for.

use selvedge_host::engine::{self, ticker::Ticker};
use selvedge_host::failure::PredictError;
use selvedge_host::session::{How, Model, Source};
use selvedge_host::tensor::{Buffer, NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::onnx_writer::{self, Element, Extent, Message, node, value};
use serde_json::json;

use crate::fixture::{LONG, Package, ask, executor, floats, fp32, runtime};

const FREE: [Extent; 1] = [Extent::Named("N")];

/// `y = x · scale`, where `scale` is 2 unless a request brings another.
pub fn scaled() -> Vec<u8> {
    let two = onnx_writer::initializer("scale", Element::Float, &[], &2_f32.to_le_bytes());
    let inputs = [value("x", Element::Float, &FREE), value("scale", Element::Float, &[])];
    let y = value("y", Element::Float, &FREE);
    onnx_writer::model(onnx_writer::graph([node("Mul", &["x", "scale"], &["y"])], [two], inputs, [y]))
}

#[test]
fn an_initialiser_that_is_an_input_too_may_be_given() {
    let one: [(&str, &str, &[i64]); 1] = [("x", "FP32", &[-1])];
    let y: [(&str, &str, &[i64]); 1] = [("y", "FP32", &[-1])];
    let closed = Package::new(scaled(), &one, &y).write().open().unwrap();
    let x = || fp32("x", &[2], &[1.0, 3.0]);
    assert_eq!(floats(&ask(&closed, vec![x()]).unwrap()[0].tensor), [2.0, 6.0]);
    let inputs = json!([
        {"name": "x", "datatype": "FP32", "shape": [-1]},
        {"name": "scale", "datatype": "FP32", "shape": [], "optional": true},
    ]);
    let package = Package::new(scaled(), &one, &y).set("inputs", inputs).write();
    let open = package.open().unwrap();
    let of = |inputs| ask(&open, inputs).map(|outputs| floats(&outputs[0].tensor));
    assert_eq!(of(vec![x()]).unwrap(), [2.0, 6.0]);
    assert_eq!(of(vec![fp32("scale", &[], &[5.0]), x()]).unwrap(), [5.0, 15.0]);
    assert_eq!(of(vec![x()]).unwrap(), [2.0, 6.0], "the value of one request is not that of the next");
    let wrong = NamedTensor::new("scale", Tensor::fixed(Datatype::Int32, [], vec![0; 4]).unwrap());
    let error = of(vec![x(), wrong]).unwrap_err();
    assert!(error.to_string().contains("`scale` is FP32, and INT32 came"), "{error}");
    assert!(of(vec![x(), fp32("scale", &[3], &[1.0; 3])]).is_err(), "two elements times three");
    let error = of(vec![fp32("scale", &[], &[5.0])]).unwrap_err();
    assert!(error.to_string().contains("`x` is missing"), "{error}");
    assert_eq!(open.instances_made(), 1);
}

fn tensor_type(element: Element) -> Message {
    Message::default().bytes(1, Message::default().number(1, element as i64))
}

fn optional_of(inside: Message) -> Message {
    Message::default().bytes(9, Message::default().bytes(1, inside))
}

fn sequence_of(inside: Message) -> Message {
    Message::default().bytes(4, Message::default().bytes(1, inside))
}

fn named(name: &str, of: Message) -> Message {
    Message::default().bytes(1, name).bytes(2, of)
}

/// `there` says whether `x` has something in it.
fn has(of: Message) -> Vec<u8> {
    let there = value("there", Element::Bool, &[]);
    let graph =
        onnx_writer::graph([node("OptionalHasElement", &["x"], &["there"])], [], [named("x", of)], [there]);
    onnx_writer::model(graph)
}

#[test]
fn an_optional_input_may_be_left_out() {
    let there: [(&str, &str, &[i64]); 1] = [("there", "BOOL", &[])];
    let package = Package::new(has(optional_of(tensor_type(Element::Float))), &[], &there)
        .set("inputs", json!([{"name": "x", "datatype": "FP32", "shape": [-1], "optional": true}]))
        .write();
    let loaded = package.open().unwrap();
    let says = |inputs| ask(&loaded, inputs).map(|outputs| outputs[0].tensor.as_fixed().unwrap()[0]);
    assert_eq!(says(vec![fp32("x", &[1], &[1.0])]).unwrap(), 1);
    assert_eq!(says(vec![]).unwrap(), 0);
    assert_eq!(says(vec![fp32("x", &[1], &[1.0])]).unwrap(), 1);
}

#[test]
fn an_optional_sequence_comes_as_a_whole_or_not_at_all() {
    let there: [(&str, &str, &[i64]); 1] = [("there", "BOOL", &[])];
    let package = Package::new(has(optional_of(sequence_of(tensor_type(Element::Float)))), &[], &there)
        .set(
            "inputs",
            json!([
                {"name": "x", "datatype": "FP32", "shape": [-1], "optional": true},
                {"name": "x.shapes", "datatype": "INT64", "shape": [-1, -1], "optional": true},
            ]),
        )
        .write();
    let loaded = package.open().unwrap();
    let shapes = || {
        let one = Tensor::fixed(Datatype::Int64, [1, 1], Buffer::from(&[2_i64][..])).unwrap();
        NamedTensor::new("x.shapes", one)
    };
    let items = || fp32("x", &[2], &[1.0, 2.0]);
    let says = |inputs| ask(&loaded, inputs).map(|outputs| outputs[0].tensor.as_fixed().unwrap()[0]);
    assert_eq!(says(vec![items(), shapes()]).unwrap(), 1);
    assert_eq!(says(vec![]).unwrap(), 0);
    for part in [items(), shapes()] {
        let error = says(vec![part]).unwrap_err();
        assert!(error.to_string().contains("`x` and `x.shapes` come together or not at all"), "{error}");
    }
}

/// `y` is `x` where `yes`, and empty otherwise; `z` is `x`.
pub fn perhaps() -> Vec<u8> {
    let y = |name: &str| named(name, optional_of(tensor_type(Element::Float)));
    let of = Message::default().bytes(1, "type").bytes(14, tensor_type(Element::Float)).number(20, 13);
    let some = onnx_writer::graph([node("Optional", &["x"], &["some"])], [], [], [y("some")]);
    let none = onnx_writer::graph([node("Optional", &[], &["none"]).bytes(5, of)], [], [], [y("none")]);
    let branch = |name: &str, graph: Message| Message::default().bytes(1, name).bytes(6, graph).number(20, 5);
    let choice = node("If", &["yes"], &["y"])
        .bytes(5, branch("then_branch", some))
        .bytes(5, branch("else_branch", none));
    let inputs = [value("x", Element::Float, &FREE), value("yes", Element::Bool, &[])];
    let outputs = [y("y"), value("z", Element::Float, &FREE)];
    onnx_writer::model(onnx_writer::graph([choice, node("Identity", &["x"], &["z"])], [], inputs, outputs))
}

#[test]
fn an_optional_output_may_be_missing() {
    let inputs: [(&str, &str, &[i64]); 2] = [("x", "FP32", &[-1]), ("yes", "BOOL", &[])];
    let strict: [(&str, &str, &[i64]); 2] = [("y", "FP32", &[-1]), ("z", "FP32", &[-1])];
    let outputs = json!([
        {"name": "y", "datatype": "FP32", "shape": [-1], "optional": true},
        {"name": "z", "datatype": "FP32", "shape": [-1]},
    ]);
    let ask_for = |loaded, yes: bool| {
        let yes = Tensor::fixed(Datatype::Bool, [], vec![yes.into()]).unwrap();
        ask(loaded, vec![fp32("x", &[2], &[1.0, 2.0]), NamedTensor::new("yes", yes)])
    };
    let names = |outputs: Vec<NamedTensor>| outputs.into_iter().map(|one| one.name).collect::<Vec<_>>();
    let loaded = Package::new(perhaps(), &inputs, &strict).set("outputs", outputs).write().open().unwrap();
    let both = ask_for(&loaded, true).unwrap();
    assert_eq!(floats(&both[0].tensor), [1.0, 2.0]);
    assert_eq!(names(both), ["y", "z"]);
    for _ in 0..2 {
        assert_eq!(names(ask_for(&loaded, false).unwrap()), ["z"]);
    }
    assert_eq!(names(ask_for(&loaded, true).unwrap()), ["y", "z"]);
    let promised = Package::new(perhaps(), &inputs, &strict).write().open().unwrap();
    let error = ask_for(&promised, false).unwrap_err();
    assert!(
        matches!(&error, PredictError::Module(why) if why.contains("did not give the output `y`")),
        "{error}"
    );
}

#[test]
fn only_the_outputs_that_are_asked_for_come() {
    let nodes = [node("Abs", &["x"], &["size"]), node("Neg", &["x"], &["less"])];
    let outputs = ["size", "less"].map(|name| value(name, Element::Float, &FREE));
    let graph = onnx_writer::graph(nodes, [], [value("x", Element::Float, &FREE)], outputs);
    let ticker = Ticker::start(engine::new_engine().unwrap()).unwrap();
    let model = opened(&ticker, graph);
    let run = |names: &[&str]| {
        let x = fp32("x", &[2], &[1.5, -2.0]).tensor;
        let names = names.iter().map(|&name| name.to_owned()).collect();
        executor().block_on(model.run(vec![("x".to_owned(), x)], names, LONG.into()))
    };
    let (size, less) = (("size", vec![1.5, 2.0]), ("less", vec![-1.5, 2.0]));
    for (names, expected) in
        [(&[][..], &[&size, &less][..]), (&["less"], &[&less]), (&["less", "size"], &[&less, &size])]
    {
        let answer = run(names).unwrap();
        let answer: Vec<_> = answer.iter().map(|(name, tensor)| (name.as_str(), floats(tensor))).collect();
        assert_eq!(answer.iter().collect::<Vec<_>>(), expected);
    }
    let refused = |names: &[&str], says: &str| {
        let error = run(names).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&["neither"], "no output `neither`");
    refused(&["less", "less"], "`less` was asked for twice");
    refused(&["less", "size", "less"], "3 outputs were asked for; the model has 2");
    // What a module can send: said before any of them is looked at.
    refused(&vec![""; 4_000_000], "4000000 outputs were asked for");
}

fn opened(ticker: &Ticker, graph: Message) -> Model {
    let model = onnx_writer::model(graph);
    let environment = runtime().environment();
    Model::open(environment, ticker, Source::Bytes(&model), How::PLAIN, || panic!("stuck")).unwrap()
}

#[test]
fn a_sparse_tensor_is_refused() {
    let sparse = Message::default().bytes(8, Message::default().number(1, Element::Float as i64));
    let (x, y) = (value("x", Element::Float, &FREE), value("y", Element::Float, &FREE));
    let inputs = [x, named("s", sparse)];
    let model = onnx_writer::model(onnx_writer::graph([node("Neg", &["x"], &["y"])], [], inputs, [y]));
    let ticker = Ticker::start(engine::new_engine().unwrap()).unwrap();
    let source = Source::Bytes(&model);
    let opened = Model::open(runtime().environment(), &ticker, source, How::PLAIN, || panic!("stuck"));
    let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("input `s`: it is a sparse tensor, which is not supported"), "{error:?}");
}

/// ONNX Runtime gives the very value that it was lent, which must not outlive the input.
#[test]
fn an_output_that_is_an_input_is_a_copy() {
    let scale = onnx_writer::initializer("scale", Element::Float, &[1], &2_f32.to_le_bytes());
    let inputs = [value("x", Element::Float, &FREE), value("scale", Element::Float, &[Extent::Fixed(1)])];
    let outputs = ["y", "x", "scale"];
    let typed = [FREE[0], FREE[0], Extent::Fixed(1)];
    let outputs = outputs.into_iter().zip(typed).map(|(name, extent)| value(name, Element::Float, &[extent]));
    let graph = onnx_writer::graph([node("Neg", &["x"], &["y"])], [scale], inputs, outputs);
    let ticker = Ticker::start(engine::new_engine().unwrap()).unwrap();
    let model = opened(&ticker, graph);
    // Large enough that freeing it gives it back to the system.
    let count = 1 << 20;
    let given = |name: &str, count: usize, number: f32| {
        (name.to_owned(), fp32(name, &[count as u64], &vec![number; count]).tensor)
    };
    let inputs = vec![given("x", count, 1.5), given("scale", 1, 5.0)];
    let lent: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.as_fixed().unwrap().as_ptr()).collect();
    let answer = executor().block_on(model.run(inputs, Vec::new(), LONG.into())).unwrap();
    let again: Vec<_> = (0..4).map(|_| given("x", count, 7.0)).collect();
    for (name, tensor) in &answer {
        assert!(!lent.contains(&tensor.as_fixed().unwrap().as_ptr()), "`{name}` is memory that was lent");
        let (length, number) = match name.as_str() {
            "x" => (count, 1.5),
            "y" => (count, -1.5),
            _ => (1, 5.0),
        };
        assert_eq!(floats(tensor), vec![number; length], "{name}");
    }
    assert_eq!((answer.len(), again.len()), (3, 4));
    // Its own value, where none is given.
    let answer = executor().block_on(model.run(vec![given("x", 1, 1.0)], Vec::new(), LONG.into())).unwrap();
    assert_eq!(floats(&answer[2].1), [2.0]);
}
