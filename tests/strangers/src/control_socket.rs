//! The control socket: its own messages, the model repository, and the protocol over REST and gRPC, asked one
//! after another. Input: requests of a letter (which path), the body's length (16 bits, little-endian) and
//! the body.

use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, Version};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use selvedge_control::path;
use tokio::runtime::Runtime;

use crate::host::{BUDGET_MIB, Host};
use crate::replies::{Asked, Reply};

/// Most requests of one input.
const MOST: usize = 8;

/// A path that waits for what does not happen is left after this.
const WAITED: Duration = Duration::from_millis(1);

/// Longer than anything takes that waits for nothing.
const LONG: Duration = Duration::from_secs(20);

/// What a letter asks for, from `a` on; no path twice. Of a path with `{}` the body's first line is a part.
pub const PATHS: [(Asked, &str); 25] = [
    (Asked::Load, path::LOAD),
    (Asked::Status, path::ACTIVATE),
    (Asked::Status, path::UNLOAD),
    (Asked::Events, "/v1/events?since={}"),
    (Asked::Status, path::READY),
    (Asked::Status, path::LISTENERS),
    (Asked::Status, path::SHUTDOWN),
    (Asked::Got, path::STATUS),
    (Asked::Rest, "/v2/repository/index"),
    (Asked::Rest, "/v2/repository/models/{}/load"),
    (Asked::Rest, "/v2/repository/models/{}/unload"),
    (Asked::Rest, "/v2/models/m/infer"),
    (Asked::Rest, "/v2/models/t/versions/1/infer"),
    (Asked::Binary, "/v2/models/m/versions/1.0.0/infer"),
    (Asked::Rest, "/v2/models/m/raw?{}"),
    (Asked::Packed, "/v2/models/t/infer"),
    (Asked::Call, "/inference.GRPCInferenceService/ModelInfer"),
    (Asked::Call, "/inference.GRPCInferenceService/ModelStreamInfer"),
    (Asked::Call, "/inference.GRPCInferenceService/RepositoryIndex"),
    (Asked::Call, "/inference.GRPCInferenceService/RepositoryModelLoad"),
    (Asked::Call, "/inference.GRPCInferenceService/RepositoryModelUnload"),
    (Asked::Call, "/inference.GRPCInferenceService/ModelConfig"),
    (Asked::Call, "/grpc.health.v1.Health/Check"),
    (Asked::Got, "/{}"),
    (Asked::Rest, "/v2/{}"),
];

/// Some requests.
pub fn check(bytes: &[u8]) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    });
    runtime.block_on(async {
        let host = Host::start();
        let mut rest = bytes;
        for _ in 0..MOST {
            let [letter, low, high, after @ ..] = rest else { break };
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (body, next) = after.split_at(length.min(after.len()));
            rest = next;
            let (asked, path) = PATHS[usize::from(letter.wrapping_sub(b'a')) % PATHS.len()];
            if let Some(request) = request(asked, path, body) {
                ask(&host, asked, path, request).await;
            }
        }
        // Every request has given back what it held.
        let all = host.serving.budget.reserve((BUDGET_MIB as usize) << 20);
        assert!(all.is_ok(), "requests that were answered hold memory");
    });
}

/// Nothing, where the path cannot be one.
fn request(asked: Asked, path: &str, body: &[u8]) -> Option<Request<Body>> {
    let (path, mut body) = if path.contains("{}") {
        let mut parts = body.splitn(2, |byte| *byte == b'\n');
        let line = std::str::from_utf8(parts.next().unwrap_or_default()).ok()?;
        (path.replace("{}", line), parts.next().unwrap_or_default())
    } else {
        (path.to_owned(), body)
    };
    let mut request = Request::builder().uri(path).method(match asked {
        Asked::Got | Asked::Events => Method::GET,
        _ => Method::POST,
    });
    match asked {
        Asked::Packed => request = request.header("content-encoding", "deflate"),
        Asked::Call => {
            request = request.version(Version::HTTP_2).header("content-type", "application/grpc");
            request = request.header("grpc-encoding", "deflate");
        }
        Asked::Binary => {
            let (length, rest) = body.split_first_chunk()?;
            request = request.header("inference-header-content-length", u16::from_le_bytes(*length));
            body = rest;
        }
        _ => {}
    }
    request.body(Body::from(body.to_vec())).ok()
}

async fn ask(host: &Host, asked: Asked, path: &str, request: Request<Body>) {
    let answering = async {
        let response = TowerToHyperService::new(host.router.clone()).call(request).await;
        let (head, body) = response.expect("a router does not fail").into_parts();
        let body = body.collect().await.expect("an answer comes to its end");
        let trailers = body.trailers().cloned();
        Reply { head, trailers, body: body.to_bytes().to_vec() }
    };
    // Also by a path that came.
    let may_wait = matches!(asked, Asked::Events | Asked::Got);
    match tokio::time::timeout(if may_wait { WAITED } else { LONG }, answering).await {
        Ok(reply) => reply.check(asked, host),
        Err(_) => assert!(may_wait, "no answer from {path} within {LONG:?}"),
    }
}
