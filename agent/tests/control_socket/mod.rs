//! The host's control socket, as far as a played host must speak HTTP on it.
#![allow(dead_code, clippy::unwrap_used)]

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// In place of a status.
pub const BREAK: u16 = 0;

/// Answers one request a connection, with what `answer` makes of its path and body. Where that is nothing,
/// the asker is kept waiting; where it is [`BREAK`], the exchange is broken off.
pub async fn serve(listener: UnixListener, mut answer: impl FnMut(&str, &[u8]) -> Option<(u16, Value)>) {
    let mut unanswered = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        let (head, length) = loop {
            stream.read_buf(&mut request).await.unwrap();
            let Some(end) = request.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            break (end + 4, length.map_or(0, |length| length.parse().unwrap()));
        };
        while request.len() < head + length {
            stream.read_buf(&mut request).await.unwrap();
        }
        let line = String::from_utf8_lossy(&request[..head]).into_owned();
        let at = line.split(' ').nth(1).unwrap();
        let Some((code, body)) = answer(at, &request[head..]) else {
            unanswered.push(stream);
            continue;
        };
        if code == BREAK {
            continue;
        }
        let body = body.to_string();
        let answer = format!("HTTP/1.1 {code} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}
