//! One transfer.

use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, Event, Layout, PACKET_OVERHEAD, Pace, Plan};
use selvedge_protocol::message::{Need, Refusal};

use super::assembly::Assembly;
use super::{Chunks, Failure, Progress, Target};
use crate::store::{Put, Settled};

/// Kept chunks are made durable after so many (16 MiB), or after [`UNSAVED_FOR`]: a power cut costs
/// no more than twice that, a memory card is not worn out by it, and a fast link does not stand still for it.
const UNSAVED_CHUNKS: u32 = 256;
const UNSAVED_FOR: Duration = Duration::from_secs(5);
/// How often in a row the registry may say that it does not know the blob.
const UNKNOWN_OFTEN_ENOUGH: u32 = 3;

pub(super) struct Fetch<C> {
    pub digest: Digest,
    pub target: C,
    plan: Plan,
    assembly: Assembly,
    kept: u64,
    /// Chunks that were kept since this was last taken.
    pub chunks: u64,
    spoiled: u64,
    unsaved: u32,
    unsaved_since: Option<Duration>,
    /// Chunks of which it is still to be said what has become of them.
    later: u32,
}

impl<C: Chunks> Fetch<Target<C>> {
    /// Whether it is for the store, and not a desired state.
    pub fn is_cargo(&self) -> bool {
        matches!(self.target, Target::Store(_))
    }
}

impl<C: Chunks> Fetch<C> {
    /// A transfer of what `target` lacks. Not connected at first.
    pub fn new(
        transfer: u32,
        digest: Digest,
        block: BlockSize,
        target: C,
        seed: u64,
    ) -> Result<Self, (C, Failure<C::Error>)> {
        let Some(layout) = Layout::new(target.size(), block) else {
            return Err((target, Failure::TooLarge));
        };
        let plan = Plan::new(transfer, digest, layout, |chunk| target.have(chunk), seed);
        let kept = (0..layout.chunks())
            .filter(|&chunk| target.have(chunk))
            .filter_map(|chunk| layout.chunk(chunk))
            .map(|chunk| u64::from(chunk.length))
            .sum();
        Ok(Self {
            digest,
            target,
            plan,
            assembly: Assembly::default(),
            kept,
            chunks: 0,
            spoiled: 0,
            unsaved: 0,
            unsaved_since: None,
            later: 0,
        })
    }

    pub fn transfer(&self) -> u32 {
        self.plan.transfer()
    }

    pub fn block_size(&self) -> BlockSize {
        self.plan.layout().block_size()
    }

    pub fn is_complete(&self) -> bool {
        self.plan.is_complete()
    }

    pub fn progress(&self) -> Progress {
        let Self { digest, kept, spoiled, .. } = *self;
        Progress { digest, bytes: kept, size: self.plan.layout().size(), spoiled }
    }

    pub fn connected(&mut self, now: Duration, pace: &mut Pace) {
        self.plan.step(now, Event::Connected, pace);
    }

    /// Saves what came, since a device that loses its link may lose its power next.
    pub fn disconnected(&mut self, now: Duration, pace: &mut Pace) -> Result<(), Failure<C::Error>> {
        self.plan.step(now, Event::Disconnected, pace);
        self.save()?;
        // It has waited for what was still being kept.
        self.settle(now, pace)
    }

    /// Waits before anything is asked.
    pub fn pause(&mut self, now: Duration, wait: Duration, pace: &mut Pace) {
        self.plan.step(now, Event::Busy(wait), pace);
    }

    pub fn block(
        &mut self,
        now: Duration,
        number: u32,
        bytes: &[u8],
        pace: &mut Pace,
    ) -> Result<(), Failure<C::Error>> {
        let layout = *self.plan.layout();
        let Some(block) = layout.block(number).filter(|span| span.length as usize == bytes.len()) else {
            tracing::debug!(number, length = bytes.len(), "a block that does not fit its blob");
            return Ok(());
        };
        if !self.plan.wants(number) || !self.assembly.put(&layout, block, bytes) {
            return Ok(());
        }
        self.plan.step(now, Event::Block(number), pace);
        let chunk = number / layout.per_chunk();
        if self.plan.is_whole(chunk) {
            self.whole(now, chunk, pace)?;
        }
        Ok(())
    }

