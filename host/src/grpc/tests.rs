//! Calls over real connections to packages that are fakes.

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

#[tokio::test]
async fn the_server_and_its_models_are_told_as_rest_tells_them() {
    let server = Server::echoing().await;
    let none = Message::default();
    assert_eq!(server.call("ServerLive", &none).await.message(), [8, 1]);
    assert_eq!(server.call("ServerReady", &none).await.message(), [8, 1]);
    let told = server.call("ServerMetadata", &none).await;
    assert_eq!(fields(told.message(), 1), [Value::Bytes(b"selvedge-host")]);
    for (name, version, ready) in
        [("numbers", "", 1), ("numbers", "7", 1), ("numbers", "9", 0), ("nobody", "", 0)]
    {
        let told = server.call("ModelReady", &named(name, version)).await;
        assert_eq!(fields(told.message(), 1).len(), ready, "{name} {version}");
    }
    let told = server.call("ModelMetadata", &named("half", "1.0.0")).await;
    assert_eq!(fields(told.message(), 2), [Value::Bytes(b"1.0.0")]);
    let inputs = fields(told.message(), 4);
    assert_eq!(fields(inputs[0].bytes().unwrap(), 2), [Value::Bytes(b"FP16")]);
    let told = server.call("ModelConfig", &named("half", "")).await;
    let config = fields(told.message(), 1)[0].bytes().unwrap();
    assert_eq!(fields(fields(config, 5)[0].bytes().unwrap(), 2), [Value::Number(10)], "TYPE_FP16");
    assert_eq!(server.call("/grpc.health.v1.Health/Check", &none).await.message(), [8, 1]);
    server.call("/grpc.health.v1.Health/Check", &named("x", "")).await.refused(5, "no such service");
    server.call("ModelMetadata", &named("nobody", "")).await.refused(5, "no model `nobody`");
    server.call("ModelMetadata", &named("half", "9")).await.refused(5, "not its version `9`");
    for (method, says) in [
        ("SystemSharedMemoryStatus", "shared memory is not offered"),
        ("CudaSharedMemoryRegister", "shared memory is not offered"),
        ("RepositoryIndex", "control socket"),
        ("TraceSetting", "SELVEDGE_LOG"),
        ("Nothing", "nothing at this path"),
        ("/other.Service/Call", "nothing at this path"),
        ("/grpc.health.v1.Health/Watch", "nothing at this path"),
    ] {
        server.call(method, &none).await.refused(12, says);
    }
}

#[tokio::test]
async fn elements_go_both_ways_as_bytes_and_as_numbers() {
    let server = Server::echoing().await;
    let elements = [0, 0, 0x80, 0x3f, 0, 0, 0xc0, 0x7f];
    let answer = server.call("ModelInfer", &raw("numbers", "FP32", 2, &elements)).await;
    let message = answer.message();
    assert_eq!(fields(message, 1), [Value::Bytes(b"numbers")]);
    assert_eq!(fields(message, 3), [Value::Bytes(b"seven")]);
    assert_eq!(fields(message, 6), [Value::Bytes(&elements)]);
    let text = b"\x02\0\0\0\xff\0\0\0\0\0";
    let answer = server.call("ModelInfer", &raw("text", "BYTES", 2, text)).await;
    assert_eq!(fields(answer.message(), 6), [Value::Bytes(text)]);
    let mut typed = Message::default();
    typed.bytes(1, "text").message(5, |input| {
        input.bytes(1, "x").bytes(2, "BYTES").packed(3, [2].into_iter()).message(5, |it| {
            it.part(8, "a").part(8, "");
        });
    });
    let answer = server.call("ModelInfer", &typed).await;
    assert!(fields(answer.message(), 6).is_empty());
    let output = fields(answer.message(), 5)[0].bytes().unwrap();
    let contents = fields(output, 5)[0].bytes().unwrap();
    assert_eq!(fields(contents, 8), [Value::Bytes(b"a"), Value::Bytes(b"")]);
    // A message in many frames, larger than the window of a connection.
    let large: Vec<u8> = (0..900_000_u32).map(|at| at as u8).collect();
    let answer = server.call("ModelInfer", &raw("half", "FP16", 450_000, &large)).await;
    assert_eq!(fields(answer.message(), 6), [Value::Bytes(&large)]);
    let counts = server.serving.find("half", None).unwrap().counts.snapshot();
    assert_eq!((counts.success, counts.failures), (1, [0; 4]));
    let one = server.call("ModelStatistics", &named("half", "")).await;
    let statistics = fields(one.message(), 1)[0].bytes().unwrap();
    assert_eq!(fields(statistics, 4), [Value::Number(1)], "inferences");
    let success = fields(fields(statistics, 6)[0].bytes().unwrap(), 1)[0].bytes().unwrap();
    assert_eq!(fields(success, 1), [Value::Number(1)]);
    let all = server.call("ModelStatistics", &Message::default()).await;
    assert_eq!(fields(all.message(), 1).len(), 3);
}

