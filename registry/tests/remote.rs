//! Log lines and inference through the registry and MQTT: what goes both ways, and what is bounded.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use reqwest::{Method, Response};
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{COMMANDS, Enrolled, INFER};
use selvedge_protocol::remote::{
    Ask, Command, CommandResult, Endpoint, InferAnswer, InferRequest, LogLine, LogLines, Outcome,
};
use selvedge_protocol::signed::{PrivateKey, Purpose};
use selvedge_protocol::topic::Kind;
use serde_json::{Value, json};
use support::device::Device;
use support::{Registry, wait_for};

const TARGET: &str = "/v1/workspaces/default/targets/edge-1";

/// An online device that can be asked.
async fn online(registry: &Registry, name: &str) -> Device {
    let mut device = Device::connect(&registry.add_target(name).await).await;
    device.capabilities = vec![COMMANDS.to_owned(), INFER.to_owned()];
    assert_eq!(device.enrol().await, Enrolled::Accepted);
    device.birth(b"n", 65_536);
    wait_for("its birth", async || (registry.target(name).await["online"] == true).then_some(())).await;
    device
}

async fn command(device: &mut Device) -> Command {
    match device.question(Kind::Command).await {
        Body::Command(command) => command,
        other => panic!("{other:?}"),
    }
}

