//! Several transfers: a few at once, the others wait. They share one window.

use std::collections::VecDeque;
use std::time::Duration;

use selvedge_package::Digest;
use selvedge_protocol::block::{BlockSize, Frame, PACKET_OVERHEAD, Pace};
use selvedge_protocol::message::Need;

use super::fetch::Fetch;
use super::memory::{LARGEST_PULL, Memory};
use super::{Action, Chunks, Failure, Progress, Target};

/// Transfers that run at the same time; a pull into memory comes on top.
pub const AT_ONCE: usize = 3;
/// Pulls into memory may come to wrong bytes this often.
const MISMATCHES: u32 = 4;

/// A pull that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// Larger than [`LARGEST_PULL`].
    #[error("{0} bytes are more than the {LARGEST_PULL} that are pulled into memory")]
    TooLarge(u64),
}

/// All transfers of a device. `now` is the time since any fixed moment, and never goes back.
pub struct Transfers<C: Chunks> {
    running: Vec<Fetch<Target<C>>>,
    waiting: VecDeque<(Digest, Target<C>)>,
    link: Link,
    pace: Pace,
    /// Bytes for the store that may still be asked for, those in flight included; `None`: any number.
    allowed: Option<u64>,
    chunks: u64,
    next_transfer: u32,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down,
    Up(BlockSize),
}

impl<C: Chunks> Transfers<C> {
    /// None yet, no connection. `seed` is any random number: it spreads a fleet's waiting times, and
    /// keeps late blocks of an earlier start of the program from being taken for this one's.
    pub fn new(seed: u64) -> Self {
        Self {
            running: Vec::new(),
            waiting: VecDeque::new(),
            link: Link::Down,
            pace: Pace::new(),
            allowed: None,
            chunks: 0,
            next_transfer: seed as u32,
            seed,
        }
    }

    /// Transfers what `target` lacks of a blob. One that is under way already goes on, and `target`
    /// is dropped.
    pub fn add(&mut self, now: Duration, digest: Digest, target: C) -> Vec<Action<C>> {
        if !self.contains(&digest) {
            self.waiting.push_back((digest, Target::Store(target)));
        }
        self.settle(now)
    }

    /// Pulls a blob of at most [`LARGEST_PULL`] bytes into memory, before all others and instead of an
    /// earlier one that has not come yet.
    pub fn pull(&mut self, now: Duration, digest: Digest, size: u64) -> Result<Vec<Action<C>>, PullError> {
        let memory = Memory::new(digest, size).ok_or(PullError::TooLarge(size))?;
        if !self.contains(&digest) {
            // One at a time: the newest is the one that counts, and memory is bounded.
            self.waiting.retain(|(_, target)| matches!(target, Target::Store(_)));
            self.running.retain(|fetch| matches!(fetch.target, Target::Store(_)));
            self.waiting.push_front((digest, Target::Memory(memory)));
        }
        Ok(self.settle(now))
    }

