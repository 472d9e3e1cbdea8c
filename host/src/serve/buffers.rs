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

    /// Memory that was kept, without content: the smallest with room for so much, or the largest. Whoever takes it
    /// counts for all of it, which is there whether anything comes or not.
    pub fn take(&self, room: usize) -> Option<Vec<u8>> {
        if room < LARGE {
            return None;
        }
        let mut kept = self.kept();
        kept.asked += 1;
        let sizes = kept.buffers.iter().map(Vec::capacity).enumerate();
        let (place, _) =
            sizes.min_by_key(|(_, size)| if *size >= room { (0, *size) } else { (1, usize::MAX - size) })?;
        Some(kept.buffers.swap_remove(place))
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
            runtime.spawn(Watching(self).watch());
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Frees what is kept when it ends, be it with its runtime.
struct Watching(Arc<Buffers>);

impl Watching {
    /// Until nobody asks any more.
    async fn watch(self) {
        let mut seen = None;
        loop {
            let asked = self.0.kept().asked;
            if seen.replace(asked) == Some(asked) {
                return;
            }
            tokio::time::sleep(self.0.idle).await;
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(std::mem::take(&mut *self.0.kept()));
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

    /// As a body that is read whole.
    fn read(buffers: &Arc<Buffers>, length: usize) -> Bytes {
        let mut memory = buffers.take(length).unwrap_or_default();
        memory.reserve_exact(length);
        memory.resize(length, 7);
        buffers.lend(memory)
    }

    #[tokio::test]
    async fn a_large_body_comes_where_one_was_before() {
        let buffers = Buffers::new(8 << 20);
        let body = read(&buffers, 3 << 20);
        let (at, part) = (body.as_ptr(), body.slice(2..4));
        drop(body);
        assert_eq!((&part[..], held(&buffers).len()), (&[7, 7][..], 0), "it is in use still");
        drop(part);
        let again = buffers.take(2 << 20).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert!(buffers.take(2 << 20).is_none());
    }

    #[tokio::test]
    async fn one_has_the_smallest_with_room_for_it_and_the_largest_where_none_has() {
        let buffers = Buffers::new(20 << 20);
        drop([4, 2, 6].map(|mib| read(&buffers, mib << 20)));
        let take = |mib: usize| buffers.take(mib << 20).unwrap().capacity() >> 20;
        assert_eq!([take(3), take(7), take(1)], [4, 6, 2]);
    }

    #[tokio::test]
    async fn it_keeps_no_more_than_it_may_and_nothing_small() {
        let buffers = Buffers::new(4 << 20);
        for _ in 0..3 {
            drop([2 << 20, 5 << 20, LARGE - 1].map(|size| read(&buffers, size)));
        }
        assert_eq!(held(&buffers), [2 << 20]);
        drop([(); 5].map(|()| read(&buffers, 2 << 20)));
        assert_eq!(held(&buffers), [2 << 20; 2]);
        assert!(buffers.take(100).is_none(), "it is not for small ones");
    }

    #[tokio::test]
    async fn nothing_is_kept_when_no_more_come_and_again_when_they_do() {
        let buffers = Buffers::for_so_long(8 << 20, Duration::from_millis(500));
        for _ in 0..2 {
            let body = read(&buffers, LARGE);
            // Where large ones are read.
            crate::threads::aside(move || drop(body)).await.unwrap();
            assert_eq!(held(&buffers), [LARGE]);
            while !held(&buffers).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    #[test]
    fn nothing_is_kept_that_nobody_would_free() {
        let buffers = Buffers::new(8 << 20);
        drop(read(&buffers, LARGE));
        assert!(held(&buffers).is_empty());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { drop(read(&buffers, LARGE)) });
        assert_eq!(held(&buffers), [LARGE]);
        drop(runtime);
        assert!(held(&buffers).is_empty(), "it ended with its runtime");
    }
}