#[tokio::test]
async fn wrong_calls_are_refused_in_words() {
    let server = Server::echoing().await;
    let good = raw("numbers", "FP32", 1, &[0; 4]);
    server.call("ModelInfer", &raw("nobody", "FP32", 1, &[0; 4])).await.refused(5, "no model `nobody`");
    server.call("ModelInfer", &raw("numbers", "FP64", 1, &[0; 8])).await.refused(3, "has to be FP32");
    server
        .call("ModelInfer", &raw("numbers", "FP32", 1, &[0; 5]))
        .await
        .refused(3, "takes 4 bytes, and 5 came");
    server
        .call("ModelInfer", &raw("numbers", "FP32", 1 << 40, &[]))
        .await
        .refused(3, "larger than the package's");
    let most = (3 << 20) / 4;
    server
        .call("ModelInfer", &raw("numbers", "FP32", most, &vec![0; 3 << 20]))
        .await
        .refused(8, "larger than");
    let client = &mut server.connect().await;
    let infer = async |client: &mut _, headers: &[(&'static str, &str)]| {
        call(client, "ModelInfer", headers, vec![good.as_ref()]).await
    };
    infer(client, &[("grpc-timeout", "1x")]).await.refused(3, "grpc-timeout");
    infer(client, &[("grpc-encoding", "br")]).await.refused(12, "gzip, deflate or identity");
    infer(client, &[("grpc-timeout", "60S"), ("content-type", "application/grpc+proto")]).await.message();
    call(client, "ModelInfer", &[], vec![]).await.refused(12, "no message");
    call(client, "ModelInfer", &[], vec![good.as_ref(), good.as_ref()]).await.refused(12, "one message");
    call(client, "ModelInfer", &[], vec![b"\x0b"]).await.refused(3, "the message is refused");
    let json = request("ModelInfer", &[("content-type", "application/json")], Full::from("{}").boxed());
    assert_eq!(client.send_request(json).await.unwrap().status(), 415);
    // REST is on the same connection.
    let rest = Request::get("http://localhost/v2/health/live").body(Full::default().boxed()).unwrap();
    let answer = client.send_request(rest).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(answer, r#"{"live":true}"#);
    server.serving.drain();
    server.call("ModelInfer", &good).await.refused(14, "ending");
}

#[tokio::test]
async fn a_long_message_is_read_at_its_turn_and_what_is_not_read_needs_none() {
    let server = Server::echoing().await;
    let model = server.serving.find("numbers", None).unwrap();
    let leave = model.gate.ready(crate::clock::now() + LONG).await.unwrap();
    let typed = |count: usize| {
        let mut message = Message::default();
        message.bytes(1, "numbers").message(5, |input| {
            input.bytes(1, "x").bytes(2, "FP32").packed(3, [count as u64].into_iter());
            input.message(5, |it| it.append(|bytes| bytes.extend([0x35, 0, 0, 0x80, 0x3f].repeat(count))));
        });
        message
    };
    let (long, short) = (typed(220_000), typed(200_000));
    assert!(short.as_ref().len() < 1 << 20 && long.as_ref().len() > 1 << 20);
    let client = &mut server.connect().await;
    let waiting = call(client, "ModelInfer", &[("grpc-timeout", "50m")], vec![long.as_ref()]).await;
    waiting.refused(4, "no turn within");
    server.call("ModelInfer", &short).await.message();
    server.call("ModelInfer", &raw("numbers", "FP32", 1 << 18, &[0; 1 << 20])).await.message();
    drop(leave);
    let answer = server.call("ModelInfer", &long).await;
    let output = fields(answer.message(), 5)[0].bytes().unwrap();
    let contents = fields(fields(output, 5)[0].bytes().unwrap(), 6)[0].bytes().unwrap();
    assert!(contents == 1_f32.to_le_bytes().repeat(220_000));
}

#[tokio::test]
async fn a_clients_time_holds_and_one_who_leaves_is_counted() {
    let server = Server::start(Limits { connections: 8, head: LONG, answer: LONG }).await;
    let permits = Arc::new(Semaphore::new(0));
    server.put("slow", "FP32", Behaviour::Wait(Arc::clone(&permits)));
    let message = raw("slow", "FP32", 1, &[0; 4]);
    let client = &mut server.connect().await;
    let ended = call(client, "ModelInfer", &[("grpc-timeout", "20m")], vec![message.as_ref()]).await;
    assert_eq!(ended.status, 4, "{ended:?}");
    let mut other = server.connect().await;
    let leaving = call(&mut other, "ModelInfer", &[], vec![message.as_ref()]);
    assert!(tokio::time::timeout(Duration::from_millis(50), leaving).await.is_err());
    let canceled = || server.serving.find("slow", None).unwrap().counts.snapshot().failures[1];
    let noticed = async {
        while canceled() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, noticed).await.expect("its leaving is noticed");
}

/// A call whose messages are sent one by one.
async fn streaming(client: &mut SendRequest<Body>) -> (mpsc::Sender<Bytes>, hyper::body::Incoming) {
    let (send, receive) = mpsc::channel::<Bytes>(1);
    let frames = stream::unfold(receive, |mut receive| async move {
        let frame = receive.recv().await?;
        Some((Ok(Frame::data(frame)), receive))
    });
    let body = BodyExt::boxed(StreamBody::new(frames));
    let answer = client.send_request(request("ModelStreamInfer", &[], body)).await.unwrap();
    (send, answer.into_body())
}

async fn next(answers: &mut hyper::body::Incoming) -> Result<Vec<u8>, HeaderMap> {
    let mut whole = Vec::new();
    loop {
        let frame = tokio::time::timeout(LONG, answers.frame()).await.unwrap().unwrap().unwrap();
        match frame.into_data() {
            Ok(data) => whole.extend_from_slice(&data),
            Err(trailers) => return Err(trailers.into_trailers().unwrap()),
        }
        if whole.len() >= 5 && whole.len() == 5 + u32::from_be_bytes(whole[1..5].try_into().unwrap()) as usize
        {
            return Ok(whole.split_off(5));
        }
    }
}

#[tokio::test]
async fn a_stream_answers_each_message_and_goes_on_after_a_wrong_one() {
    let server = Server::echoing().await;
    let (send, mut answers) = streaming(&mut server.connect().await).await;
    for count in [1_u64, 0, 3] {
        let wrong = count == 0;
        let mut message =
            raw(if wrong { "nobody" } else { "numbers" }, "FP32", count, &vec![7; 4 * count as usize]);
        message.message(4, |entry| {
            entry.bytes(1, "triton_enable_empty_final_response").message(2, |it| it.chosen_number(1, 1));
        });
        let whole = framed(vec![message.into_bytes().into()]).unwrap().concat();
        let (first, second) = whole.split_at(whole.len() / 2);
        send.send(Bytes::copy_from_slice(first)).await.unwrap();
        send.send(Bytes::copy_from_slice(second)).await.unwrap();
        let answer = next(&mut answers).await.unwrap();
        let inner = fields(&answer, 2)[0].bytes().unwrap();
        assert_eq!(fields(inner, 3), [Value::Bytes(b"seven")]);
        if wrong {
            assert!(fields(&answer, 1)[0].text(1000).unwrap().contains("no model `nobody`"));
        } else {
            assert_eq!(fields(inner, 6)[0].bytes().unwrap().len(), 4 * count as usize);
            let last = fields(inner, 4)
                .into_iter()
                .any(|entry| fields(entry.bytes().unwrap(), 1)[0] == Value::Bytes(b"triton_final_response"));
            assert!(last);
        }
    }
    drop(send);
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "0");
    // What is no message ends the stream.
    let (send, mut answers) = streaming(&mut server.connect().await).await;
    send.send(Bytes::from_static(b"\0\xff\xff\xff\xff")).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "8");
}

