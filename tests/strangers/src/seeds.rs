//! The first inputs, which `tests/fuzz` writes into files and everything else begins from.

use std::path::{Path, PathBuf};

use selvedge_control::path;
use selvedge_host::oip::request_json;
use selvedge_host::protobuf::Message;
use serde_json::{Value, json};

use crate::LIMITS;
use crate::control_socket::PATHS;
use crate::host::Host;
use crate::written::{Elements, binary, message};

/// Where they lie.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target)
}

/// Requests in JSON by name, each of which is taken.
const JSON: [(&str, &str); 8] = [
    ("small", r#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,-2.5e-3]}]}"#),
    (
        "whole",
        r#"{"id":"7","parameters":{"timeout":1000000,"a":true,"b":-0.5,"c":"\u00e9\ud83d\ude00","binary_data_output":false},
"inputs":[{"name":"x","shape":[1,2,2],"datatype":"INT64","parameters":{"binary_data_size":0},"data":[[[1,-9223372036854775808],[3,4]]]}],
"outputs":[{"name":"y","parameters":{"binary_data":true}},{"name":"z","parameters":{"encoding":"base64"}}]}"#,
    ),
    (
        "late",
        r#"{"inputs":[{"data":[["a","b\n"],["\"",""]],"datatype":"BYTES","name":"x","shape":[2,2]},{"name":"y","shape":[1],"datatype":"BYTES","parameters":{"encoding":"base64"},"data":["/w=="]}]}"#,
    ),
    (
        "reals",
        r#"{"inputs":[{"name":"h","shape":[4],"datatype":"FP16","data":[65504,5.9604644775390625e-8,NaN,"-Infinity"]},{"name":"b","shape":[3],"datatype":"BF16","data":[1.00390625,3.38e38,-0]},{"name":"s","shape":[3],"datatype":"FP32","data":[16777217,1e-45,0.1]},{"name":"d","shape":[2],"datatype":"FP64","data":[1.7976931348623157e308,123456789012345678901234567890]}]}"#,
    ),
    (
        "wholes",
        r#"{"inputs":[{"name":"a","shape":[2],"datatype":"UINT8","data":[0,255]},{"name":"b","shape":[2],"datatype":"UINT64","data":[18446744073709551615,-0]},{"name":"c","shape":[2],"datatype":"INT8","data":[-128,127]},{"name":"d","shape":[1],"datatype":"UINT16","data":[65535]},{"name":"e","shape":[2],"datatype":"BOOL","data":[true,false]},{"name":"f","shape":[1],"datatype":"INT32","data":[-2147483648]}]}"#,
    ),
    (
        "scalar",
        r#"{"inputs":[{"name":"x","shape":[],"datatype":"UINT32","data":5},{"name":"y","shape":[],"datatype":"INT16","data":[5]}]}"#,
    ),
    (
        "empty",
        r#"{"inputs":[{"name":"x","shape":[2,0,3],"datatype":"FP32","data":[[],[]]},{"name":"y","shape":[0],"datatype":"BYTES","data":[]}],"outputs":[]}"#,
    ),
    ("unknown", r#" {"else":[{"a":[null,true,{}]},[[]],1.5E+7,"\\"],"inputs":[ ] } "#),
];

/// One that is asked for at the fixture's package.
const ASKED: &str = r#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}]}"#;

const TEXT: &str = r#"{"parameters":{"timeout":9000000},"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["a"]}]}"#;

/// All of a target.
pub fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    let named = |(name, text): &(&str, &str)| ((*name).to_owned(), text.as_bytes().to_vec());
    let requests = JSON.iter().map(named);
    let request = |text: &[u8]| request_json::parse(text, &LIMITS).expect("a seed is taken");
    match target {
        "oip_json" => requests.collect(),
        "oip_binary" => requests
            .map(|(name, text)| {
                let (json, rest) = binary(&request(&text));
                (name, with_length(&json, &rest))
            })
            .chain([("mixed".to_owned(), with_length(MIXED.as_bytes(), b"\x01\0\0\0\xff"))])
            .collect(),
        "oip_grpc" => requests
            .flat_map(|(name, text)| {
                let forms = [("raw", Elements::Raw), ("typed", Elements::Typed)];
                let written = |(form, elements)| {
                    message(&request(&text), elements).map(|message| (format!("{name}-{form}"), message))
                };
                forms.into_iter().filter_map(written).collect::<Vec<_>>()
            })
            .collect(),
        "control_socket" => control_socket(),
        "onnx_protobuf" => onnx_protobuf(),
        _ => Vec::new(),
    }
}

