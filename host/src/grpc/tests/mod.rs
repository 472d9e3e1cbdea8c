//! Calls over real connections to packages that are fakes.

mod calls;
mod connections;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::frame::framed;
use crate::protobuf::{Fields, Message, Value};
use crate::serve::connection::{self, Limits};
use crate::serve::fake::{Behaviour, Fake, manifest};
use crate::serve::served::Served;
use crate::serve::{Serving, routes};

/// Longer than any answer takes; a test that reaches it has failed.
const LONG: Duration = Duration::from_secs(60);

type Body = BoxBody<Bytes, std::convert::Infallible>;

struct Server {
    address: std::net::SocketAddr,
    serving: Arc<Serving>,
    stop: watch::Sender<bool>,
    ended: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(limits: Limits) -> Self {
        let serving = Serving::new(64);
        serving.announce();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let router = routes::router(Arc::clone(&serving));
        let ended =
            tokio::spawn(connection::serve(listener, router, limits, serving.budget.clone(), stopped));
        Self { address, serving, stop, ended }
    }

    /// With packages `numbers` (FP32 [-1]), `text` (BYTES [-1]) and `half` (FP16 [-1]) that give back what came.
    async fn echoing() -> Self {
        let server = Self::start(Limits { connections: 8, head: LONG, answer: LONG }).await;
        for (name, datatype) in [("numbers", "FP32"), ("text", "BYTES"), ("half", "FP16")] {
            server.put(name, datatype, Behaviour::Echo);
        }
        server
    }

    fn put(&self, name: &str, datatype: &str, behaviour: Behaviour) {
        let package = Fake::package(manifest(name, "1.0.0", 7, datatype, &[-1]), behaviour);
        let served = Served::new(package, Default::default(), 0);
        self.serving.table.stage(Arc::clone(&served));
        self.serving.table.activate(&served.reference()).unwrap();
    }

    async fn connect(&self) -> SendRequest<Body> {
        self.connect_with(&Builder::new(TokioExecutor::new())).await
    }

    async fn connect_with(&self, builder: &Builder<TokioExecutor>) -> SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn call(&self, path: &str, message: &Message) -> Ended {
        call(&mut self.connect().await, path, &[], vec![message.as_ref()]).await
    }
}

/// How a call ended: its status, what was told, its messages.
#[derive(Debug)]
struct Ended {
    status: u16,
    told: String,
    messages: Vec<Vec<u8>>,
}

impl Ended {
    fn of(headers: &HeaderMap, body: &[u8]) -> Self {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let mut messages = Vec::new();
        let mut rest = body;
        while let Some((head, after)) = rest.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            messages.push(after[..length].to_vec());
            rest = &after[length..];
        }
        let status = text("grpc-status").expect("a status").parse().unwrap();
        Self { status, told: text("grpc-message").unwrap_or_default(), messages }
    }

    fn refused(&self, status: u16, says: &str) {
        assert!(self.status == status && self.told.contains(says) && self.messages.is_empty(), "{self:?}");
    }

    fn message(&self) -> &[u8] {
        assert_eq!((self.status, self.messages.len()), (0, 1), "{self:?}");
        &self.messages[0]
    }
}

fn request(path: &str, headers: &[(&'static str, &str)], body: Body) -> Request<Body> {
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/inference.GRPCInferenceService/{path}")
    };
    let mut request = Request::post(format!("http://localhost{path}"));
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

async fn call(
    client: &mut SendRequest<Body>,
    path: &str,
    headers: &[(&'static str, &str)],
    messages: Vec<&[u8]>,
) -> Ended {
    let whole: Vec<u8> = messages
        .into_iter()
        .flat_map(|message| framed(vec![Bytes::copy_from_slice(message)]).unwrap().concat())
        .collect();
    let answer = client.send_request(request(path, headers, Full::from(whole).boxed())).await.unwrap();
    assert_eq!(answer.status(), 200);
    let head = answer.headers().clone();
    assert_eq!(head["content-type"], "application/grpc");
    let body = answer.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or(head);
    Ended::of(&trailers, &body.to_bytes())
}

fn named(name: &str, version: &str) -> Message {
    let mut message = Message::default();
    message.bytes(1, name).bytes(2, version);
    message
}

/// A request with elements as bytes, in a tensor of one dimension.
fn raw(model: &str, datatype: &str, count: u64, elements: &[u8]) -> Message {
    let mut message = Message::default();
    message.bytes(1, model).bytes(3, "seven");
    message.message(5, |input| {
        input.bytes(1, "x").bytes(2, datatype).packed(3, [count].into_iter());
    });
    message.part(7, elements);
    message
}

/// Values of a field of a message.
fn fields(message: &[u8], number: u32) -> Vec<Value<'_>> {
    Fields::new(message)
        .map(Result::unwrap)
        .filter(|(found, _)| *found == number)
        .map(|(_, value)| value)
        .collect()
}
