//! Peers that say nothing, or nonsense, before they are anybody.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::broker::{Broker, Kind, wait};

async fn from(source: &str, port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{source}:0").parse().unwrap())?;
    socket.connect(format!("127.0.0.1:{port}").parse().unwrap()).await
}

#[tokio::test]
async fn many_that_say_nothing_keep_nobody_out_and_are_let_go_of() {
    let broker = Broker::start(Kind::Embedded).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(from("127.0.0.2", broker.port).await.unwrap());
    }
    broker.device("edge-1").await;
    let mut open = 0;
    for stream in &mut silent {
        let mut byte = [0];
        match tokio::time::timeout(Duration::from_secs(30), stream.read(&mut byte)).await {
            Ok(_) => {}
            Err(_) => open += 1,
        }
    }
    assert_eq!(open, 0, "some kept their places");
    // And their places are free again.
    wait(async || {
        let mut stream = from("127.0.0.2", broker.port).await.ok()?;
        let mut byte = [0];
        let held = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut byte)).await;
        held.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn nonsense_and_plain_text_end_their_own_connection_only() {
    let broker = Broker::start(Kind::Embedded).await;
    for bytes in [
        &b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00"[..],
        &[0; 3000],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16; 70_000],
    ] {
        let mut stream = from("127.0.0.1", broker.port).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "it was left open");
        assert!(answer.len() < 100, "an alert and nothing else");
    }
    broker.device("edge-1").await;
}
