//! The REST interface: who may speak, what is refused, and targets from their making to their end.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use reqwest::Method;
use selvedge_package::Digest;
use serde_json::{Value, json};
use support::{Registry, Running};

const TARGETS: &str = "/v1/workspaces/default/targets";

#[tokio::test]
async fn nothing_is_answered_without_the_token() {
    let registry = Registry::start().await;
    let client = reqwest::Client::new();
    let health: Value =
        client.get(format!("{}/v1/health", registry.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(health["status"], "ok");
    let blob = format!("/v1/blobs/{}", Digest::of(b""));
    for path in [TARGETS, "/v1/trust/image", "/v1/nothing", "/", &blob] {
        let url = format!("{}{path}", registry.url);
        let silent = client.get(&url).send().await.unwrap();
        assert_eq!(silent.status(), 401, "{path}");
        assert_eq!(silent.json::<Value>().await.unwrap()["reason"], "no-token");
        let wrong = client.get(&url).bearer_auth("0".repeat(64)).send().await.unwrap();
        assert_eq!(wrong.status(), 401, "{path}");
        assert_eq!(wrong.json::<Value>().await.unwrap()["reason"], "wrong-token");
    }
    let file = registry.path("registry/token");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_target_lives_and_ends() {
    let mut registry = Registry::start().await;
    let body = json!({"name": "edge-1", "kind": "local", "labels": {"site": "oslo"}});
    let (status, made) = registry.post(TARGETS, body.clone()).await;
    assert_eq!(status, 201, "{made}");
    let enrolment = &made["enrolment"];
    assert_eq!(enrolment["format"], 1);
    assert_eq!(enrolment["device"], "edge-1");
    assert_eq!(enrolment["kind"], "local");
    assert_eq!(enrolment["broker"], registry.broker.url());
    for (field, file) in [("image_root", "image"), ("director_root", "director")] {
        let root = std::fs::read_to_string(registry.path(&format!("keys/roots/{file}.root.json"))).unwrap();
        assert_eq!(enrolment[field], root);
    }
    registry.refused(TARGETS, body, 409, "target-exists").await;
    let shown = registry.target("edge-1").await;
    assert_eq!(shown["labels"], json!({"site": "oslo"}));
    assert_eq!(shown["enrolled"], false);
    assert_eq!(shown["health"], "waiting-for-enrolment");
    assert_eq!(shown["online"], false);
    assert_eq!(shown["reported"], Value::Null);
    assert_eq!(shown["events"], json!([]));

    let path = format!("{TARGETS}/edge-1");
    let patch = registry.request(Method::PATCH, &path).json(&json!({"labels": {"site": "bergen"}}));
    let (status, patched) = registry.send(patch).await;
    assert_eq!((status.as_u16(), &patched["labels"]["site"]), (200, &json!("bergen")));

    // What was said is still there after a restart.
    registry.stop();
    registry.run().await;
    let (_, list) = registry.get(TARGETS).await;
    assert_eq!(list["items"][0]["labels"]["site"], "bergen");

    let (status, _) = registry.send(registry.request(Method::DELETE, &path)).await;
    assert_eq!(status, 204);
    let (status, gone) = registry.get(&path).await;
    assert_eq!((status.as_u16(), gone["reason"].as_str()), (404, Some("no-target")));
    assert_eq!(registry.get(TARGETS).await.1, json!({"items": []}));
}

#[tokio::test]
async fn bad_requests_are_refused_for_their_own_reason() {
    let registry = Registry::start().await;
    for (body, status, reason) in [
        (json!({"name": "../x"}), 400, "malformed"),
        (json!({"name": "a", "kind": "cluster"}), 422, "unknown-kind"),
        (json!({"name": "a", "lables": {}}), 400, "malformed"),
        (json!({"name": "a", "labels": {"bad key": "x"}}), 400, "malformed"),
        (json!({"name": "a", "labels": {"k": "line\nbreak"}}), 400, "malformed"),
        (json!([]), 400, "malformed"),
        (json!({"name": "a", "labels": {"k": "x".repeat(70_000)}}), 413, "too-large"),
    ] {
        registry.refused(TARGETS, body, status, reason).await;
    }
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for (body, status) in
        [("{", 400), ("", 400), ("\u{0}", 400), (deep.as_str(), 413), (&deep[..60_000], 400)]
    {
        let request = registry.request(Method::POST, TARGETS).body(body.to_owned());
        assert_eq!(registry.send(request).await.0, status);
    }
    let bracketed = "/v1/workspaces/default/targets/%FF%00";
    for (path, status, reason) in [
        ("/v1/workspaces/other/targets", 404, "no-workspace"),
        ("/v1/workspaces/default/targets/nobody", 404, "no-target"),
        ("/v1/workspaces/default/deployments?ended=perhaps", 400, "malformed"),
        ("/v1/workspaces/default/deployments?other=1", 400, "malformed"),
        ("/v1/trust/image/1.targets.json", 404, "no-metadata"),
        ("/v1/trust/image/..%2f..%2ftoken", 404, "no-metadata"),
        ("/v1/nothing", 404, "no-route"),
        (bracketed, 400, "malformed"),
    ] {
        let (got, value) = registry.get(path).await;
        assert_eq!((got.as_u16(), value["reason"].as_str().unwrap()), (status, reason), "{path}");
    }
    let (status, value) = registry.send(registry.request(Method::PUT, TARGETS)).await;
    assert_eq!((status.as_u16(), value["reason"].as_str()), (405, Some("method")));
}

#[tokio::test]
async fn garbage_on_the_socket_hurts_nobody() {
    let registry = Registry::start().await;
    let address = registry.url.strip_prefix("http://").unwrap().to_owned();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(300_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(20_000));
    for garbage in
        ["\u{0}\u{1}\u{2}\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &long, &many]
    {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
        // The registry may end the connection before it has read everything.
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{garbage:.40}");
    }
    let held: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert_eq!(registry.get("/v1/trust/image").await.0, 200);
    drop(held);
}

#[tokio::test]
async fn blobs_are_what_their_digest_says() {
    let registry = Registry::start().await;
    let bytes = vec![7_u8; 200_000];
    let digest = Digest::of(&bytes);
    let head = |digest: Digest| registry.request(Method::HEAD, &format!("/v1/blobs/{digest}")).send();
    assert_eq!(head(digest).await.unwrap().status(), 404);
    let mut changed = bytes.clone();
    changed[100_000] ^= 1;
    let (status, value) = registry.put(digest, &changed).await;
    assert_eq!((status, value["reason"].as_str()), (422, Some("wrong-digest")));
    assert_eq!(head(digest).await.unwrap().status(), 404);
    assert_eq!(registry.put(digest, &bytes).await.0, 201);
    assert_eq!(registry.put(digest, &bytes).await.0, 200);
    let found = head(digest).await.unwrap();
    assert_eq!(
        (found.status().as_u16(), found.headers()["content-length"].to_str().unwrap()),
        (200, "200000")
    );
    let (status, value) = registry.send(registry.request(Method::PUT, "/v1/blobs/sha256:00").body("x")).await;
    assert_eq!((status.as_u16(), value["reason"].as_str()), (400, Some("malformed")));
    // An upload that stops half-way leaves nothing.
    let address = registry.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let other = Digest::of(b"never whole");
    let request = format!(
        "PUT /v1/blobs/{other} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 11\r\n\r\nnever",
        registry.token
    );
    stream.write_all(request.as_bytes()).unwrap();
    drop(stream);
    let incoming = registry.path("registry/blobs/incoming");
    support::wait_for("the upload to be forgotten", async || {
        std::fs::read_dir(&incoming).unwrap().next().is_none().then_some(())
    })
    .await;
    assert_eq!(head(other).await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_second_registry_on_the_same_data_is_refused() {
    let registry = Registry::start().await;
    let (data, keys) = (registry.path("registry"), registry.path("keys"));
    let arguments = |listen: &'static str, data: &std::path::Path| {
        let online = keys.join("online");
        let roots = keys.join("roots");
        Running::start(&[
            "serve",
            "--data",
            data.to_str().unwrap(),
            "--listen",
            listen,
            "--broker",
            &registry.broker.url(),
            "--online-keys",
            online.to_str().unwrap(),
            "--roots",
            roots.to_str().unwrap(),
        ])
    };
    assert!(!arguments("127.0.0.1:0", &data).exits());
    // Nor does one listen where others could reach it.
    assert!(!arguments("0.0.0.0:0", &registry.path("other")).exits());
}

#[tokio::test]
async fn a_registry_has_a_name_of_its_own_on_the_broker() {
    let mut registry = Registry::start().await;
    let file = registry.path("registry/client-id");
    let name = std::fs::read_to_string(&file).unwrap();
    assert!(name.trim().strip_prefix("selvedge-registry-").is_some_and(|own| own.len() == 16), "{name}");
    registry.stop();
    registry.run().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), name);
    // Data of an earlier version keeps the name that all had, and with it what the broker keeps.
    registry.stop();
    std::fs::remove_file(&file).unwrap();
    registry.run().await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "selvedge-registry\n");
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let registry = Registry::start().await;
    let address = registry.url.strip_prefix("http://").unwrap().to_owned();
    let held: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert_eq!(registry.get(TARGETS).await.0, 200);
    drop(held);
}

#[tokio::test]
async fn other_roots_or_keys_on_the_same_data_are_refused() {
    let mut registry = Registry::start().await;
    registry.stop();
    let other = registry.path("others");
    selvedge_signing::keyring::init(&other, jiff::Timestamp::now()).unwrap();
    let data = registry.path("registry");
    let url = registry.broker.url();
    let start = |online: std::path::PathBuf, roots: std::path::PathBuf| {
        Running::start(&[
            "serve",
            "--data",
            data.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
            "--broker",
            &url,
            "--online-keys",
            online.to_str().unwrap(),
            "--roots",
            roots.to_str().unwrap(),
        ])
    };
    let own = registry.path("keys");
    assert!(!start(own.join("online"), other.join("roots")).exits());
    assert!(!start(other.join("online"), own.join("roots")).exits());
    registry.run().await;
    assert_eq!(registry.get(TARGETS).await.0, 200);
}
