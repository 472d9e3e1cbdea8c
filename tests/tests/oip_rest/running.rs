//! A host over its life: packages that are refused, swaps, guests and models that do not stop, the
//! sockets that it inherits, and its end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use selvedge_control::client::Client;
use selvedge_control::{PackageState, Reason};
use selvedge_tests::onnx_writer::{self, Element, Extent};
use selvedge_tests::programs::{program, set_up};
use selvedge_tests::wait;
use serde_json::{Value, json};

use crate::host::{Host, LONG, Package, Spec, serve, tensor};

fn ones() -> Value {
    json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]})
}

/// A package whose guest never answers, with a deadline in milliseconds.
fn spinning(deadline: u32) -> Package {
    let guest = std::fs::read(set_up("modules/hostile/spin.wasm")).unwrap();
    Package::identity("spin", 1)
        .module("component", json!("spin.wasm"))
        .module("deadline-ms", json!(deadline))
        .file("spin.wasm", guest)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_what_was_signed_is_not_loaded() {
    let host = Host::start().await;
    let written = Package::identity("identity", 1).write();
    let model = written.directory.path().join("model.onnx");
    let mut bytes = std::fs::read(&model).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&model, &bytes).unwrap();
    let error = host.refusal(&written).await;
    assert_eq!(error.reason, Reason::Corrupt, "{}", error.error);
    let error = host.refusal(&Package::identity("identity", 1).file("case.json", "{}").write()).await;
    assert_eq!(error.reason, Reason::BadCase, "{}", error.error);
    assert!(error.error.contains("`case.json`"), "{}", error.error);
    assert!(host.status().await.packages.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_case_says_which_element_and_stays_unrouted() {
    let host = Host::start().await;
    let wrong = json!({"name": "golden",
        "inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 1, 1, 1, 1, 1]))],
        "outputs": [tensor(("y", "FP32"), &[2, 3], json!([1, 1, 1, 1, 1.5, 1]))]});
    let written = Package::identity("identity", 1).file("case.json", wrong.to_string()).write();
    let loaded = host.control.load(&written.load(), LONG).await.unwrap();
    let failure = loaded.first_failure().unwrap();
    assert_eq!(failure.case, "golden");
    let text = failure.failure.as_deref().unwrap();
    assert!(text.starts_with("output `y`, element 4 (at [1, 1]): expected 1.5, got 1.0"), "{text}");
    assert_eq!(host.get("/v2/models/identity").await.0, 404);
    let status = host.control.unload(&written.package, LONG).await.unwrap();
    assert!(status.packages.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_versions_follow_one_another() {
    let host = std::sync::Arc::new(Host::start().await);
    host.put(&Package::identity("identity", 1).write()).await;
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asking: Vec<_> = (0..3)
        .map(|_| {
            let (host, done) = (host.clone(), done.clone());
            tokio::spawn(async move {
                let mut answered = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let (status, answer) = host.post("/v2/models/identity/infer", ones()).await;
                    assert_eq!(status, 200, "{answer}");
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for release in 2..=8 {
        host.put(&Package::identity("identity", release).write()).await;
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut answered = 0;
    for task in asking {
        answered += task.await.unwrap();
    }
    assert!(answered > 0);
    let last = loop {
        let packages = host.status().await.packages;
        if packages.len() == 1 {
            break packages;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((last[0].release, last[0].state), (8, PackageState::Serving));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_swap_each_version_is_asked_by_name_until_the_old_one_is_gone() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    // A request that is on its way to the old one holds it.
    let body = ones().to_string();
    let mut held = begin(&host, "/v2/models/identity/infer", body.len());
    let second = Package::identity("identity", 2).write();
    assert!(host.control.load(&second.load(), LONG).await.unwrap().accepted());
    let version = async |path: &str| {
        let (status, answer) = host.post(&format!("/v2/models/identity{path}/infer"), ones()).await;
        (status, answer["model_version"].as_str().unwrap_or_default().to_owned())
    };
    // What is staged does not answer, not even who names it.
    assert_eq!(version("").await, (200, "1.0.0".to_owned()));
    assert_eq!(version("/versions/2.0.0").await.0, 404);
    host.control.activate(&second.package, LONG).await.unwrap();
    for _ in 0..3 {
        assert_eq!(version("").await, (200, "2.0.0".to_owned()));
        for (path, answers) in [("1.0.0", "1.0.0"), ("1", "1.0.0"), ("2.0.0", "2.0.0"), ("2", "2.0.0")] {
            assert_eq!(version(&format!("/versions/{path}")).await, (200, answers.to_owned()));
        }
    }
    let versions = host.get("/v2/models/identity").await.1["versions"].clone();
    assert_eq!(versions, json!(["2.0.0", "1.0.0"]));
    held.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"1.0.0\""), "{answer}");
    while host.status().await.packages.len() > 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(version("/versions/1.0.0").await.0, 404);
    assert_eq!(version("").await, (200, "2.0.0".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_does_not_stop_costs_its_own_request_only() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    let written = spinning(2000).write();
    let loaded = host.control.load(&written.load(), LONG).await.unwrap();
    assert!(!loaded.accepted(), "its case cannot pass");
    host.control.activate(&written.package, LONG).await.unwrap();
    let (status, answer) = host.post("/v2/models/spin/infer", ones()).await;
    assert_eq!(status, 504, "{answer}");
    assert_eq!(host.post("/v2/models/identity/infer", ones()).await.0, 200);
    let packages = host.status().await.packages;
    let spin = packages.iter().find(|package| package.package == written.package).unwrap();
    assert_eq!((spin.requests, spin.failures), (0, 1));
}

/// A package that counts as far as it is told, with a deadline in milliseconds.
pub fn counting(deadline: u32) -> Package {
    let scalar = |name, value: i64| tensor((name, "INT64"), &[], json!([value]));
    let case = json!({"name": "three", "inputs": [scalar("trips", 3)], "outputs": [scalar("count", 3)]});
    let specs: (&[Spec], &[Spec]) = (&[("trips", "INT64", &[])], &[("count", "INT64", &[])]);
    Package::new("count", 1, onnx_writer::count_to(), specs, case).module("deadline-ms", json!(deadline))
}

/// Begins a request; returns once the host waits for its body. Its connection ends with the answer.
fn begin(host: &Host, path: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(host.url.trim_start_matches("http://")).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n",
    )
    .unwrap();
    let mut answer = [0; 25];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// Asks `count` for more than it can do in time; returns once the host works on the request.
pub fn ask_without_end(host: &Host) -> TcpStream {
    let body = json!({"inputs": [tensor(("trips", "INT64"), &[], json!([i64::MAX]))]}).to_string();
    let mut stream = begin(host, "/v2/models/count/infer", body.len());
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_signal_answers_what_is_on_its_way() {
    let mut host = Host::start().await;
    host.put(&counting(1500).write()).await;
    let mut waiting = ask_without_end(&host);
    host.signal(Signal::TERM);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 504 "), "answered, not cut off: {answer}");
    assert_eq!(host.ended().code(), Some(0), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends() {
    let mut host = Host::start().await;
    host.put(&counting(60_000).write()).await;
    let _waiting = ask_without_end(&host);
    host.signal(Signal::TERM);
    wait::until("the first signal to be noticed", || {
        if host.log().contains("a second signal ends at once") { Ok(()) } else { Err("not yet") }
    });
    host.signal(Signal::TERM);
    assert_eq!(host.ended().code(), Some(130), "{}", host.log());
}

/// `y = shape(m · m)` with `m` zeros of the shape `x`: an operator as slow as the shape is large.
pub fn slow_operator() -> Vec<u8> {
    let (x, y) = (
        onnx_writer::value("x", Element::Int64, &[2.into()]),
        onnx_writer::value("y", Element::Int64, &[Extent::Fixed(2)]),
    );
    let nodes = [
        onnx_writer::node("ConstantOfShape", &["x"], &["m"]),
        onnx_writer::node("MatMul", &["m", "m"], &["product"]),
        onnx_writer::node("Shape", &["product"], &["y"]),
    ];
    onnx_writer::model(onnx_writer::graph(nodes, [], [x], [y]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_stopped_ends_the_process_and_is_named() {
    let mut host = Host::start().await;
    let small = |name| tensor((name, "INT64"), &[2], json!([4, 4]));
    let case = json!({"name": "small", "inputs": [small("x")], "outputs": [small("y")]});
    let specs: (&[Spec], &[Spec]) = (&[("x", "INT64", &[2])], &[("y", "INT64", &[2])]);
    let written =
        Package::new("slow", 1, slow_operator(), specs, case).module("deadline-ms", json!(3000)).write();
    host.put(&written).await;
    let events = tokio::spawn({
        let control = host.control.clone();
        async move { control.events(0, LONG).await }
    });
    let url = format!("{}/v2/models/slow/infer", host.url);
    let request = json!({"inputs": [tensor(("x", "INT64"), &[2], json!([9000, 9000]))]}).to_string();
    // Whether this is answered with 504 or cut off by the end is a race. The deadline is long enough
    // for `m` to be made: between two operators a run can be stopped.
    drop(reqwest::Client::new().post(url).body(request).send().await);
    assert_eq!(host.ended().code(), Some(86), "{}", host.log());
    let events = events.await.unwrap().unwrap();
    assert!(events.events[0].fatal && events.events[0].package == written.package);
    let record = std::fs::read(host.directory.path().join("data/fatal.json")).unwrap();
    let record: selvedge_control::Event = serde_json::from_slice(&record).unwrap();
    assert_eq!(record, events.events[0]);
    assert!(host.log().contains("slow"), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_inherited_by_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("inherited.sock");
    let control = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let http = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap();
    rustix::io::fcntl_setfd(&http, rustix::io::FdFlags::empty()).unwrap();
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::empty()).unwrap();
    // They keep their numbers; what lies between has other names, as when a service passes more.
    let last = http.as_raw_fd().max(control.as_raw_fd());
    let names: Vec<&str> = (3..=last)
        .map(|descriptor| match descriptor {
            _ if descriptor == http.as_raw_fd() => "http",
            _ if descriptor == control.as_raw_fd() => "control",
            _ => "unknown",
        })
        .collect();
    let inner = serve(&directory);
    let script = "LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    let mut host = Host::watch(directory, Client::new(socket), &mut command).await;
    assert_eq!(host.status().await.http, address.to_string());
    assert_eq!(host.get("/v2/health/live").await, (200, json!({"live": true})));
    host.control.shutdown(LONG).await.unwrap();
    assert_eq!(host.ended().code(), Some(0), "{}", host.log());
    // The listener lives on with the one who passed it: a client is not refused, it waits.
    assert!(std::net::TcpStream::connect(address).is_ok());
}

#[test]
fn an_address_that_others_reach_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = serve(&directory);
    command.args(["--listen", "0.0.0.0:0", "--control"]).arg(directory.path().join("control.sock"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("loopback"), "{text}");
    let version = Command::new(program("selvedge-host")).arg("--version").output().unwrap();
    assert!(version.status.success());
}
