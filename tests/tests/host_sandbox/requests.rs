//! Guests that mix up requests, or lie about them: whose tensors an answer is made of, whose a log line
//! is, and what happens after the answer.

use std::sync::{Arc, Mutex};

use selvedge_host::failure::PredictError;
use selvedge_host::runtime::Loaded;
use selvedge_host::tensor::{NamedTensor, Tensor};
use selvedge_package::tensor::Datatype;
use selvedge_tests::counts;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::fixture::{Package, ask, hostile, small};
use crate::hostile::check_neighbour;

pub fn named(name: &str, bytes: [u8; 3]) -> Vec<NamedTensor> {
    vec![NamedTensor::new(name, Tensor::fixed(Datatype::Uint8, [3], bytes.to_vec()).unwrap())]
}

pub fn stale(isolation: &str) -> Arc<Loaded> {
    let of = &[("x", "UINT8", &[-1_i64][..])];
    let model = selvedge_tests::onnx_writer::identity_of(
        selvedge_tests::onnx_writer::Element::Uint8,
        &[selvedge_tests::onnx_writer::Extent::Named("N")],
    );
    let package = Package::new(model, of, of).component(hostile("stale"));
    package.module("concurrency", json!(1)).module("isolation", json!(isolation)).write().open().unwrap()
}

pub fn bytes(answer: &[NamedTensor]) -> &[u8] {
    answer[0].tensor.as_fixed().unwrap()
}

#[test]
fn tensors_of_another_request_are_gone() {
    let gone = "earlier request";
    for (how, part) in [("handle", "its output `x`"), ("read", gone), ("run", gone), ("length", gone)] {
        let loaded = stale("package");
        assert_eq!(bytes(&ask(&loaded, named("first", [7, 7, 7])).unwrap()), [7, 7, 7]);
        let answer = ask(&loaded, named(how, [1, 2, 3]));
        let why = match &answer {
            Err(PredictError::Module(why)) => why.clone(),
            // A length cannot be an error.
            Err(PredictError::Trap(why)) if how == "length" => why.clone(),
            other => panic!("{how}: {other:?}"),
        };
        assert!(why.contains(part) && why.contains(gone), "{how}: {why}");
        counts::say(&format!("hostile guest stale ({how}): request failed: it belongs to an earlier one"));
    }
    check_neighbour();
}

#[test]
fn a_fresh_instance_has_nothing_of_another_request() {
    // What a module copies into its own memory it has, as long as its instance lives.
    let kept = stale("package");
    ask(&kept, named("first", [7, 7, 7])).unwrap();
    assert_eq!(bytes(&ask(&kept, named("copy", [1, 2, 3])).unwrap()), [7, 7, 7]);
    let fresh = stale("request");
    ask(&fresh, named("first", [7, 7, 7])).unwrap();
    assert_eq!(bytes(&ask(&fresh, named("copy", [1, 2, 3])).unwrap()), [1, 2, 3]);
    counts::say("hostile guest stale (copy): answered with its own request under `isolation = \"request\"`");
}

#[test]
fn a_trap_after_the_answer_fails_the_request_and_ends_the_instance() {
    let loaded = Package::guest(hostile("trap-in-drop")).write().open().unwrap();
    for made in 1..3 {
        match ask(&loaded, small()) {
            Err(PredictError::Trap(why)) => assert!(why.contains("unreachable"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!((loaded.instances_made(), loaded.idle_instances()), (made, 0));
    }
    check_neighbour();
    counts::say("hostile guest trap-in-drop: request failed: trap; its instance thrown away");
}

/// What the host's log would have written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What is logged while a package is asked.
fn logged(loaded: &Loaded) -> String {
    let written = Written::default();
    let log = tracing_subscriber::fmt().with_writer(written.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(log, || {
        let one_thread = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // On this thread, where the subscriber is.
        selvedge_host::session::blocking::allow(|| {
            one_thread.block_on(loaded.predict(small(), crate::fixture::LONG)).unwrap();
        });
    });
    String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn a_log_flood_is_dropped_and_every_request_answered() {
    let loaded = Package::guest(hostile("log-flood")).write().open().unwrap();
    for _ in 0..2 {
        let text = logged(&loaded);
        let lines = text.lines().filter(|line| line.contains("flood flood")).count();
        assert!((1..=200).contains(&lines), "{lines}");
        // One line says how many there are not.
        assert_eq!(text.lines().count(), lines + 1);
        assert!(text.contains(&format!("dropped={}", 100_000 - lines)), "{}", text.lines().last().unwrap());
    }
    check_neighbour();
    counts::say("hostile guest log-flood: answered: all but at most 200 of its 100000 lines dropped");
}

#[test]
fn a_forged_log_line_is_one_line_of_its_package() {
    let text = logged(&Package::guest(hostile("forged-log")).write().open().unwrap());
    assert_eq!(text.matches("the device is on fire").count(), 10, "{text}");
    for line in text.split(|letter: char| letter == '\n' || (letter.is_control() && letter != '\t')) {
        let forged = line.contains("on fire");
        assert!(!forged || (line.contains("module") && line.contains("package=\"tiny\"")), "{line:?}");
    }
    let harmful = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{2028}';
    assert!(!text.contains(harmful), "{text:?}");
    counts::say("hostile guest forged-log: 10 forged lines are 10 lines of its package");
}
