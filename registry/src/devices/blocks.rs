//! Blocks: answered without state, at a bounded rate, and only to devices that need them.
//!
//! A device gets the blobs of packages that are assigned to it and its own desired state, nothing
//! else; what is not for it does not exist for it. Whoever asks for more than the rate allows gets a
//! part, and is told when to ask for the rest; so is everyone when too many requests wait, or when the
//! broker takes blocks more slowly than they are asked for. Blocks give way to all other messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use selvedge_mqtt::Handle;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::{self, Bucket, HEADER, Rate};
use selvedge_protocol::message::{Need, Refusal};
use selvedge_protocol::topic::{Kind, Topic};
use tokio::sync::Semaphore;

use crate::app::App;
use crate::clock;
use crate::error::Error;
use crate::notices::DAMAGED_BLOB;

use super::found::Found;
use super::frames::{Frames, Source};

/// What looking for a desired state costs, in bytes of the device's rate.
const REBUILD: u64 = 256 << 10;

/// How long a device waits when there is no room for more blocks, in milliseconds.
const FULL_MS: u32 = 250;

/// The largest window with its headers: what one request may bring.
const WINDOW: u64 = (1 << 20) + (64 << 10);

/// What answering may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes a second to one device: stops one from starving the others.
    pub device: Rate,
    /// Bytes a second to all: stops them together from filling the link and the disk's queue.
    pub all: Rate,
    /// Requests that are answered or wait: stops a flood from filling memory.
    pub requests: usize,
    /// Desired states kept in memory for devices that pull them.
    pub states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of_rates(64 << 20, 512 << 20)
    }
}

impl Limits {
    /// Limits with these bytes a second for one device and for all. An eighth of a second's worth
    /// may come at once, and a whole window in any case.
    pub fn of_rates(device: u64, all: u64) -> Self {
        let rate =
            |per_second: u64| Rate { per_second: per_second.max(1), burst: (per_second / 8).max(WINDOW) };
        Self { device: rate(device), all: rate(all), requests: 64, states: 16 }
    }
}

/// Answers requests for blocks.
#[derive(Debug)]
pub struct Blocks {
    app: Arc<App>,
    limits: Limits,
    free: Semaphore,
    buckets: Mutex<Buckets>,
    states: Mutex<Vec<Offered>>,
    found: Found,
    frames: Arc<Frames>,
}

/// A desired state that a device was told to pull.
#[derive(Debug)]
struct Offered {
    device: DeviceId,
    digest: Digest,
    bytes: Arc<Vec<u8>>,
}

#[derive(Debug)]
struct Buckets {
    all: Bucket,
    devices: BTreeMap<DeviceId, Bucket>,
}

impl Buckets {
    /// As [`Blocks::share`]; the device's bucket fills at `rate`.
    fn share(
        &mut self,
        device: &DeviceId,
        rate: Rate,
        spans: &[block::Span],
        now: Duration,
    ) -> (usize, Option<Duration>) {
        let costs: Vec<u64> = spans.iter().map(cost_of).collect();
        // Only enrolled devices come here: there are as many as targets, at most.
        let mine = self.devices.entry(device.clone()).or_insert_with(|| Bucket::new(rate, now));
        block::take_of_both(mine, &mut self.all, &costs, now)
    }

    /// What was taken for blocks that did not go out is there for others.
    fn give_back(&mut self, device: &DeviceId, cost: u64) {
        self.all.give_back(cost);
        if let Some(mine) = self.devices.get_mut(device) {
            mine.give_back(cost);
        }
    }
}

impl Blocks {
    /// Ready to answer.
    pub fn new(app: Arc<App>, limits: Limits, now: Duration) -> Self {
        let all = Bucket::new(limits.all, now);
        Self {
            app,
            free: Semaphore::new(limits.requests),
            buckets: Mutex::new(Buckets { all, devices: BTreeMap::new() }),
            states: Mutex::new(Vec::new()),
            found: Found::default(),
            frames: Arc::default(),
            limits,
        }
    }

