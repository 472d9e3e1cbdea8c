//! Answering a device's requests for blocks: paced, without state between requests, and only for
//! what it was told to run.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use selvedge_package::chunks::ChunkIndexer;
use selvedge_package::{Digest, FilePath};
use selvedge_protocol::block::{self, Bucket, HEADER, Rate};
use selvedge_protocol::message::{Need, Refusal};

use crate::failure::Failure;
use crate::packaging::layout::Layout;

/// Bytes a second; what one request may bring comes at once in any case.
const RATE: Rate = Rate { per_second: 64 << 20, burst: 8 << 20 };
/// Requests a second, each of which may read the disk.
const REQUESTS: Rate = Rate { per_second: 2_000, burst: 500 };
/// Bytes read in one piece when a package is verified.
const PIECE: usize = 1 << 20;

/// Blobs that a device may have.
pub struct Blocks {
    blobs: BTreeMap<Digest, (PathBuf, u64)>,
    open: BTreeMap<Digest, File>,
    /// A desired state that the device was told to pull.
    offered: Option<(Digest, Vec<u8>)>,
    rate: Bucket,
    requests: Bucket,
    /// Bytes of blobs that were sent.
    pub sent: u64,
}

impl Blocks {
    /// The blobs of a package; `now` is the time since any fixed start, here and below.
    pub fn of(layout: &Layout, now: Duration) -> Self {
        let bundle = layout.bundle();
        let all = bundle.blobs().into_iter().map(|blob| (blob.digest, blob.size));
        let all = all.chain([(bundle.digest(), bundle.length())]);
        Self {
            blobs: all.map(|(digest, size)| (digest, (layout.blob(&digest), size))).collect(),
            open: BTreeMap::new(),
            offered: None,
            rate: Bucket::new(RATE, now),
            requests: Bucket::new(REQUESTS, now),
            sent: 0,
        }
    }

    /// The device is told to pull this.
    pub fn offer(&mut self, digest: Digest, bytes: Vec<u8>) {
        self.offered = Some((digest, bytes));
    }

    /// The payloads that answer a request. `known`: the device has proved who it is, and may have
    /// more than its own desired state. A request that breaks the protocol is refused.
    pub fn answer(&mut self, need: &Need, known: bool, now: Duration) -> Result<Vec<Vec<u8>>, Failure> {
        match self.frames(need, known, now)? {
            Ok(frames) => Ok(frames),
            Err(refusal) => Ok(block::refusal_frame(need.transfer, &refusal).into_iter().collect()),
        }
    }

    fn frames(
        &mut self,
        need: &Need,
        known: bool,
        now: Duration,
    ) -> Result<Result<Vec<Vec<u8>>, Refusal>, Failure> {
        if let Err(wait) = self.requests.take(1, now) {
            return Ok(Err(busy(wait)));
        }
        let offered = self.offered.as_ref().filter(|(digest, _)| *digest == need.digest);
        let blob = self.blobs.get(&need.digest).filter(|_| known);
        let size = match (offered, blob) {
            (Some((_, bytes)), _) => bytes.len() as u64,
            (None, Some((_, size))) => *size,
            (None, None) => return Ok(Err(Refusal::Unknown)),
        };
        let Ok(spans) = block::answer(need, size) else {
            return Ok(Err(Refusal::Unknown));
        };
        let spans: Vec<block::Span> = spans.collect();
        let cost = spans.iter().map(|span| u64::from(span.length) + HEADER as u64).sum();
        if let Err(wait) = self.rate.take(cost, now) {
            return Ok(Err(busy(wait)));
        }
        let mut frames = Vec::with_capacity(spans.len());
        for span in spans {
            let length = span.length as usize;
            let mut frame = block::header(need.transfer, span.number).to_vec();
            match (offered, blob) {
                (Some((_, bytes)), _) => {
                    // The spans were made for this length.
                    let from = usize::try_from(span.offset).unwrap_or(usize::MAX);
                    frame.extend_from_slice(bytes.get(from..from.saturating_add(length)).unwrap_or_default());
                }
                (None, Some((path, _))) => {
                    let file = match self.open.entry(need.digest) {
                        std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
                        std::collections::btree_map::Entry::Vacant(none) => {
                            none.insert(File::open(path).map_err(Failure::file("open", path))?)
                        }
                    };
                    frame.resize(HEADER + length, 0);
                    file.read_exact_at(&mut frame[HEADER..], span.offset)
                        .map_err(Failure::file("read", path))?;
                    self.sent += u64::from(span.length);
                }
                (None, None) => {}
            }
            frames.push(frame);
        }
        Ok(Ok(frames))
    }
}

fn busy(wait: Duration) -> Refusal {
    Refusal::Busy { retry_after_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1) }
}

/// Reads every blob of the package and compares its digest: what is signed for is what is there.
pub async fn verify(layout: &Layout, read: impl Fn(u64)) -> Result<(), Failure> {
    use std::io::Read as _;
    let named: BTreeMap<Digest, &FilePath> =
        layout.bundle().files().map(|file| (file.digest, file.path)).collect();
    let mut piece = vec![0; PIECE];
    for blob in layout.bundle().blobs() {
        let path = layout.blob(&blob.digest);
        let mut file = File::open(&path).map_err(Failure::file("open", &path))?;
        let mut indexer = ChunkIndexer::new();
        loop {
            let length = file.read(&mut piece).map_err(Failure::file("read", &path))?;
            if length == 0 {
                break;
            }
            indexer.update(&piece[..length]);
            read(length as u64);
            // Lets Ctrl-C through between two pieces.
            tokio::task::yield_now().await;
        }
        if indexer.finish().digest != blob.digest {
            let name =
                named.get(&blob.digest).map_or_else(|| path.display().to_string(), ToString::to_string);
            return Err(Failure::Untrusted {
                what: format!("{name} is not what the package says: it was changed since it was packaged"),
                advice: "make the package again with `selvedge package`, or take a whole copy".to_owned(),
                source: Some(format!("the digest of {} is another one", path.display()).into()),
            });
        }
    }
    Ok(())
}
