//! Memory of large bodies, kept for the next ones.
//!
//! Blocks of a megabyte and more come from the system and go back to it (`memory`), which clears every page of them
//! when it is first touched: half as much work again as reading the body into it. So a few are kept, bounded in all,
//! and only while large bodies come.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;

/// Bodies from this size on come into memory that is kept. Less is kept by the allocator.
pub const LARGE: usize = 1 << 20;

/// Without a large body for so long nothing is kept.
const IDLE: Duration = Duration::from_secs(2);

/// Memory that is kept.
#[derive(Debug)]
pub struct Buffers {
    /// Most bytes of it.
    most: usize,
    idle: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    /// How often it was asked.
    asked: u64,
    /// Somebody looks whether it is still asked.
    watched: bool,
}

/// A body whose memory is kept when it is dropped.
struct Lent {
    memory: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// Keeps at most so many bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Self::for_so_long(most, IDLE)
    }

    fn for_so_long(most: usize, idle: Duration) -> Arc<Self> {
        Arc::new(Self { most, idle, kept: Mutex::default() })
    }

    /// Memory without content, with room for so much.
    pub fn take(&self, capacity: usize) -> Vec<u8> {
        let mut memory = Vec::new();
        if capacity >= LARGE {
            let mut kept = self.kept();
            kept.asked += 1;
            memory = kept.buffers.pop().unwrap_or_default();
        }
        memory.reserve(capacity);
        memory
    }

    /// What was read into memory, which is kept afterwards.
    pub fn lend(self: &Arc<Self>, memory: Vec<u8>) -> Bytes {
        if memory.capacity() < LARGE {
            return memory.into();
        }
        Bytes::from_owner(Lent { memory, buffers: Arc::clone(self) })
    }

    fn keep(self: Arc<Self>, mut memory: Vec<u8>) {
        // Nobody would ever free it without a runtime.
        let Ok(runtime) = Handle::try_current() else { return };
        memory.clear();
        let mut kept = self.kept();
        let all: usize = kept.buffers.iter().map(Vec::capacity).sum();
        if all + memory.capacity() > self.most {
            return;
        }
        kept.buffers.push(memory);
        if !std::mem::replace(&mut kept.watched, true) {
            drop(kept);
            runtime.spawn(async move { self.watch().await });
        }
    }

    /// Frees everything as soon as it is not asked any more.
    async fn watch(&self) {
        let mut asked = self.kept().asked;
        loop {
            tokio::time::sleep(self.idle).await;
            let mut kept = self.kept();
            if kept.asked == asked {
                *kept = Kept::default();
                return;
            }
            asked = kept.asked;
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        Arc::clone(&self.buffers).keep(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(buffers: &Buffers) -> Vec<usize> {
        buffers.kept().buffers.iter().map(Vec::capacity).collect()
    }

    #[tokio::test]
    async fn a_large_body_comes_where_one_was_before() {
        let buffers = Buffers::new(8 << 20);
        let mut memory = buffers.take(3 << 20);
        memory.extend_from_slice(b"secret");
        let at = memory.as_ptr();
        let body = buffers.lend(memory);
        let part = body.slice(2..4);
        drop(body);
        assert_eq!((&part[..], held(&buffers).len()), (&b"cr"[..], 0), "it is in use still");
        drop(part);
        let again = buffers.take(2 << 20);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        let other = buffers.take(2 << 20);
        assert_ne!(other.as_ptr(), at);
    }

    #[tokio::test]
    async fn it_keeps_no_more_than_it_may_and_nothing_small() {
        let buffers = Buffers::new(4 << 20);
        for _ in 0..3 {
            drop([2 << 20, 5 << 20, LARGE - 1].map(|size| buffers.lend(buffers.take(size))));
        }
        assert!(held(&buffers).iter().sum::<usize>() <= 4 << 20, "{:?}", held(&buffers));
        let bodies: Vec<_> = (0..5).map(|_| buffers.lend(buffers.take(2 << 20))).collect();
        drop(bodies);
        assert_eq!(held(&buffers), [2 << 20; 2]);
        assert_eq!(buffers.take(100).capacity(), 100, "it is not for small ones");
    }

    #[tokio::test]
    async fn nothing_is_kept_when_no_more_come_and_again_when_they_do() {
        let buffers = Buffers::for_so_long(8 << 20, Duration::from_millis(20));
        for _ in 0..2 {
            drop(buffers.lend(buffers.take(LARGE)));
            assert_eq!(held(&buffers), [LARGE]);
            while !held(&buffers).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    #[test]
    fn nothing_is_kept_that_nobody_would_free() {
        let buffers = Buffers::new(8 << 20);
        drop(buffers.lend(buffers.take(LARGE)));
        assert!(held(&buffers).is_empty());
    }
}
