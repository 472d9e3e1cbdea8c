//! A file as a request body: read piece by piece while it is sent, with its length known before.
//! A file that shrinks or grows meanwhile ends the request with an error.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

/// Bytes in one piece; a few of them are in memory at a time.
const PIECE: usize = 256 << 10;

struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

/// The body of a PUT: exactly `size` bytes of the file at `path`. `sent` hears of each piece's length.
pub fn file_body(path: &Path, size: u64, sent: impl Fn(u64) + Send + 'static) -> io::Result<reqwest::Body> {
    let file = std::fs::File::open(path)?;
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        let mut file = tokio::fs::File::from_std(file);
        let mut left = size;
        while left > 0 {
            let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
            let read = match file.read(&mut piece).await {
                Ok(0) => Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file became shorter while it was sent",
                )),
                other => other,
            };
            match read {
                Ok(length) => {
                    piece.truncate(length);
                    left -= length as u64;
                    if sender.send(Ok(Bytes::from(piece))).await.is_err() {
                        return;
                    }
                    sent(length as u64);
                }
                Err(error) => {
                    // Nobody listens any more when this fails, so there is nobody to tell.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        }
    });
    Ok(reqwest::Body::wrap(Pieces { receiver, left: size }))
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.receiver.poll_recv(context).map(|piece| {
            let piece = piece?;
            if let Ok(bytes) = &piece {
                self.left = self.left.saturating_sub(bytes.len() as u64);
            }
            Some(piece.map(Frame::data))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
