//! Every element type from JSON through a real model of that type and back: what comes is what was
//! sent, what does not fit is refused with its place, and ONNX Runtime sees the numbers that JSON has.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use selvedge_tests::onnx_writer::{self, Element, Extent, Message};
use serde_json::{Value, json};

use crate::host::{Host, Package, Spec, tensor};

/// The types of the protocol: ONNX's, the protocol's name, and four elements (integers at their ends).
fn types() -> Vec<(Element, &'static str, Value)> {
    vec![
        (Element::Bool, "BOOL", json!([true, false, false, true])),
        (Element::Uint8, "UINT8", json!([0, 1, 127, 255])),
        (Element::Uint16, "UINT16", json!([0, 1, 256, 65535])),
        (Element::Uint32, "UINT32", json!([0, 1, 65536, u32::MAX])),
        (Element::Uint64, "UINT64", json!([0, 1, 1_u64 << 63, u64::MAX])),
        (Element::Int8, "INT8", json!([-128, -1, 0, 127])),
        (Element::Int16, "INT16", json!([-32768, -1, 0, 32767])),
        (Element::Int32, "INT32", json!([i32::MIN, -1, 0, i32::MAX])),
        (Element::Int64, "INT64", json!([i64::MIN, -1, 0, i64::MAX])),
        (Element::Float16, "FP16", json!([-65504.0, -0.0, 0.099975586, 5.9604645e-8])),
        (Element::Bfloat16, "BF16", json!([-256.0, -0.0, 0.100097656, 0.0078125])),
        (Element::Float, "FP32", json!([0.1, -0.0, 3.4028235e38, 0.25])),
        (Element::Double, "FP64", json!([0.1, -0.0, 1.5e300, 0.25])),
        (Element::String, "BYTES", json!(["", "grün", "\"\n", "x"])),
    ]
}

/// Floating-point types, with the least number that rounds to infinity.
const REAL: [(Element, &str, &str); 4] = [
    (Element::Float16, "FP16", "65520"),
    (Element::Bfloat16, "BF16", "3.3961776e38"),
    (Element::Float, "FP32", "3.4028236e38"),
    (Element::Double, "FP64", "1.8e308"),
];

/// `y = x` of a rank; extents are free.
fn identity(name: &str, element: Element, datatype: &str, rank: usize) -> Package {
    let extents: Vec<_> = ["A", "B", "C"].iter().take(rank).map(|name| Extent::Named(name)).collect();
    let shape = vec![1; rank];
    let one = match datatype {
        "BOOL" => json!([true]),
        "BYTES" => json!(["a"]),
        _ => json!([1]),
    };
    let of = |name| tensor((name, datatype), &shape, one.clone());
    let case = json!({"name": "one", "inputs": [of("x")], "outputs": [of("y")]});
    let free = vec![-1; rank];
    let specs: [[Spec; 1]; 2] = [[("x", datatype, &free)], [("y", datatype, &free)]];
    let model = onnx_writer::identity_of(element, &extents);
    Package::new(name, 1, model, (&specs[0], &specs[1]), case)
}

/// A host with an identity of one dimension for each type, by the type's name in small letters.
pub async fn host() -> Host {
    let host = Host::start().await;
    for (element, datatype, _) in types() {
        host.put(&identity(&datatype.to_lowercase(), element, datatype, 1).write()).await;
    }
    host
}

/// Asks the identity `name` with `data` as it stands.
async fn ask(host: &Host, name: &str, datatype: &str, shape: &str, data: &str) -> (u16, String) {
    let body =
        format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}"#);
    host.post_text(&format!("/v2/models/{name}/infer"), body).await
}