async fn question(device: &mut Device) -> InferRequest {
    match device.question(Kind::InferRequest).await {
        Body::InferRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

fn lines(text: &str) -> Outcome {
    let line = LogLine {
        number: 7,
        at_ms: 1,
        source: "agent".to_owned(),
        level: "info".to_owned(),
        text: text.to_owned(),
    };
    Outcome::Logs(LogLines { last: 7, epoch: 1, lines: vec![line] })
}

fn answer(id: &str, status: u16, body: &[u8]) -> InferAnswer {
    InferAnswer {
        id: id.to_owned(),
        status,
        content_type: Some("application/json".to_owned()),
        header_length: None,
        body: body.to_vec(),
    }
}

fn infer(registry: &Registry, path: &str, body: Vec<u8>) -> tokio::task::JoinHandle<Response> {
    let request = registry.request(Method::POST, &format!("{TARGET}/v2/models/{path}")).body(body);
    tokio::spawn(async move { request.send().await.unwrap() })
}

async fn reason(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let value: Value = response.json().await.unwrap();
    (status, value["reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn log_lines_come_from_the_device_that_was_asked() {
    let registry = Registry::start().await;
    let mut edge = online(&registry, "edge-1").await;
    let mut other = online(&registry, "edge-2").await;
    let asked = registry.request(Method::GET, &format!("{TARGET}/logs?lines=5&after=3"));
    let asked = tokio::spawn(async move { asked.send().await.unwrap() });
    let Command { id, within_ms, ask, nonce } = command(&mut edge).await;
    assert_eq!(nonce, b"n");
    assert_eq!(ask, Ask::Logs { after: Some(3), lines: 5 });
    assert!((1..=30_000).contains(&within_ms));
    // Another device, another id, and another kind of answer do not count.
    other.send_sealed(
        Kind::CommandResult,
        Purpose::Answer,
        Body::CommandResult(CommandResult { id: id.clone(), outcome: lines("forged") }),
    );
    edge.send_sealed(
        Kind::CommandResult,
        Purpose::Answer,
        Body::CommandResult(CommandResult { id: "0".into(), outcome: lines("other") }),
    );
    edge.send_sealed(Kind::InferAnswer, Purpose::Answer, Body::InferAnswer(answer(&id, 200, b"{}")));
    assert_eq!(other.enrol().await, Enrolled::Accepted);
    edge.send_sealed(
        Kind::CommandResult,
        Purpose::Answer,
        Body::CommandResult(CommandResult { id: id.clone(), outcome: lines("own") }),
    );
    let value: Value = asked.await.unwrap().json().await.unwrap();
    assert_eq!((&value["last"], &value["lines"][0]["text"]), (&json!(7), &json!("own")));
    // Late and twice: nobody is hurt.
    edge.send_sealed(
        Kind::CommandResult,
        Purpose::Answer,
        Body::CommandResult(CommandResult { id, outcome: lines("twice") }),
    );

    let asked = registry.request(Method::GET, &format!("{TARGET}/logs"));
    let asked = tokio::spawn(async move { asked.send().await.unwrap() });
    let Command { id, ask, .. } = command(&mut edge).await;
    assert_eq!(ask, Ask::Logs { after: None, lines: 100 });
    let outcome = Outcome::Refused { reason: "busy".to_owned(), what: "too many questions".to_owned() };
    edge.send_sealed(
        Kind::CommandResult,
        Purpose::Answer,
        Body::CommandResult(CommandResult { id, outcome }),
    );
    assert_eq!(reason(asked.await.unwrap()).await, (502, "refused".to_owned()));
}

#[tokio::test]
async fn only_what_the_device_has_sealed_is_an_answer() {
    let registry = Registry::start().await;
    let mut edge = online(&registry, "edge-1").await;
    let asked = registry.request(Method::GET, &format!("{TARGET}/logs"));
    let asked = tokio::spawn(async move { asked.send().await.unwrap() });
    let Command { id, .. } = command(&mut edge).await;
    let result = |text: &str| Body::CommandResult(CommandResult { id: id.clone(), outcome: lines(text) });
    // Open; sealed by another key; sealed for another purpose; changed on the way; another device's.
    edge.send(Kind::CommandResult, result("open"));
    let own = std::mem::replace(&mut edge.key, PrivateKey::generate().unwrap().0);
    edge.send_sealed(Kind::CommandResult, Purpose::Answer, result("another key"));
    edge.key = own;
    edge.send_sealed(Kind::CommandResult, Purpose::Report, result("another purpose"));
    let Body::Signed(mut changed) = edge.sealed(Purpose::Answer, result("changed")) else { panic!() };
    *changed.0.last_mut().unwrap() ^= 1;
    edge.send(Kind::CommandResult, Body::Signed(changed));
    let mut other = online(&registry, "edge-2").await;
    let theirs = other.sealed(Purpose::Answer, result("theirs"));
    edge.send(Kind::CommandResult, theirs);
    edge.send_sealed(Kind::CommandResult, Purpose::Answer, result("own"));
    let value: Value = asked.await.unwrap().json().await.unwrap();
    assert_eq!(value["lines"][0]["text"], "own");
    assert_eq!(other.enrol().await, Enrolled::Accepted);
}

#[tokio::test]
async fn inference_goes_through_as_it_is() {
    let registry = Registry::start().await;
    let mut edge = online(&registry, "edge-1").await;
    let body: Vec<u8> = (0..=255).collect();
    let request = registry
        .request(
            Method::POST,
            &format!("{TARGET}/v2/models/file-type/versions/1.0.0/infer?deadline_ms=600000"),
        )
        .header("content-type", "application/octet-stream")
        .header("inference-header-content-length", "17")
        .body(body.clone());
    let asked = tokio::spawn(async move { request.send().await.unwrap() });
    let request = question(&mut edge).await;
    assert_eq!(
        request,
        InferRequest {
            nonce: b"n".to_vec(),
            id: request.id.clone(),
            within_ms: 600_000,
            model: "file-type".to_owned(),
            version: Some("1.0.0".to_owned()),
            endpoint: Endpoint::Infer,
            content_type: Some("application/octet-stream".to_owned()),
            header_length: Some(17),
            body,
        }
    );
    let back = InferAnswer {
        content_type: Some("application/octet-stream".to_owned()),
        header_length: Some(3),
        ..answer(&request.id, 418, &[0, 159, 146, 150])
    };
    edge.send_sealed(Kind::InferAnswer, Purpose::Answer, Body::InferAnswer(back));
    let response = asked.await.unwrap();
    assert_eq!(response.status(), 418);
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    assert_eq!(response.headers()["inference-header-content-length"], "3");
    assert_eq!(response.bytes().await.unwrap().as_ref(), [0, 159, 146, 150]);

    for (path, method, endpoint, version) in [
        ("file-type/raw", Method::POST, Endpoint::Raw, None),
        ("file-type", Method::GET, Endpoint::Metadata, None),
        ("file-type/versions/2.0.0", Method::GET, Endpoint::Metadata, Some("2.0.0")),
        ("file-type/ready", Method::GET, Endpoint::Metadata, None),
    ] {
        let request = registry.request(method, &format!("{TARGET}/v2/models/{path}"));
        let asked = tokio::spawn(async move { request.send().await.unwrap() });
        let request = question(&mut edge).await;
        assert_eq!(
            (request.endpoint, request.version.as_deref(), request.within_ms),
            (endpoint, version, 10_000)
        );
        edge.send_sealed(
            Kind::InferAnswer,
            Purpose::Answer,
            Body::InferAnswer(answer(&request.id, 200, b"{}")),
        );
        assert_eq!(asked.await.unwrap().status(), 200, "{path}");
    }
    for path in ["v2", "v2/health/live", "v2/health/ready"] {
        assert_eq!(registry.get(&format!("{TARGET}/{path}")).await.0, 200, "{path}");
    }
    // What HTTP cannot carry is not handed on.
    for (status, content_type) in [(99, "a/b"), (600, "a/b"), (101, "a/b"), (200, "a\r\nb: c")] {
        let asked = infer(&registry, "file-type/raw", Vec::new());
        let request = question(&mut edge).await;
        let back =
            InferAnswer { content_type: Some(content_type.to_owned()), ..answer(&request.id, status, b"") };
        edge.send_sealed(Kind::InferAnswer, Purpose::Answer, Body::InferAnswer(back));
        assert_eq!(reason(asked.await.unwrap()).await, (502, "bad-answer".to_owned()), "{status}");
    }
}

#[tokio::test]
async fn over_mosquitto_too() {
    let registry = Registry::start_over_mosquitto().await;
    let mut edge = online(&registry, "edge-1").await;
    let body = vec![7; (128 << 10) - 1024];
    let asked = infer(&registry, "m/raw", body.clone());
    let request = question(&mut edge).await;
    assert_eq!(request.body, body);
    edge.send_sealed(Kind::InferAnswer, Purpose::Answer, Body::InferAnswer(answer(&request.id, 200, &body)));
    assert_eq!(asked.await.unwrap().bytes().await.unwrap(), body);
}

#[tokio::test]
async fn who_cannot_be_asked_is_told_at_once() {
    let registry = Registry::start().await;
    registry.add_target("edge-1").await;
    let check = async |path: &str, status: u16, reason: &str| {
        let (got, value) = registry.get(&format!("{TARGET}/{path}")).await;
        assert_eq!((got.as_u16(), value["reason"].as_str().unwrap()), (status, reason), "{path}: {value}");
    };
    for path in ["logs", "v2/models/m", "v2/health/ready"] {
        check(path, 503, "offline").await;
    }
    for (path, status, reason) in [
        ("logs?lines=0", 400, "malformed"),
        ("logs?lines=1001", 400, "malformed"),
        ("logs?line=1", 400, "malformed"),
        ("v2/models/UPPER", 400, "malformed"),
        ("v2/models/m?deadline_ms=0", 400, "malformed"),
        ("v2/models/m?deadline_ms=600001", 400, "malformed"),
        ("v2/models/m/versions/%2e%2e%2f", 400, "malformed"),
        ("v2/nothing", 404, "no-route"),
    ] {
        check(path, status, reason).await;
    }
    assert_eq!(registry.get("/v1/workspaces/default/targets/nobody/logs").await.1["reason"], "no-target");
    // An agent that does not know how.
    let mut old = Device::connect(&registry.add_target("old").await).await;
    assert_eq!(old.enrol().await, Enrolled::Accepted);
    old.birth(b"n", 65_536);
    wait_for("its birth", async || (registry.target("old").await["online"] == true).then_some(())).await;
    for path in ["logs", "v2/models/m"] {
        let (status, value) = registry.get(&format!("/v1/workspaces/default/targets/old/{path}")).await;
        assert_eq!((status.as_u16(), value["reason"].as_str().unwrap()), (422, "unsupported"));
    }
}

#[tokio::test]
async fn questions_are_bounded_in_size_time_and_number() {
    let registry = Registry::start().await;
    let mut edge = online(&registry, "edge-1").await;
    // A device takes packets of 128 KiB, if it does not say otherwise.
    let largest = (128 << 10) - 1024;
    let refused = infer(&registry, "m/raw", vec![0; largest + 1]).await.unwrap();
    assert_eq!(reason(refused).await, (413, "too-large".to_owned()));
    let asked = infer(&registry, "m/raw", vec![7; largest]);
    let request = question(&mut edge).await;
    assert_eq!(request.body.len(), largest);
    edge.send_sealed(
        Kind::InferAnswer,
        Purpose::Answer,
        Body::InferAnswer(answer(&request.id, 200, &request.body)),
    );
    assert_eq!(asked.await.unwrap().bytes().await.unwrap().len(), largest);
    edge.capabilities.push("packet:1000".to_owned());
    edge.birth(b"m", 65_536);
    wait_for("a smaller limit", async || {
        let tried = infer(&registry, "m/raw?deadline_ms=1", vec![0; 1000]).await.unwrap();
        (tried.status() == 413).then_some(())
    })
    .await;
    edge.capabilities.pop();
    edge.birth(b"o", 65_536);
    wait_for("the limit of before", async || {
        let tried = infer(&registry, "m/raw?deadline_ms=1", vec![0; 1000]).await.unwrap();
        (tried.status() == 504).then_some(())
    })
    .await;
    // Nobody answers.
    let silent = infer(&registry, "m/raw?deadline_ms=50", Vec::new()).await.unwrap();
    assert_eq!(reason(silent).await, (504, "deadline".to_owned()));
    // Eight wait; the ninth is refused, until those who wait give up.
    let mut waiting: Vec<_> =
        (0..8).map(|_| infer(&registry, "m/raw?deadline_ms=600000", Vec::new())).collect();
    let mut arrived = 0;
    while arrived < 8 {
        arrived += usize::from(question(&mut edge).await.within_ms == 600_000);
    }
    assert_eq!(
        reason(infer(&registry, "m/raw", Vec::new()).await.unwrap()).await,
        (429, "too-many".to_owned())
    );
    assert_eq!(registry.get(&format!("{TARGET}/logs")).await.1["reason"], "too-many");
    // Others are not affected.
    let mut other = online(&registry, "edge-2").await;
    let request = registry.request(Method::GET, "/v1/workspaces/default/targets/edge-2/v2/models/m");
    let asked = tokio::spawn(async move { request.send().await.unwrap() });
    let request = question(&mut other).await;
    other.send_sealed(
        Kind::InferAnswer,
        Purpose::Answer,
        Body::InferAnswer(answer(&request.id, 404, b"{\"error\": \"none\"}")),
    );
    assert_eq!(asked.await.unwrap().status(), 404);
    waiting.drain(..).for_each(|asked| asked.abort());
    wait_for("a free place", async || {
        let tried = infer(&registry, "m/raw?deadline_ms=1", Vec::new()).await.unwrap();
        (tried.status() == 504).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_registry_without_a_broker_says_so() {
    let mut registry = Registry::start().await;
    let edge = online(&registry, "edge-1").await;
    drop(edge);
    let broker = std::mem::replace(&mut registry.broker.running, support::Running::start(&["--version"]));
    broker.kill();
    wait_for("an answer without a broker", async || {
        let response = infer(&registry, "m/raw?deadline_ms=1", Vec::new()).await.unwrap();
        (reason(response).await == (503, "offline".to_owned())).then_some(())
    })
    .await;
}