    pub fn refused(
        &mut self,
        now: Duration,
        refusal: &Refusal,
        pace: &mut Pace,
    ) -> Result<(), Failure<C::Error>> {
        match refusal {
            Refusal::Busy { retry_after_ms } => {
                let wait = Duration::from_millis((*retry_after_ms).into());
                self.plan.step(now, Event::Busy(wait), pace);
            }
            Refusal::Unknown => {
                self.plan.step(now, Event::Unknown, pace);
                if self.plan.unknown() >= UNKNOWN_OFTEN_ENOUGH {
                    return Err(Failure::Unknown);
                }
            }
        }
        Ok(())
    }

    pub fn heard(&mut self, now: Duration, pace: &mut Pace) {
        self.plan.step(now, Event::Heard, pace);
    }

    /// Looks at what may have shown that something is lost.
    pub fn look(&mut self, now: Duration, pace: &mut Pace) {
        self.plan.step(now, Event::Tick, pace);
    }

    /// Saves what came, where it is time.
    pub fn tick(&mut self, now: Duration) -> Result<(), Failure<C::Error>> {
        if self.unsaved_since.is_some_and(|since| now >= since + UNSAVED_FOR) {
            self.save()?;
        }
        Ok(())
    }

    /// At most so many blocks.
    pub fn ask(&mut self, now: Duration, blocks: u32, pace: &mut Pace) -> Option<Need> {
        self.plan.ask(now, blocks, pace)
    }

    /// Bytes of blocks that are asked for and have not come.
    pub fn asked(&self) -> u32 {
        self.plan.in_flight()
    }

    /// Bytes that are asked for and have not come, headers included.
    pub fn in_flight(&self) -> u64 {
        let bytes = self.plan.in_flight();
        let packets = bytes.div_ceil(self.block_size().bytes());
        u64::from(bytes) + u64::from(packets) * u64::from(PACKET_OVERHEAD)
    }

    pub fn wake_at(&self, pace: &Pace, others: bool) -> Option<Duration> {
        [self.plan.wake_at(pace, others), self.save_at()].into_iter().flatten().min()
    }

    /// When to tick a transfer that may not ask: what is on its way may be lost, what came is saved.
    pub fn wakes_though_held_at(&self, pace: &Pace) -> Option<Duration> {
        let late = self.plan.wake_at(pace, false).filter(|_| self.plan.in_flight() > 0);
        [late, self.save_at()].into_iter().flatten().min()
    }

    fn save_at(&self) -> Option<Duration> {
        self.unsaved_since.map(|since| since + UNSAVED_FOR)
    }

    pub fn save(&mut self) -> Result<(), Failure<C::Error>> {
        if self.unsaved > 0 || self.later > 0 {
            self.target.checkpoint().map_err(Failure::Keep)?;
            self.unsaved = 0;
        }
        self.unsaved_since = None;
        Ok(())
    }

    /// Takes note of what has become of chunks meanwhile.
    pub fn settle(&mut self, now: Duration, pace: &mut Pace) -> Result<(), Failure<C::Error>> {
        for Settled { chunk, put, bytes } in self.target.settled().map_err(Failure::Keep)? {
            self.later = self.later.saturating_sub(1);
            self.judged(now, chunk, put, bytes, pace)?;
        }
        Ok(())
    }

    fn whole(&mut self, now: Duration, chunk: u32, pace: &mut Pace) -> Result<(), Failure<C::Error>> {
        let Some(bytes) = self.assembly.take(chunk) else { return Ok(()) };
        let (put, bytes) = self.target.take(chunk, bytes).map_err(Failure::Keep)?;
        self.judged(now, chunk, put, bytes, pace)
    }

    fn judged(
        &mut self,
        now: Duration,
        chunk: u32,
        put: Put,
        bytes: Vec<u8>,
        pace: &mut Pace,
    ) -> Result<(), Failure<C::Error>> {
        match put {
            Put::Kept => {
                self.kept += bytes.len() as u64;
                self.chunks += 1;
                self.unsaved += 1;
                self.unsaved_since.get_or_insert(now);
                self.plan.step(now, Event::Kept(chunk), pace);
                if self.unsaved >= UNSAVED_CHUNKS {
                    self.target.checkpoint_beside().map_err(Failure::Keep)?;
                    self.unsaved = 0;
                    self.unsaved_since = None;
                }
            }
            Put::Known => self.plan.step(now, Event::Kept(chunk), pace),
            Put::Spoiled => {
                self.spoiled += 1;
                tracing::warn!(digest = %self.digest, chunk, "a chunk came wrong and is asked for again");
                self.plan.step(now, Event::Spoiled(chunk), pace);
            }
            // Until then it is open: the plan bounds how many are.
            Put::Later => {
                self.later += 1;
                return Ok(());
            }
        }
        self.assembly.give_back(bytes);
        Ok(())
    }
}