/// The text of an answer's only output's data.
fn data(answer: &str) -> &str {
    let (_, data) = answer.split_once("\"data\":").unwrap_or_else(|| panic!("{answer}"));
    data.strip_suffix("}]}").unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_comes_back_flat_nested_scalar_and_empty() {
    let host = Host::start().await;
    for (element, datatype, four) in types() {
        let name = datatype.to_lowercase();
        let four = four.as_array().unwrap();
        let check = async |name: &str, shape: &[u64], sent: Value, came: Value| {
            let request = json!({"inputs": [tensor(("x", datatype), shape, sent)]});
            let (status, answer) = host.post(&format!("/v2/models/{name}/infer"), request).await;
            let expected = json!([tensor(("y", datatype), shape, came)]);
            assert_eq!((status, &answer["outputs"]), (200, &expected), "{datatype} {shape:?}: {answer}");
        };
        let (scalar, cube) = (format!("{name}-scalar"), format!("{name}-cube"));
        host.put(&identity(&scalar, element, datatype, 0).write()).await;
        host.put(&identity(&cube, element, datatype, 3).write()).await;
        for value in four {
            check(&scalar, &[], json!([value]), json!([value])).await;
        }
        check(&scalar, &[], four[3].clone(), json!([four[3]])).await;
        check(&cube, &[1, 4, 1], json!(four), json!(four)).await;
        let nested = json!([[[four[0]], [four[1]]], [[four[2]], [four[3]]]]);
        check(&cube, &[2, 2, 1], nested, json!(four)).await;
        check(&cube, &[0, 2, 3], json!([]), json!([])).await;
        check(&cube, &[2, 0, 3], json!([[], []]), json!([])).await;
        check(&cube, &[2, 1, 0], json!([[[]], [[]]]), json!([])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_with_its_place() {
    let host = host().await;
    let check = async |datatype: &str, first: &str, second: &str, says: &str| {
        let data = format!("[{first},{second}]");
        let (status, answer) = ask(&host, &datatype.to_lowercase(), datatype, "[2]", &data).await;
        let says = format!("input 0 (`x`): element 1: {says}");
        assert!(status == 400 && answer.contains(&says), "{datatype} {data}: {status} {answer}, not {says}");
    };
    let edges = [
        ("UINT8", "-1", "256"),
        ("UINT16", "-1", "65536"),
        ("UINT32", "-1", "4294967296"),
        ("UINT64", "-1", "18446744073709551616"),
        ("INT8", "-129", "128"),
        ("INT16", "-32769", "32768"),
        ("INT32", "-2147483649", "2147483648"),
        ("INT64", "-9223372036854775809", "9223372036854775808"),
    ];
    for (datatype, under, over) in edges {
        for wrong in [under, over] {
            check(datatype, "0", wrong, &format!("{wrong} does not fit {datatype}")).await;
        }
        for wrong in ["1.0", "1e2", "NaN"] {
            check(datatype, "0", wrong, &format!("{wrong} is not written as an integer")).await;
        }
        check(datatype, "0", "true", "expected a number").await;
    }
    for (_, datatype, over) in REAL {
        for wrong in [over.to_owned(), format!("-{over}"), "1e999".to_owned()] {
            check(datatype, "0.5", &wrong, &format!("{wrong} does not fit {datatype}")).await;
        }
        check(datatype, "0", "\"1\"", "a string is no number").await;
        check(datatype, "0", "null", "expected a number").await;
    }
    check("BOOL", "true", "1", "expected true or false").await;
    check("BYTES", "\"\"", "1", "expected a string").await;
    let (status, answer) = ask(&host, "bytes", "BYTES", "[1]", r#"["\ud800"]"#).await;
    assert!(status == 400 && answer.contains("surrogate"), "{status} {answer}");
    // JSON can say it, and an ONNX string cannot hold it: the model's word, in the same status.
    let (status, answer) = ask(&host, "bytes", "BYTES", "[2]", r#"["","\u0000"]"#).await;
    assert!(status == 400 && answer.contains("element 1"), "{status} {answer}");
    assert!(host.status().await.packages.iter().all(|package| package.failures == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_none_come_back_as_bare_words() {
    let host = host().await;
    for (_, datatype, _) in REAL {
        let sent = r#"[NaN,"NaN",Infinity,"Infinity",-Infinity,"-Infinity",-0.0]"#;
        let (status, answer) = ask(&host, &datatype.to_lowercase(), datatype, "[7]", sent).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(data(&answer), "[NaN,NaN,Infinity,Infinity,-Infinity,-Infinity,-0.0]", "{datatype}");
    }
}

/// `y = x` by way of another type: what ONNX Runtime understands of the bytes is in the answer.
fn cast(from: Element, to: Element) -> Vec<u8> {
    let shape = [Extent::Named("A")];
    let attribute = Message::default().bytes(1, "to").number(3, to as i64).number(20, 2);
    let cast = onnx_writer::node("Cast", &["x"], &["y"]).bytes(5, attribute);
    let (x, y) = (onnx_writer::value("x", from, &shape), onnx_writer::value("y", to, &shape));
    onnx_writer::model(onnx_writer::graph([cast], [], [x], [y]))
}

#[tokio::test(flavor = "multi_thread")]
async fn onnx_runtime_understands_the_elements_as_they_were_meant() {
    let host = Host::start().await;
    for (element, datatype, _) in types() {
        let (sent, numbers) = match datatype {
            "BYTES" => continue,
            "BOOL" => (json!([true, false]), json!([1.0, 0.0])),
            "UINT8" | "UINT16" | "UINT32" | "UINT64" => (json!([3, 200]), json!([3.0, 200.0])),
            "INT8" | "INT16" | "INT32" | "INT64" => (json!([-100, 7]), json!([-100.0, 7.0])),
            _ => (json!([-1.5, 96.0]), json!([-1.5, 96.0])),
        };
        for (there, model, [from, to], [sent, came]) in [
            (true, cast(element, Element::Double), [datatype, "FP64"], [&sent, &numbers]),
            (false, cast(Element::Double, element), ["FP64", datatype], [&numbers, &sent]),
        ] {
            let x = tensor(("x", from), &[2], sent.clone());
            let y = tensor(("y", to), &[2], came.clone());
            // The case is the check: it is compared with what the model gave.
            let case = json!({"name": "cast", "inputs": [x], "outputs": [y]});
            let name = format!("{}-{there}", datatype.to_lowercase());
            let specs: [[Spec; 1]; 2] = [[("x", from, &[-1])], [("y", to, &[-1])]];
            host.put(&Package::new(&name, 1, model, (&specs[0], &specs[1]), case).write()).await;
            let request = json!({"inputs": [tensor(("x", from), &[2], sent.clone())]});
            let (status, answer) = host.post(&format!("/v2/models/{name}/infer"), request).await;
            assert_eq!((status, &answer["outputs"][0]["data"]), (200, came), "{from} to {to}: {answer}");
        }
    }
}

/// An element as it may be written, and the bits that it has to have when it comes back.
type Written = (String, u64);

/// A number of a floating-point type from its bits: the digits are those of FP64, or fewer that mean
/// the same, or the bare word.
fn real(bits: u64, wide: f64, digits: u8) -> Written {
    let text = match digits {
        _ if wide.is_nan() => "NaN".to_owned(),
        _ if wide.is_infinite() => if wide > 0.0 { "Infinity" } else { "\"-Infinity\"" }.to_owned(),
        0 => format!("{wide:e}"),
        1 => format!("{wide:?}"),
        _ => format!("{wide:.30e}"),
    };
    (text, bits)
}

fn element(datatype: &str) -> BoxedStrategy<Written> {
    macro_rules! integer {
        ($type:ty) => {
            prop_oneof![any::<$type>(), Just(<$type>::MIN), Just(<$type>::MAX)]
                .prop_map(|value| (value.to_string(), value as u64))
                .boxed()
        };
    }
    match datatype {
        "BOOL" => any::<bool>().prop_map(|value| (value.to_string(), value.into())).boxed(),
        "UINT8" => integer!(u8),
        "UINT16" => integer!(u16),
        "UINT32" => integer!(u32),
        "UINT64" => integer!(u64),
        "INT8" => integer!(i8),
        "INT16" => integer!(i16),
        "INT32" => integer!(i32),
        "INT64" => integer!(i64),
        "FP16" => (any::<u16>(), 0..3_u8)
            .prop_map(|(bits, digits)| real(bits.into(), f16::from_bits(bits).to_f64(), digits))
            .boxed(),
        "BF16" => (any::<u16>(), 0..3_u8)
            .prop_map(|(bits, digits)| real(bits.into(), bf16::from_bits(bits).to_f64(), digits))
            .boxed(),
        "FP32" => (any::<u32>(), 0..3_u8)
            .prop_map(|(bits, digits)| real(bits.into(), f32::from_bits(bits).into(), digits))
            .boxed(),
        "FP64" => (any::<u64>(), 0..3_u8)
            .prop_map(|(bits, digits)| real(bits, f64::from_bits(bits), digits))
            .boxed(),
        other => panic!("{other}"),
    }
}

/// The bits of an element of an answer. All that is no number has the same bits.
fn bits(datatype: &str, text: &str) -> u64 {
    let wide = || -> f64 {
        match text {
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => text.parse().unwrap_or_else(|_| panic!("{text}")),
        }
    };
    match (datatype, text) {
        (_, "NaN") => NAN,
        ("BOOL", _) => (text == "true").into(),
        ("FP16", _) => f16::from_f64(wide()).to_bits().into(),
        ("BF16", _) => bf16::from_f64(wide()).to_bits().into(),
        ("FP32", _) => (wide() as f32).to_bits().into(),
        ("FP64", _) => wide().to_bits(),
        ("UINT64", _) => text.parse().unwrap(),
        _ => text.parse::<i64>().unwrap() as u64,
    }
}

/// Stands for every NaN: JSON does not keep which one.
const NAN: u64 = u64::MAX - 1;

#[tokio::test(flavor = "multi_thread")]
async fn any_numbers_come_back_bit_by_bit() {
    let host = host().await;
    let mut runner = TestRunner::deterministic();
    for (_, datatype, _) in types().into_iter().filter(|(.., datatype, _)| *datatype != "BYTES") {
        let some = prop::collection::vec(element(datatype), 0..100);
        for _ in 0..8 {
            let elements = some.new_tree(&mut runner).unwrap().current();
            let texts: Vec<_> = elements.iter().map(|(text, _)| text.as_str()).collect();
            let sent = format!("[{}]", texts.join(","));
            let shape = format!("[{}]", elements.len());
            let (status, answer) = ask(&host, &datatype.to_lowercase(), datatype, &shape, &sent).await;
            assert_eq!(status, 200, "{datatype} {sent}: {answer}");
            let came = data(&answer).trim_matches(['[', ']']);
            let came: Vec<_> = came.split(',').filter(|text| !text.is_empty()).collect();
            assert_eq!(came.len(), elements.len(), "{datatype} {sent}: {answer}");
            for ((text, expected), came) in elements.iter().zip(came) {
                let expected = if text == "NaN" { NAN } else { *expected };
                assert_eq!(bits(datatype, came), expected, "{datatype}: sent {text}, came {came}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_text_comes_back_as_text_and_as_base64() {
    let host = host().await;
    let mut runner = TestRunner::deterministic();
    let some = prop::collection::vec("[^\0]{0,20}", 0..10);
    for _ in 0..32 {
        let elements = some.new_tree(&mut runner).unwrap().current();
        let input = tensor(("x", "BYTES"), &[elements.len() as u64], json!(elements));
        let mut request = json!({"inputs": [input]});
        let (status, answer) = host.post("/v2/models/bytes/infer", &request).await;
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(elements)), "{answer}");
        request["outputs"] = json!([{"name": "y", "parameters": {"encoding": "base64"}}]);
        let (status, answer) = host.post("/v2/models/bytes/infer", &request).await;
        assert_eq!(status, 200, "{answer}");
        let mut again = json!({"inputs": [answer["outputs"][0]]});
        again["inputs"][0]["name"] = json!("x");
        let (status, answer) = host.post("/v2/models/bytes/infer", again).await;
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!(elements)), "{answer}");
    }
}