    /// Whether a blob is under way or waits.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.running.iter().any(|fetch| fetch.digest == *digest)
            || self.waiting.iter().any(|(other, _)| other == digest)
    }

    /// Ends a transfer whose blob is wanted no longer. What came is saved where that works, and its
    /// destination returned.
    pub fn cancel(&mut self, now: Duration, digest: &Digest) -> (Option<C>, Vec<Action<C>>) {
        let target = if let Some(index) = self.running.iter().position(|f| f.digest == *digest) {
            let mut fetch = self.running.swap_remove(index);
            if fetch.save().is_err() {
                tracing::warn!(%digest, "what came of a cancelled transfer could not be saved");
            } else if fetch.settle(now, &mut self.pace).is_ok() && fetch.is_cargo() {
                self.chunks += fetch.chunks;
            }
            Some(fetch.target)
        } else if let Some(index) = self.waiting.iter().position(|(other, _)| other == digest) {
            self.waiting.remove(index).map(|(_, target)| target)
        } else {
            None
        };
        let target = match target {
            Some(Target::Store(target)) => Some(target),
            Some(Target::Memory(_)) | None => None,
        };
        (target, self.settle(now))
    }

    /// There is a connection that carries packets of at most so many bytes.
    pub fn connected(&mut self, now: Duration, maximum_packet: u32) -> Vec<Action<C>> {
        let Some(block) = BlockSize::under(maximum_packet) else {
            tracing::warn!(maximum_packet, "the broker's packet limit is too small for any block");
            return self.disconnected(now);
        };
        match self.link {
            Link::Down => self.pace.reconnected(),
            // A second connection took the first one's place.
            Link::Up(_) => self.pace.resumed(),
        }
        self.link = Link::Up(block);
        let mut actions = Vec::new();
        for mut fetch in std::mem::take(&mut self.running) {
            if fetch.block_size() == block {
                fetch.connected(now, &mut self.pace);
                self.running.push(fetch);
            } else {
                let Fetch { digest, target, .. } = fetch;
                actions.extend(self.run(now, block, digest, target));
            }
        }
        actions.extend(self.settle(now));
        actions
    }

    /// There is none.
    pub fn disconnected(&mut self, now: Duration) -> Vec<Action<C>> {
        self.link = Link::Down;
        self.each(now, |fetch, pace| fetch.disconnected(now, pace))
    }

    /// From now on blobs for the store may bring so many bytes more, headers included and what is in
    /// flight, too; `None`: any number. With less than a block they wait. A pull into memory never
    /// does: a desired state is no cargo.
    pub fn allow(&mut self, now: Duration, bytes: Option<u64>) -> Vec<Action<C>> {
        self.allowed = bytes;
        self.settle(now)
    }

    /// Whether anything is asked for that has not come.
    pub fn awaits_blocks(&self) -> bool {
        self.running.iter().any(|fetch| fetch.in_flight() > 0)
    }

    /// Bytes that are asked for and have not come, headers included.
    pub fn in_flight(&self) -> u64 {
        self.running.iter().filter(|fetch| fetch.is_cargo()).map(Fetch::in_flight).sum()
    }

    /// A payload of `dn/blk`. What is no frame, or belongs to no transfer, is ignored.
    pub fn frame(&mut self, now: Duration, payload: &[u8]) -> Vec<Action<C>> {
        let frame = match Frame::decode(payload) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(%error, "ignored a payload that is no block");
                return Vec::new();
            }
        };
        let (Frame::Block { transfer, .. } | Frame::Refusal { transfer, .. }) = frame;
        self.each(now, |fetch, pace| {
            if fetch.transfer() != transfer {
                return Ok(());
            }
            match &frame {
                Frame::Block { number, bytes, .. } => fetch.block(now, *number, bytes, pace),
                Frame::Refusal { refusal, .. } => fetch.refused(now, refusal, pace),
            }
        })
    }

    /// The registry said something: what it did not answer is asked for again now, not when the
    /// growing wait is over.
    pub fn heard(&mut self, now: Duration) -> Vec<Action<C>> {
        self.each(now, |fetch, pace| {
            fetch.heard(now, pace);
            Ok(())
        })
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Action<C>> {
        self.each(now, |fetch, _| fetch.tick(now))
    }

    /// When to call [`Transfers::tick`], if nothing else happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        let held = |fetch: &&Fetch<Target<C>>| fetch.is_cargo() && self.blocks_allowed(fetch) == 0;
        let all = self.running.iter().map(Fetch::asked).sum::<u32>();
        let due = |fetch: &Fetch<Target<C>>| match held(&fetch) {
            true => fetch.wakes_though_held_at(&self.pace),
            false => fetch.wake_at(&self.pace, all > fetch.asked()),
        };
        self.running.iter().filter_map(due).min()
    }

    /// How far the running transfers are.
    pub fn progress(&self) -> impl Iterator<Item = Progress> {
        self.running.iter().map(Fetch::progress)
    }

    /// How many chunks of blobs for the store have come, were right, and were kept.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether nothing runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn each(
        &mut self,
        now: Duration,
        mut event: impl FnMut(&mut Fetch<Target<C>>, &mut Pace) -> Result<(), Failure<C::Error>>,
    ) -> Vec<Action<C>> {
        let mut actions = Vec::new();
        for mut fetch in std::mem::take(&mut self.running) {
            let pace = &mut self.pace;
            let outcome = fetch.settle(now, pace).and_then(|()| event(&mut fetch, pace));
            if fetch.is_cargo() {
                self.chunks += std::mem::take(&mut fetch.chunks);
            }
            match outcome {
                Ok(()) => self.running.push(fetch),
                Err(why) => actions.push(failed(fetch.digest, why, fetch.target)),
            }
        }
        actions.extend(self.settle(now));
        actions
    }

    /// Ends what is complete, starts what may run, asks for what may be asked.
    fn settle(&mut self, now: Duration) -> Vec<Action<C>> {
        let mut actions = Vec::new();
        loop {
            for fetch in std::mem::take(&mut self.running) {
                if fetch.is_complete() {
                    actions.extend(self.complete(now, fetch));
                } else {
                    self.running.push(fetch);
                }
            }
            let urgent = matches!(self.waiting.front(), Some((_, Target::Memory(_))));
            let room = AT_ONCE + usize::from(urgent);
            if self.running.len() >= room {
                break;
            }
            let Some((digest, target)) = self.waiting.pop_front() else { break };
            let block = match self.link {
                Link::Up(block) => block,
                Link::Down => BlockSize::PREFERRED,
            };
            actions.extend(self.run(now, block, digest, target));
        }
        for index in 0..self.running.len() {
            self.apart(index);
            self.running[index].look(now, &mut self.pace);
        }
        while let Some(need) = self.ask(now) {
            actions.push(Action::Publish(need));
        }
        actions
    }

    /// The next request: of a desired state before all others, and then of whoever has least in flight.
    fn ask(&mut self, now: Duration) -> Option<Need> {
        let mut turns: Vec<usize> = (0..self.running.len()).collect();
        turns.sort_by_key(|&index| (self.running[index].is_cargo(), self.running[index].asked()));
        turns.into_iter().find_map(|index| {
            self.apart(index);
            let blocks = self.blocks_allowed(&self.running[index]);
            self.running[index].ask(now, blocks, &mut self.pace)
        })
    }

    /// Tells the pace what all but one transfer have in flight.
    fn apart(&mut self, index: usize) {
        let all = self.running.iter().map(Fetch::asked).sum::<u32>();
        self.pace.set_others(all - self.running[index].asked());
    }

    /// How many blocks a transfer may ask for now.
    fn blocks_allowed(&self, fetch: &Fetch<Target<C>>) -> u32 {
        let Some(allowed) = self.allowed.filter(|_| fetch.is_cargo()) else { return u32::MAX };
        let packet = u64::from(fetch.block_size().bytes() + PACKET_OVERHEAD);
        u32::try_from(allowed.saturating_sub(self.in_flight()) / packet).unwrap_or(u32::MAX)
    }

    fn run(
        &mut self,
        now: Duration,
        block: BlockSize,
        digest: Digest,
        target: Target<C>,
    ) -> Option<Action<C>> {
        self.next_transfer = self.next_transfer.wrapping_add(1);
        let seed = self.seed ^ u64::from(self.next_transfer).rotate_left(32);
        match Fetch::new(self.next_transfer, digest, block, target, seed) {
            Ok(mut fetch) => {
                if self.link != Link::Down {
                    fetch.connected(now, &mut self.pace);
                }
                self.running.push(fetch);
                None
            }
            Err((target, why)) => Some(failed(digest, why, target)),
        }
    }

    fn complete(&mut self, now: Duration, fetch: Fetch<Target<C>>) -> Option<Action<C>> {
        let Fetch { digest, target, .. } = fetch;
        let mut memory = match target {
            Target::Store(target) => return Some(Action::Done { digest, target }),
            Target::Memory(memory) => memory,
        };
        match memory.finish() {
            Ok(bytes) => Some(Action::Pulled { digest, bytes }),
            Err(times) if times >= MISMATCHES => {
                Some(Action::Failed { digest, why: Failure::Corrupt, target: None })
            }
            Err(times) => {
                tracing::debug!(%digest, times, "a pulled blob came wrong and is pulled again");
                let block = match self.link {
                    Link::Up(block) => block,
                    Link::Down => BlockSize::PREFERRED,
                };
                let failed = self.run(now, block, digest, Target::Memory(memory));
                if let Some(fetch) = self.running.last_mut().filter(|f| f.digest == digest) {
                    fetch.pause(now, Duration::from_millis(250 << times), &mut self.pace);
                }
                failed
            }
        }
    }
}

fn failed<C: Chunks>(digest: Digest, why: Failure<C::Error>, target: Target<C>) -> Action<C> {
    let target = match target {
        Target::Store(target) => Some(target),
        Target::Memory(_) => None,
    };
    Action::Failed { digest, why, target }
}
