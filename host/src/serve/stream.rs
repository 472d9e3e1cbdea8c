//! The bytes of a connection, with two things that hyper leaves to whoever gives it a stream.
//!
//! What is no HTTP at all hyper refuses by itself, with an empty body: here the refusal gets the JSON
//! that every other one has. And a client that does not take its answer is waited for within a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::progress::Progress;

/// A connection's stream.
pub struct Stream<S> {
    inner: S,
    /// Time for a client to take an answer, from when the system takes no more of it.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// A refusal in our words, and how much of it is written.
    refusal: Option<(Vec<u8>, usize)>,
    refused: bool,
    /// Whether hyper speaks HTTP/1.1 on it, and refuses in its words.
    worded: bool,
    progress: Progress,
}

impl<S> Stream<S> {
    /// Over `inner`.
    pub fn new(inner: S, patience: Duration, progress: Progress) -> Self {
        Self { inner, patience, stalled: None, refusal: None, refused: false, worded: true, progress }
    }

    /// Over `inner`, on which HTTP/2 is spoken: every refusal has its words already.
    pub fn wordless(inner: S, patience: Duration) -> Self {
        Self { worded: false, ..Self::new(inner, patience, Progress::default()) }
    }

    /// Whether hyper refused what came.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// The bare stream.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// Keeps the time while `whole` bytes do not go out.
    fn timed(
        &mut self,
        cx: &mut Context<'_>,
        whole: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(count)) => {
                self.progress.taken();
                if count == whole {
                    self.stalled = None;
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let patience = self.patience;
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                ready!(stalled.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        written
    }

    /// Writes what is left of a refusal.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((text, from)) = &self.refusal {
            let rest = &text[*from..];
            let (whole, from) = (rest.len(), *from);
            let written = Pin::new(&mut self.inner).poll_write(cx, rest);
            match ready!(self.timed(cx, whole, written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count if count == whole => self.refusal = None,
                count => {
                    if let Some((_, place)) = &mut self.refusal {
                        *place = from + count;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The refusal that hyper wrote by itself, with a body. Nothing else that is written looks like one:
/// all other answers have a body, and JSON has no line breaks inside of its strings.
fn in_words(written: &[u8]) -> Option<Vec<u8>> {
    let why = match written.get(..13)? {
        b"HTTP/1.1 400 " | b"HTTP/1.0 400 " => {
            "this is no HTTP/1.1 request: its first line or one of its headers cannot be read \
             (a Content-Length has to be one number)"
        }
        b"HTTP/1.1 431 " | b"HTTP/1.0 431 " => {
            "the request's head is larger than 32 KiB, or has more than 100 headers"
        }
        _ => return None,
    };
    const EMPTY: &str = "content-length: 0\r\n";
    let head = std::str::from_utf8(written).ok()?;
    let (before, after) = head.split_once(EMPTY)?;
    if !head.ends_with("\r\n\r\n") || head.find("\r\n\r\n") != Some(head.len() - 4) {
        return None;
    }
    let body = json!({ "error": why }).to_string();
    let length = body.len();
    Some(
        format!("{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}{body}")
            .into_bytes(),
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_refusal(cx))?;
        if let Some(text) = in_words(bytes).filter(|_| self.worded) {
            self.refusal = Some((text, 0));
            self.refused = true;
            // What does not go out now goes out when hyper flushes.
            return match self.poll_refusal(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(bytes.len())),
            };
        }
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.timed(cx, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = parts.iter().filter(|part| !part.is_empty());
        if let (Some(only), None) = (filled.next(), filled.next()) {
            return self.poll_write(cx, only);
        }
        ready!(self.poll_refusal(cx))?;
        let whole = parts.iter().map(|part| part.len()).sum();
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.timed(cx, whole, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn only_refusals_without_a_body_get_one() {
        let text = |written: &str| in_words(written.as_bytes()).map(|text| String::from_utf8(text).unwrap());
        let empty =
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let told = text(empty).unwrap();
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains("\r\nconnection: close\r\n"), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"].is_string());
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "HTTP/1.1 400",
            "",
        ] {
            assert_eq!(text(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_waited_for_so_long() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut stream = Stream::new(ours, Duration::from_millis(50), Progress::default());
        assert_eq!(stream.write_all(&[7; 64]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut stream, whole) =
            (Stream::new(stream.into_inner(), Duration::from_secs(60), Progress::default()), [8; 64]);
        let mut taken = vec![0; 16 + whole.len()];
        let (written, read) = tokio::join!(stream.write_all(&whole), theirs.read_exact(&mut taken));
        assert!(written.is_ok() && read.is_ok() && taken[16..] == whole);
        assert!(stream.stalled.is_none(), "the time begins anew with the next answer");
    }
}