const MIXED: &str = r#"{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":5}},{"name":"y","shape":[1],"datatype":"UINT8","data":[1]}],"parameters":{"binary_data_output":true},"outputs":[{"name":"y"}]}"#;

fn with_length(json: &[u8], rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(json.len()).expect("a short seed").to_le_bytes();
    [&length, json, rest].concat()
}

/// A request of the control socket.
fn asking(path: &str, body: &[u8]) -> Vec<u8> {
    let place = PATHS.iter().position(|(_, known)| *known == path).expect("a path that is known");
    let letter = b'a' + u8::try_from(place).expect("few paths");
    [&[letter][..], &with_length(body, b"")].concat()
}

/// One block of deflate that is not packed: what is changed in it arrives.
fn deflated(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a short seed");
    [&[1], &length.to_le_bytes()[..], &(!length).to_le_bytes(), bytes].concat()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short seed").to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn call(name: &str, message: &[u8]) -> Vec<u8> {
    asking(&format!("/inference.GRPCInferenceService/{name}"), message)
}

fn control_socket() -> Vec<(String, Vec<u8>)> {
    let packages = Host::packages();
    let [_, _, second, other] = &packages[..] else { unreachable!("there are four") };
    let load = |package| {
        json!({
            "package": package, "directory": "/nowhere", "settings": {"threshold": "0.5"}, "purpose": "serve",
            "patience_ms": 60_000,
        })
    };
    let ask = |path, body: Value| asking(path, body.to_string().as_bytes());
    let infer = request_json::parse(ASKED.as_bytes(), &LIMITS).expect("a seed is taken");
    let (json, rest) = binary(&infer);
    let infer = framed(&message(&infer, Elements::Raw).expect("raw bytes have a form"));
    let swap = [
        ask(path::LOAD, load(second)),
        ask(path::ACTIVATE, json!(second)),
        asking("/v2/models/m/infer", ASKED.as_bytes()),
        asking("/v1/events?since={}", b"0"),
        ask(path::UNLOAD, json!(second)),
        asking(path::STATUS, b""),
    ];
    let ends = [
        ask(path::LOAD, load(other)),
        asking(path::READY, b""),
        ask(path::LISTENERS, json!({"socket": "/nowhere/s"})),
        asking(path::SHUTDOWN, b""),
        asking("/v2/models/m/infer", ASKED.as_bytes()),
    ];
    let repository = [
        asking("/v2/repository/index", br#"{"ready":true}"#),
        asking("/v2/repository/models/{}/load", b"n\n{\"parameters\":{}}"),
        asking("/v2/repository/models/{}/unload", b"t\n"),
        call("RepositoryIndex", &framed(b"\x10\x01")),
        call("RepositoryModelLoad", &framed(b"\x12\x01n")),
        call("RepositoryModelUnload", &framed(b"\x12\x01m")),
    ];
    let asked = [
        asking("/v2/models/t/versions/1/infer", TEXT.as_bytes()),
        asking("/v2/models/m/raw?{}", b"sequence_id=1&sequence_start=true\n\0\0\x80\x3f"),
        asking("/v2/models/m/raw?{}", b"\n\0\0\x80\x3f\0\0\0\xc0"),
        asking("/v2/models/t/infer", &deflated(TEXT.as_bytes())),
        asking("/v2/models/m/versions/1.0.0/infer", &with_length(&json, &rest)),
    ];
    let calls = [
        call("ModelInfer", &infer),
        call("ModelStreamInfer", &[&infer[..], &infer].concat()),
        call("ModelConfig", &framed(b"\x0a\x01m")),
        asking("/grpc.health.v1.Health/Check", &framed(b"")),
    ];
    let paths = [
        asking("/{}", b"v2/models/m/versions/1.0.0/ready"),
        asking("/{}", b"metrics"),
        asking("/v2/repository/models/{}/load", b"%ff\n"),
        asking("/v2/{}", b"models/%6d/raw\nabcd"),
    ];
    let all: [(&str, &[Vec<u8>]); 6] = [
        ("swap", &swap),
        ("ends", &ends),
        ("repository", &repository),
        ("asked", &asked),
        ("calls", &calls),
        ("paths", &paths),
    ];
    all.into_iter().map(|(name, requests)| (name.to_owned(), requests.concat())).collect()
}

/// Models that name external data, or none.
fn onnx_protobuf() -> Vec<(String, Vec<u8>)> {
    fn tensor(message: &mut Message, name: &str) {
        message.packed(1, [2].into_iter()).number(2, 1).bytes(8, "w").number(14, 1);
        for (key, value) in [("location", name), ("offset", "0"), ("length", "8")] {
            message.message(13, |entry| {
                entry.bytes(1, key).bytes(2, value);
            });
        }
    }
    fn identity(graph: &mut Message) {
        graph.message(1, |node| {
            node.bytes(1, "x").bytes(2, "y").bytes(4, "Identity");
        });
        graph.bytes(2, "g");
    }
    let model = |write: &dyn Fn(&mut Message)| {
        let mut model = Message::default();
        model.number(1, 8).message(7, identity);
        write(&mut model);
        model.message(8, |set| {
            set.number(2, 17);
        });
        model.into_bytes()
    };
    let graph = |write: &dyn Fn(&mut Message)| {
        model(&|model| {
            model.message(7, write);
        })
    };
    let attribute = |write: &dyn Fn(&mut Message)| {
        graph(&|graph| {
            graph.message(1, |node| {
                node.bytes(4, "If").message(5, write);
            });
        })
    };
    let sparse = |message: &mut Message| {
        message.message(1, |values| tensor(values, "values")).message(2, |places| tensor(places, "places"));
    };
    let all = [
        ("none", model(&|_| {})),
        (
            "initializers",
            graph(&|graph| {
                graph.message(5, |it| tensor(it, "model.data")).message(5, |it| tensor(it, "gr\u{fc}n/../a"));
            }),
        ),
        (
            "sparse",
            graph(&|graph| {
                graph.message(15, sparse);
            }),
        ),
        (
            "attributes",
            attribute(&|attribute| {
                attribute.message(5, |it| tensor(it, "a")).message(10, |it| tensor(it, "b"));
                attribute.message(22, sparse).message(23, sparse);
            }),
        ),
        (
            "graphs",
            attribute(&|attribute| {
                attribute.message(6, |graph| {
                    graph.message(5, |it| tensor(it, "then"));
                });
                attribute.message(11, |graph| {
                    identity(graph);
                    graph.message(5, |it| tensor(it, "else"));
                });
            }),
        ),
        (
            "functions",
            model(&|model| {
                model.message(25, |function| {
                    function.message(7, |node| {
                        node.message(5, |attribute| {
                            attribute.message(5, |it| tensor(it, "node"));
                        });
                    });
                    function.message(11, |attribute| {
                        attribute.message(5, |it| tensor(it, "default"));
                    });
                });
            }),
        ),
        (
            "training",
            model(&|model| {
                model.message(20, |training| {
                    training.message(1, |graph| {
                        graph.message(5, |it| tensor(it, "first"));
                    });
                    training.message(2, identity);
                });
            }),
        ),
    ];
    all.into_iter().map(|(name, model)| (name.to_owned(), model)).collect()
}