    /// Keep a desired state that a device was told to pull.
    pub fn offer(&self, device: &DeviceId, digest: Digest, bytes: Arc<Vec<u8>>) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|offered| offered.device != *device);
        if states.len() >= self.limits.states {
            states.remove(0);
        }
        states.push(Offered { device: device.clone(), digest, bytes });
    }

    /// Answer one request, now or never: nothing waits here but the disk.
    pub async fn answer(&self, device: &DeviceId, need: &Need, handle: &Handle) {
        let refusal = match self.send(device, need, handle).await {
            Ok(None) => return,
            Ok(Some(refusal)) => refusal,
            Err(error) => {
                tracing::error!(%device, "cannot answer a request for blocks: {}", error.chain());
                Refusal::Busy { retry_after_ms: 5_000 }
            }
        };
        match block::refusal_frame(need.transfer, &refusal) {
            // Behind the blocks that were sent: it speaks of the rest. Where there is no room for it, that
            // is what it has to say.
            Ok(frame) => {
                if !publish(handle, device, [frame.clone().into()]) {
                    let topic = Topic::new(device.clone(), Kind::Block).to_string();
                    if let Err(error) = handle.publish(topic, Kind::Block.qos(), frame) {
                        tracing::debug!(%device, "a refusal was not sent: {error}");
                    }
                }
            }
            Err(error) => tracing::error!("cannot write a refusal: {error}"),
        }
    }

    async fn send(&self, device: &DeviceId, need: &Need, handle: &Handle) -> Result<Option<Refusal>, Error> {
        let Ok(_permit) = self.free.try_acquire() else {
            return Ok(Some(Refusal::Busy { retry_after_ms: 200 }));
        };
        let Some((size, source)) = self.find(device, &need.digest).await? else {
            return Ok(Some(Refusal::Unknown));
        };
        let spans: Vec<block::Span> = match block::answer(need, size) {
            Ok(spans) => spans.collect(),
            Err(error) => {
                tracing::debug!(%device, "a request for blocks is not answered: {error}");
                return Ok(Some(Refusal::Unknown));
            }
        };
        let (given, wait) = self.share(device, &spans, clock::running());
        let spans = spans[..given].to_vec();
        let costs: Vec<u64> = spans.iter().map(cost_of).collect();
        let frames = match self.frames.read_now(&source, need.transfer, &spans) {
            Some(frames) => frames,
            None => self.read(source, need, spans).await?,
        };
        let mut tried = 0_usize;
        // The broker takes them slowly: the device's bitmap asks for the rest again.
        if !publish(handle, device, frames.into_iter().inspect(|_| tried += 1)) {
            // The last that was tried was not taken.
            let unsent = costs.iter().skip(tried.saturating_sub(1)).sum();
            self.buckets.lock().unwrap_or_else(PoisonError::into_inner).give_back(device, unsent);
            return Ok(Some(Refusal::Busy { retry_after_ms: FULL_MS }));
        }
        Ok(wait.map(busy))
    }

    /// Reads blocks beside: they are on the disk.
    async fn read(&self, source: Source, need: &Need, spans: Vec<block::Span>) -> Result<Vec<Bytes>, Error> {
        let (transfer, frames) = (need.transfer, Arc::clone(&self.frames));
        let read = tokio::task::spawn_blocking(move || frames.read(&source, transfer, &spans));
        read.await.map_err(|error| Error::File {
            action: "read blocks from",
            path: need.digest.hex().into(),
            source: std::io::Error::other(error),
        })?
    }

    /// How many of the blocks may be sent now, and how long the device is to wait for the rest.
    fn share(&self, device: &DeviceId, spans: &[block::Span], now: Duration) -> (usize, Option<Duration>) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.share(device, self.limits.device, spans, now)
    }

    /// The blob's size and bytes, if it is for this device; `None` for everyone and everything else.
    async fn find(&self, device: &DeviceId, digest: &Digest) -> Result<Option<(u64, Source)>, Error> {
        let changes = self.app.store.changes();
        let size = match self.found.get(device, digest, changes) {
            Some(size) => Some(size),
            None => self.app.store.blob_for(device, digest).await?,
        };
        if let Some(size) = size {
            if let Some(reader) = self.app.blobs.reader(digest, size)? {
                self.found.keep(device, digest, size, changes);
                return Ok(Some((size, Source::File(reader))));
            }
            let what = format!(
                "the registry's copy of blob {digest} is missing or damaged; `selvedge release` of its \
                 package sends it again"
            );
            self.app.notices.keep(&self.app.store, device, DAMAGED_BLOB, &what).await?;
            return Ok(None);
        }
        let kept = {
            let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            let mine = states.iter().find(|offered| offered.device == *device && offered.digest == *digest);
            mine.map(|offered| Arc::clone(&offered.bytes))
        };
        let bytes = match kept {
            Some(bytes) => bytes,
            // After a restart the same bytes come from the database, if they are still the newest.
            None => match self.rebuild(device).await? {
                Some(bytes) if Digest::of(&bytes) == *digest => {
                    let bytes = Arc::new(bytes);
                    self.offer(device, *digest, Arc::clone(&bytes));
                    bytes
                }
                _ => return Ok(None),
            },
        };
        Ok(Some((bytes.len() as u64, Source::Memory(bytes))))
    }

    async fn rebuild(&self, device: &DeviceId) -> Result<Option<Vec<u8>>, Error> {
        let enrolled = self.app.store.target(device).await?.is_some_and(|target| target.public_key.is_some());
        // Whoever asks for what is not there must not make the registry work without bound.
        if !enrolled || self.take(device, REBUILD, clock::running()).is_err() {
            return Ok(None);
        }
        let claims = self.app.claims(device).await?;
        self.app.trust.bundle(&self.app.store, device, &claims).await
    }

    fn take(&self, device: &DeviceId, bytes: u64, now: Duration) -> Result<(), Refusal> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        // Only enrolled devices come here: there are as many as targets, at most.
        let rate = self.limits.device;
        let mine = buckets.devices.entry(device.clone()).or_insert_with(|| Bucket::new(rate, now));
        let before = mine.clone();
        mine.take(bytes, now).map_err(busy)?;
        if let Err(wait) = buckets.all.take(bytes, now) {
            // Nothing is sent: nothing is taken.
            buckets.devices.insert(device.clone(), before);
            return Err(busy(wait));
        }
        Ok(())
    }
}

