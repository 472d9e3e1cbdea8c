//! One blob from one source: takes the requests of its transfer, and answers with the frames that the
//! registry would have sent.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use selvedge_package::Digest;
use selvedge_protocol::block::{HEADER, Span, answer, header};
use selvedge_protocol::message::Need;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::address::Address;
use super::answer::Asked;
use super::connect::{Connection, Shared};
use super::stream::{Stream, open};
use super::waits::Waiting;
use super::{Event, Happened, Say, Trouble};

/// Bytes that are asked for in one request. What the server has sent when a transfer is given up was
/// sent for nothing.
const PART: u64 = 4 << 20;
/// Connections that may break off in a row without a whole block between them.
const CUTS: u32 = 1;

/// What is to be done.
pub(super) struct Job {
    pub digest: Digest,
    pub number: u64,
    pub size: u64,
    /// What the blob lacked at the beginning, lowest first.
    pub lacks: Arc<[Range<u64>]>,
    pub address: Address,
    pub shared: Arc<Shared>,
    pub waiting: Waiting,
    pub needs: mpsc::UnboundedReceiver<Need>,
    pub say: Say,
}

impl Job {
    /// Runs until nobody asks any more, or the source fails.
    pub async fn run(mut self) {
        if let Err(trouble) = self.work().await {
            self.tell(Happened::Failed(trouble));
        }
    }

    async fn work(&mut self) -> Result<(), Trouble> {
        let (mut wanted, mut stream, mut cuts) = (Wanted::default(), None, 0);
        let signed = self.address.clone();
        loop {
            while let Ok(need) = self.needs.try_recv() {
                wanted.take(&need, self.size);
            }
            let Some((transfer, span)) = wanted.next(stream.as_ref()) else {
                self.waiting.pause(Instant::now());
                // As long as it may be needed again at once, the server is kept waiting.
                match timeout(self.shared.patience.idle, self.needs.recv()).await {
                    Ok(Some(need)) => wanted.take(&need, self.size),
                    Ok(None) => break,
                    Err(_) => {
                        stream = None;
                        match self.needs.recv().await {
                            Some(need) => wanted.take(&need, self.size),
                            None => break,
                        }
                    }
                }
                continue;
            };
            self.waiting.start(Instant::now());
            match self.block(&mut stream, transfer, span).await {
                Ok(frame) => {
                    cuts = 0;
                    wanted.remove(&span);
                    let waited = self.waiting.take(Instant::now());
                    self.tell(Happened::Frame { frame, waited });
                }
                Err(Trouble::Cut(why)) if cuts < CUTS => {
                    tracing::debug!(%why, "a source's connection broke off; it is asked again");
                    (stream, cuts) = (None, cuts + 1);
                }
                // An address to which it redirected may hold for a while only.
                Err(Trouble::Status { .. }) if self.address != signed && cuts < CUTS => {
                    (stream, cuts, self.address) = (None, cuts + 1, signed.clone());
                }
                Err(trouble) => return Err(trouble),
            }
        }
        if let Some(stream) = stream
            && let Some(connection) = stream.end().await
        {
            self.shared.put_by(connection);
        }
        Ok(())
    }

    /// The frame with one block, out of the answer that is being read or another one.
    async fn block(
        &mut self,
        stream: &mut Option<Stream>,
        transfer: u32,
        span: Span,
    ) -> Result<Vec<u8>, Trouble> {
        if !stream.as_ref().is_some_and(|stream| stream.reaches(span.offset)) {
            let kept: Option<Connection> = match stream.take() {
                Some(old) => old.end().await,
                None => None,
            };
            let asked = Asked { first: span.offset, end: self.end_of_part(span), size: self.size };
            let opened = open(&self.shared, &mut self.address, kept, asked, &mut self.waiting).await?;
            *stream = Some(opened);
        }
        let Some(stream) = stream else { return Err(Trouble::Slow) };
        let mut frame = Vec::with_capacity(HEADER + span.length as usize);
        frame.extend_from_slice(&header(transfer, span.number));
        let patience = self.shared.patience.block;
        stream.skip_to(span.offset, patience).await?;
        stream.read(span.length, &mut frame, patience).await?;
        Ok(frame)
    }

    /// As far as the blob lacks bytes from there on, but not too far.
    fn end_of_part(&self, span: Span) -> u64 {
        let least = span.offset + u64::from(span.length);
        let found = self.lacks.partition_point(|lack| lack.end <= span.offset);
        let lack = self.lacks.get(found).filter(|lack| lack.contains(&span.offset));
        // Whole blocks: one that is cut in two costs two requests.
        let block = u64::from(span.length).max(1);
        let part = PART.min(self.shared.most.load(Ordering::Relaxed)) / block * block;
        lack.map_or(least, |lack| lack.end.min(span.offset + part)).clamp(least, self.size.max(least))
    }

    fn tell(&self, what: Happened) {
        (self.say)(Event { digest: self.digest, job: self.number, what });
    }
}

/// Blocks that are asked for and have not come, by where they lie.
#[derive(Default)]
struct Wanted(BTreeMap<u64, (u32, Span)>);

impl Wanted {
    fn take(&mut self, need: &Need, size: u64) {
        match answer(need, size) {
            Ok(spans) => self.0.extend(spans.map(|span| (span.offset, (need.transfer, span)))),
            Err(error) => tracing::debug!(%error, "a request of our own that cannot be answered"),
        }
    }

    /// The next one: as the answer that is being read goes on, or else the lowest.
    fn next(&self, stream: Option<&Stream>) -> Option<(u32, Span)> {
        let ahead = stream.filter(|stream| !stream.is_read()).and_then(|stream| {
            self.0.range(stream.at()..).next().filter(|(offset, _)| stream.reaches(**offset))
        });
        ahead.or_else(|| self.0.iter().next()).map(|(_, wanted)| *wanted)
    }

    fn remove(&mut self, span: &Span) {
        self.0.remove(&span.offset);
    }
}