#[tokio::test]
async fn the_end_of_the_server_ends_a_stream_that_waits() {
    let server = Server::echoing().await;
    let (_send, mut answers) = streaming(&mut server.connect().await).await;
    let _idle = server.connect().await;
    tokio::task::yield_now().await;
    server.serving.drain();
    server.stop.send_replace(true);
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "14");
    tokio::time::timeout(LONG, server.ended).await.expect("it waits for nobody").unwrap();
}

#[tokio::test]
async fn an_answer_that_is_not_taken_costs_its_connection() {
    let limits = Limits { connections: 4, head: LONG, answer: Duration::from_millis(100) };
    let server = Server::start(limits).await;
    server.put("numbers", "FP32", Behaviour::Echo);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(16).initial_connection_window_size(65_535);
    let client = &mut server.connect_with(&builder).await;
    let message = raw("numbers", "FP32", 1000, &[7; 4000]);
    let whole = framed(vec![message.into_bytes().into()]).unwrap().concat();
    let answer = client.send_request(request("ModelInfer", &[], Full::from(whole).boxed())).await.unwrap();
    let closed = async {
        while client.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, closed).await.expect("the connection is closed");
    drop(answer);
    assert!(server.serving.budget.reserve(64 << 20).is_ok(), "and its memory is free");
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_after_its_time() {
    let limits = Limits { connections: 4, head: Duration::from_millis(100), answer: LONG };
    let server = Server::start(limits).await;
    server.put("numbers", "FP32", Behaviour::Echo);
    let client = &mut server.connect().await;
    call(client, "ModelInfer", &[], vec![raw("numbers", "FP32", 1, &[0; 4]).as_ref()]).await.message();
    let closed = async {
        while client.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, closed).await.expect("the connection is closed");
    // One that says nothing at all, and one that stops in the preface.
    for begun in [&b""[..], b"PRI * HTTP/2"] {
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut silent, begun).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut rest);
        drop(tokio::time::timeout(LONG, read).await.expect("closed"));
    }
}