fn busy(wait: Duration) -> Refusal {
    Refusal::Busy { retry_after_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1) }
}

/// Whether all of them were taken.
fn publish(handle: &Handle, device: &DeviceId, frames: impl IntoIterator<Item = Bytes>) -> bool {
    let topic = Topic::new(device.clone(), Kind::Block);
    match handle.publish_cargo(&topic.to_string(), frames) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%device, "a block was not sent: {error}");
            false
        }
    }
}

fn cost_of(span: &block::Span) -> u64 {
    u64::from(span.length) + HEADER as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_broker_did_not_take_costs_nobody_anything() {
        let (rate, now) = (Rate { per_second: 1, burst: 50_000 }, Duration::ZERO);
        let mut buckets = Buckets { all: Bucket::new(rate, now), devices: BTreeMap::new() };
        let span = |number| block::Span { number, offset: u64::from(number) * 16_384, length: 16_384 };
        let spans: Vec<_> = (0..3).map(span).collect();
        let (one, other): (DeviceId, DeviceId) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!(buckets.share(&one, rate, &spans, now), (3, None));
        assert_eq!(buckets.share(&one, rate, &spans, now).0, 0);
        buckets.give_back(&one, spans.iter().map(cost_of).sum());
        assert_eq!(buckets.share(&one, rate, &spans, now), (3, None));
        assert_eq!(buckets.share(&other, rate, &spans, now).0, 0, "all of them have used it up");
        buckets.give_back(&one, spans.iter().map(cost_of).sum());
        assert_eq!(buckets.share(&other, rate, &spans, now), (3, None));
    }
}
