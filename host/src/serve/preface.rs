//! Which HTTP a connection speaks: the first bytes of HTTP/2 are always the same, and no request of
//! HTTP/1.1 begins so. They are read once and given again to whoever serves the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What a client of HTTP/2 begins with, by prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1, or what is no HTTP at all.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Reads until it is known. A connection that ends before that speaks HTTP/1.1.
pub async fn read<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Version, Begun<S>)> {
    let mut before = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && before[..length] == PREFACE[..length] {
        match stream.read(&mut before[length..]).await? {
            0 => break,
            count => length += count,
        }
    }
    let version = if before == *PREFACE && length == PREFACE.len() { Version::Http2 } else { Version::Http1 };
    Ok((version, Begun { before, given: 0, length, stream }))
}

/// A connection of which the first bytes were read.
pub struct Begun<S> {
    before: [u8; PREFACE.len()],
    given: usize,
    length: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.length - self.given;
        if left > 0 && buffer.remaining() > 0 {
            let (from, count) = (self.given, left.min(buffer.remaining()));
            buffer.put_slice(&self.before[from..from + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn check(sent: &[u8], expected: Version) {
        for cut in 0..=sent.len().min(30) {
            let (ours, mut theirs) = tokio::io::duplex(256);
            let (first, second) = (sent[..cut].to_vec(), sent[cut..].to_vec());
            let sending = tokio::spawn(async move {
                theirs.write_all(&first).await.unwrap();
                tokio::task::yield_now().await;
                theirs.write_all(&second).await.unwrap();
            });
            let (version, mut begun) = read(ours).await.unwrap();
            sending.await.unwrap();
            let mut all = Vec::new();
            begun.read_to_end(&mut all).await.unwrap();
            assert_eq!((version, &all[..]), (expected, sent), "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn the_preface_says_it_and_nothing_is_lost() {
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Version::Http2).await;
        check(PREFACE, Version::Http2).await;
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", Version::Http1).await;
        check(b"PRI * HTTP/1.1\r\nHost: a\r\n\r\n and more of it", Version::Http1).await;
        check(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n{}", Version::Http1).await;
        check(b"G", Version::Http1).await;
        check(b"", Version::Http1).await;
    }
}