#[tokio::test]
async fn heads_are_bounded() {
    let server = Server::echoing().await;
    let client = &mut server.connect().await;
    let long = "a".repeat(40_000);
    let mut builder = Request::get("http://localhost/v2/health/live");
    builder = builder.header("x", &long);
    let answer = client.send_request(builder.body(Full::default().boxed()).unwrap()).await;
    // Refused, or not even sent: the server says what it takes.
    assert!(answer.is_err() || answer.unwrap().status() == 431);
    let again = &mut server.connect().await;
    call(again, "ServerLive", &[], vec![b""]).await.message();
}

#[tokio::test]
async fn open_requests_hold_memory_for_their_heads() {
    let server = Server::echoing().await;
    let mut client = server.connect().await;
    let long = "a".repeat(20_000);
    let (send, receive) = mpsc::channel::<Bytes>(1);
    let frames = stream::unfold(receive, |mut receive| async move {
        let frame = receive.recv().await?;
        Some((Ok(Frame::data(frame)), receive))
    });
    let waiting = request("ModelInfer", &[("x", &long)], BodyExt::boxed(StreamBody::new(frames)));
    let mut answer = std::pin::pin!(client.clone().send_request(waiting));
    let all = 64 << 20;
    let held = async {
        while server.serving.budget.reserve(all - 16_000).is_ok() {
            assert!(tokio::time::timeout(Duration::from_millis(10), &mut answer).await.is_err());
        }
    };
    tokio::time::timeout(LONG, held).await.expect("its head is held");
    // There is room for none.
    let others = server.serving.budget.reserve(all - 40_000).unwrap();
    let one_more = call(&mut client, "ServerLive", &[("x", &long)], vec![b""]).await;
    one_more.refused(14, "all the memory");
    drop(others);
    drop(send);
    answer.await.unwrap().into_body().collect().await.unwrap();
    call(&mut client, "ServerLive", &[("x", &long)], vec![b""]).await.message();
    let freed = async {
        while server.serving.budget.reserve(all).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, freed).await.expect("given back");
}

#[tokio::test]
async fn a_client_that_says_nothing_more_does_not_keep_the_server_from_its_end() {
    let server = Server::echoing().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let begun = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    tokio::io::AsyncWriteExt::write_all(&mut silent, begun).await.unwrap();
    let mut first = [0];
    tokio::io::AsyncReadExt::read_exact(&mut silent, &mut first).await.unwrap();
    server.serving.drain();
    server.stop.send_replace(true);
    // Its idle time is longer.
    tokio::time::timeout(LONG / 2, server.ended).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn what_may_come_at_once_is_told() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Server::echoing().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "SETTINGS");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    let of = |wanted: u16| {
        let found = settings.chunks_exact(6).find(|setting| setting[..2] == wanted.to_be_bytes());
        u32::from_be_bytes(found.unwrap()[2..].try_into().unwrap())
    };
    // Requests at once, bytes of a body that wait, the largest frame, the largest head.
    assert_eq!([3, 4, 5, 6].map(of), [128, 256 << 10, 64 << 10, 32 << 10]);
    // A frame that is larger ends the connection.
    stream.write_all(b"\x10\0\x01\0\0\0\0\0\x01").await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
}
