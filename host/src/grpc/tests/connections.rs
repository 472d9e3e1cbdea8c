//! What connections cost, and when they end.

use super::*;

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
