//! Clients that only connect, that trickle, that do not read, and that do not speak HTTP: each is
//! bounded, none keeps others out, and every refusal is JSON.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::host::{Host, LONG, Package, tensor};

/// More than the host lets in at once.
const CROWD: usize = 1100;

/// Less than the host waits for a request's head or body: who is answered within this was let in
/// because another had to go, and not because another's time was up.
const SOON: Duration = Duration::from_secs(20);

fn ones() -> Value {
    json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]})
}

fn connect(host: &Host) -> TcpStream {
    let stream = TcpStream::connect(host.url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// Both ends of the crowd may be in this process's descriptors.
fn room_for_a_crowd() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = 4 * CROWD as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).unwrap();
    }
}

/// Connects a crowd that sends `first` each and nothing more; then asks as a new client does.
async fn a_crowd_keeps_nobody_out(first: &[u8]) {
    room_for_a_crowd();
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let mut stream = connect(&host);
            stream.write_all(first).unwrap();
            stream
        })
        .collect();
    for _ in 0..3 {
        // A client of its own each time: a new connection.
        let asked = async {
            let url = format!("{}/v2/models/identity/infer", host.url);
            let request = reqwest::Client::new().post(url).body(ones().to_string());
            request.send().await.unwrap().status().as_u16()
        };
        let status = tokio::time::timeout(SOON, asked).await.expect("a crowd keeps others out");
        assert_eq!(status, 200);
    }
    // Control is asked beside all that, and nobody of the crowd was answered.
    assert_eq!(host.status().await.packages[0].requests, 3);
    drop(crowd);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_keep_nobody_out() {
    a_crowd_keeps_nobody_out(b"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_trickle_keep_nobody_out() {
    a_crowd_keeps_nobody_out(b"GET /v2 HTTP/1.1\r\nHost: ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_http2_without_requests_keep_nobody_out() {
    a_crowd_keeps_nobody_out(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_trickle_keep_nobody_out() {
    let head = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{";
    a_crowd_keeps_nobody_out(head).await;
}

/// What the host answers to `sent`, up to the end of the connection.
fn answer_to(host: &Host, sent: &[u8]) -> String {
    let mut stream = connect(host);
    // The host may have refused before it has read all of it.
    let _ = stream.write_all(sent);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_refused_in_json() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    let check = |sent: &str, status: &str, says: &str| {
        let answer = answer_to(&host, sent.as_bytes());
        let start: String = sent.chars().take(60).collect();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{start}: {answer:?}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{start}: {head}");
        assert!(head.contains("content-type: application/json"), "{start}: {head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{start}: {head}");
        let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"));
        assert!(body["error"].as_str().unwrap().contains(says), "{start}: {body}");
    };
    let infer = "POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\n";
    check("nonsense\r\n\r\n", "400", "no HTTP/1.1 request");
    check("GET /v2 HTTP/1.1\r\nno colon\r\n\r\n", "400", "no HTTP/1.1 request");
    for length in ["-1", "1e3", "18446744073709551616", "1\r\nContent-Length: 2", "a"] {
        check(&format!("{infer}Content-Length: {length}\r\n\r\n"), "400", "Content-Length");
    }
    let long = "a".repeat(70_000);
    check(&format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), "431", "larger than 32 KiB");
    check(&format!("GET /v2 HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), "431", "larger than 32 KiB");
    check(&format!("GET /v2 HTTP/1.1\r\nX: {}", "a".repeat(3 << 20)), "431", "larger than 32 KiB");
    let many: String = (0..200).map(|number| format!("X-{number}: a\r\n")).collect();
    check(&format!("GET /v2 HTTP/1.1\r\nHost: a\r\n{many}\r\n"), "431", "more than 100 headers");
    let announced = format!("{infer}Connection: close\r\nContent-Length: 99999999999\r\n\r\n");
    check(&announced, "413", "larger than the");
    // A later request on the same connection too.
    let mut stream = connect(&host);
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    stream.write_all(b"nonsense\r\n\r\n").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("HTTP/1.1 400 ") && rest.contains("no HTTP/1.1 request"), "{rest}");
    assert_eq!(host.post("/v2/models/identity/infer", ones()).await.0, 200);
}
