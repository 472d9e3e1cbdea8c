//! Bodies, read within a size, within a time and within the memory that all requests share.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::buffers::Buffers;
use super::failure::Failure;
use crate::tensor::ALIGN;

/// Memory is handed out in pieces of this many bytes.
const PIECE: usize = 4096;

/// Most bytes that an announced length may ask for before they come.
const AT_ONCE: usize = 1 << 20;

/// What is read and thrown away of a body that is refused, so that a client that writes first and
/// reads later gets to see the refusal.
const SWALLOWED: usize = 4 << 20;

/// Longest time for that.
const SWALLOWING: Duration = Duration::from_secs(2);

/// Most bytes that are kept for bodies to come, and at most which part of what there is.
const KEPT: usize = 8 << 20;
const KEPT_OF: usize = 8;

/// Memory that the bodies of all requests may hold together.
#[derive(Debug, Clone)]
pub struct Budget {
    pieces: Arc<Semaphore>,
    /// Not counted among them.
    buffers: Arc<Buffers>,
}

/// Memory held by one request, and then by its answer until the client has taken it. A clone holds what there was,
/// too: it goes with the inputs, which a run may need for longer than its client waits.
#[derive(Debug, Clone)]
pub struct Reserved(Vec<Arc<OwnedSemaphorePermit>>);

impl Budget {
    /// `mib` MiB in all.
    pub fn new(mib: u32) -> Self {
        let bytes = (mib as usize) << 20;
        Self {
            pieces: Arc::new(Semaphore::new(bytes >> PIECE.trailing_zeros())),
            buffers: Buffers::new(KEPT.min(bytes / KEPT_OF)),
        }
    }

    /// So many bytes of it, which is refused where there are not.
    pub fn reserve(&self, bytes: usize) -> Result<Reserved, Failure> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE)).map_err(|_| Failure::Memory)?;
        let permit = Arc::clone(&self.pieces).try_acquire_many_owned(pieces);
        permit.map(|permit| Reserved(vec![Arc::new(permit)])).map_err(|_| Failure::Memory)
    }
}

impl Reserved {
    /// Holds the pieces of an answer, for as long as any of it is to be written; but a small one, which takes no
    /// more than its connection, or its stream of HTTP/2, is counted for.
    pub fn hold(mut self, budget: &Budget, pieces: Vec<Bytes>) -> Result<Vec<Bytes>, Failure> {
        struct Held {
            piece: Bytes,
            _reserved: Arc<Reserved>,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.piece
            }
        }
        let length = pieces.iter().map(Bytes::len).sum();
        if length <= PIECE {
            return Ok(pieces);
        }
        self.grow(budget, length)?;
        let reserved = Arc::new(self);
        let hold = |piece| Bytes::from_owner(Held { piece, _reserved: Arc::clone(&reserved) });
        Ok(pieces.into_iter().map(hold).collect())
    }

    /// Gives back what is beyond `bytes`, but for what a clone holds.
    pub fn shrink(&mut self, bytes: usize) {
        let mut more = self.pieces().saturating_sub(bytes.div_ceil(PIECE));
        for own in self.0.iter_mut().filter_map(Arc::get_mut) {
            let part = more.min(own.num_permits());
            drop(own.split(part));
            more -= part;
        }
    }

    fn pieces(&self) -> usize {
        self.0.iter().map(|permit| permit.num_permits()).sum()
    }

    /// Grows to `bytes` in all.
    pub fn grow(&mut self, budget: &Budget, bytes: usize) -> Result<(), Failure> {
        let held = self.pieces() * PIECE;
        if bytes > held {
            // At least a quarter more at a time, so that small frames do not each ask.
            let more = budget.reserve((bytes - held).max(held / 4))?;
            for more in more.0 {
                match (self.0.last_mut().and_then(Arc::get_mut), Arc::try_unwrap(more)) {
                    (Some(own), Ok(more)) => own.merge(more),
                    (None, Ok(more)) => self.0.push(Arc::new(more)),
                    (_, Err(shared)) => self.0.push(shared),
                }
            }
        }
        Ok(())
    }
}

/// What a body may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes.
    pub limit: usize,
    /// Time until its end.
    pub time: Duration,
    /// The place in it that shall lie at an address for elements of any type.
    pub aligned: usize,
}

impl Bounds {
    /// Bytes in front of a body that is put where its memory begins.
    pub fn skipped(&self) -> usize {
        self.aligned.wrapping_neg() % ALIGN
    }
}

/// Reads a body within its bounds. What is refused before its end is swallowed within others.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    bounds: Bounds,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure> {
    let announced = match headers.get(header::CONTENT_LENGTH) {
        // hyper has checked that it is a number.
        Some(length) => length.to_str().ok().and_then(|text| text.parse::<usize>().ok()),
        None => None,
    };
    let mut stream = body.into_data_stream();
    let result = {
        let mut collecting = pin!(collect(&mut stream, announced, bounds, budget));
        // Most bodies are here with their heads, and need no timer.
        match std::future::poll_fn(|context| Poll::Ready(collecting.as_mut().poll(context))).await {
            Poll::Ready(result) => result,
            Poll::Pending => match tokio::time::timeout(bounds.time, collecting).await {
                Ok(result) => result,
                Err(_) => return Err(Failure::Slow(bounds.time.as_millis())),
            },
        }
    };
    if let Err(Failure::TooLarge { .. } | Failure::Memory) = &result {
        swallow(&mut stream).await;
    }
    result
}

/// Throws a body away, as much of it as is reasonable.
pub async fn swallow<S, E>(stream: &mut S)
where
    S: futures_util::Stream<Item = Result<Bytes, E>> + Unpin,
{
    let mut left = SWALLOWED;
    let all = async {
        while let Some(Ok(frame)) = stream.next().await {
            match left.checked_sub(frame.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // Whether it ended or not, the refusal is next.
    drop(tokio::time::timeout(SWALLOWING, all).await);
}

async fn collect<S, E>(
    stream: &mut S,
    announced: Option<usize>,
    bounds: Bounds,
    budget: &Budget,
) -> Result<(Bytes, Reserved), Failure>
where
    S: futures_util::Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let limit = bounds.limit;
    if announced.is_some_and(|length| length > limit) {
        return Err(Failure::TooLarge { limit });
    }
    // What a client announces is not reserved before it comes.
    let mut reserved = budget.reserve(PIECE)?;
    let mut first = Bytes::new();
    let mut all: Vec<u8> = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = stream.next().await {
        let frame = frame.map_err(|error| Failure::Broken(error.to_string()))?;
        length = length.saturating_add(frame.len());
        if length > limit {
            return Err(Failure::TooLarge { limit });
        }
        reserved.grow(budget, length)?;
        if length == frame.len() {
            // A body of one frame is used as it came.
            first = frame;
            continue;
        }
        if all.is_empty() {
            // Copied once where it is of a usual size, and into memory that is touched as it comes.
            let expected = announced.unwrap_or(0).max(length);
            all = budget.buffers.take(bounds.skipped() + expected).unwrap_or_default();
            if all.capacity() > 0 && reserved.grow(budget, all.capacity()).is_err() {
                all = Vec::new();
            }
            all.reserve(bounds.skipped() + expected.min(AT_ONCE).max(length));
            all.resize(bounds.skipped(), 0);
            all.extend_from_slice(&first);
            first = Bytes::new();
        }
        if let Some(announced) = announced.filter(|_| all.capacity() - all.len() < frame.len()) {
            // Twice as much, but no more than is to come.
            all.reserve_exact(all.len().min(announced.saturating_sub(length)) + frame.len());
        }
        all.extend_from_slice(&frame);
    }
    let whole = if all.is_empty() { first } else { budget.buffers.lend(all).slice(bounds.skipped()..) };
    Ok((whole, reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn bounds(limit: usize) -> Bounds {
        Bounds { limit, time: Duration::from_secs(1), aligned: 0 }
    }

    async fn check(frames: &[&'static [u8]], limit: usize, budget: &Budget) -> Result<Bytes, u16> {
        let frames: Vec<Result<Bytes, std::io::Error>> =
            frames.iter().map(|frame| Ok(Bytes::from_static(frame))).collect();
        let body = Body::from_stream(stream::iter(frames));
        read(&HeaderMap::new(), body, bounds(limit), budget)
            .await
            .map(|(bytes, _)| bytes)
            .map_err(|failure| failure.status().as_u16())
    }

    #[tokio::test]
    async fn is_bounded_by_its_own_limit_and_by_what_all_share() {
        let budget = Budget::new(1);
        assert_eq!(check(&[b"ab", b"", b"c"], 3, &budget).await, Ok(Bytes::from_static(b"abc")));
        assert_eq!(check(&[b"", b"abc"], 3, &budget).await, Ok(Bytes::from_static(b"abc")));
        assert_eq!(check(&[], 3, &budget).await, Ok(Bytes::new()));
        assert_eq!(check(&[b"ab", b"cd"], 3, &budget).await, Err(413));
        let big: &'static [u8] = &[0; 600 << 10];
        assert!(check(&[big], 1 << 20, &budget).await.is_ok());
        let held = budget.reserve(600 << 10).unwrap();
        assert_eq!(check(&[big], 1 << 20, &budget).await, Err(503));
        drop(held);
        assert!(check(&[big], 1 << 20, &budget).await.is_ok());
        assert!(budget.reserve(1 << 20).is_ok(), "everything was given back");
    }

    #[test]
    fn an_answer_is_held_until_it_is_taken() {
        let budget = Budget::new(1);
        let piece = || Bytes::from(vec![7; 300 << 10]);
        let held = budget.reserve(1).unwrap().hold(&budget, vec![piece(), piece()]).unwrap();
        let later = held[1].slice(1000..);
        drop(held);
        let reserved = budget.reserve(1).unwrap();
        assert!(matches!(reserved.hold(&budget, vec![piece(), piece()]), Err(Failure::Memory)));
        drop(later);
        assert!(budget.reserve(1 << 20).is_ok());
    }

    #[test]
    fn a_clone_holds_what_there_was_and_no_more() {
        let budget = Budget::new(1);
        let mut reserved = budget.reserve(300 << 10).unwrap();
        let inputs = reserved.clone();
        reserved.grow(&budget, 700 << 10).unwrap();
        reserved.grow(&budget, 800 << 10).unwrap();
        assert!(budget.reserve(300 << 10).is_err());
        drop(reserved);
        let others = budget.reserve(700 << 10).unwrap();
        assert!(budget.reserve(100 << 10).is_err(), "the inputs are held still");
        drop((inputs, others));
        assert!(budget.reserve(1 << 20).is_ok(), "everything was given back");
    }

    #[tokio::test]
    async fn what_follows_the_json_lies_where_elements_may() {
        for aligned in 0..20 {
            let frames = [&b"0123456789"[..], b"abcdefghijklmnop"].map(Bytes::from_static);
            let mut stream = stream::iter(frames.map(Ok::<_, std::io::Error>));
            let bounds = Bounds { aligned, ..bounds(100) };
            let (body, _) = collect(&mut stream, Some(26), bounds, &Budget::new(1)).await.unwrap();
            assert_eq!(body, b"0123456789abcdefghijklmnop".as_slice());
            assert!(body[aligned..].as_ptr().addr().is_multiple_of(ALIGN), "{aligned}");
        }
    }

    #[tokio::test]
    async fn a_large_body_takes_the_memory_of_the_one_before() {
        let budget = Budget::new(64);
        let mut before = None;
        for (length, announced) in [(3 << 20, true), ((3 << 20) - 5, true), (2 << 20, true), (2 << 20, false)]
        {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let frames = content.chunks(100_000).map(Bytes::copy_from_slice);
            let mut stream = stream::iter(frames.map(Ok::<_, std::io::Error>));
            let announced = announced.then_some(length);
            let (body, _) = collect(&mut stream, announced, bounds(4 << 20), &budget).await.unwrap();
            assert!(body == content, "{length}");
            let at = *before.get_or_insert(body.as_ptr());
            assert_eq!(at == body.as_ptr(), announced.is_some(), "{length}");
        }
    }

    #[tokio::test]
    async fn kept_memory_counts_though_little_comes() {
        let budget = Budget::new(32);
        let mib = |mib: usize| Bytes::from(vec![7; mib << 20]);
        let whole = stream::iter([mib(1), mib(3)].map(Ok::<_, std::io::Error>));
        drop(collect(&mut Box::pin(whole), Some(4 << 20), bounds(8 << 20), &budget).await.unwrap());
        let little = stream::iter([Bytes::from_static(b"a"), Bytes::from_static(b"b")].map(Ok));
        let mut little = Box::pin(little.chain(stream::pending::<Result<Bytes, std::io::Error>>()));
        let mut slow = Box::pin(collect(&mut little, Some(4 << 20), bounds(8 << 20), &budget));
        assert!(std::future::poll_fn(|context| Poll::Ready(slow.as_mut().poll(context))).await.is_pending());
        assert!(budget.reserve(29 << 20).is_err(), "the memory that it was lent counts");
        drop(slow);
        assert!(budget.reserve(29 << 20).is_ok());
    }

    #[tokio::test]
    async fn an_announced_length_is_refused_unread() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, 11.into());
        let body = Body::from("ab");
        let result = read(&headers, body, bounds(10), &Budget::new(1)).await;
        assert!(matches!(result, Err(Failure::TooLarge { limit: 10 })));
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let bounds = Bounds { time: Duration::from_millis(20), ..bounds(10) };
        let result = read(&HeaderMap::new(), body, bounds, &Budget::new(1)).await;
        assert!(matches!(result, Err(Failure::Slow(20))));
    }
}
