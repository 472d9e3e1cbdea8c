//! Which questions were asked, and what the newest were answered: both bounded.

use std::collections::VecDeque;

/// Most ids that are remembered.
const IDS: usize = 64;
/// Most bytes of answers that are remembered.
const BYTES: usize = 256 * 1024;

/// What is known of an id.
#[derive(Debug, PartialEq)]
pub enum Seen<A> {
    /// It was not asked, or so long ago that nobody knows.
    Never,
    /// It is being answered.
    Running,
    /// It was answered so.
    Answered(A),
    /// It was answered, and how is not known any more.
    Forgotten,
}

/// Ids with what became of them, oldest first.
#[derive(Debug)]
pub struct Memory<A> {
    entries: VecDeque<Entry<A>>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<A> {
    id: String,
    seen: Seen<A>,
    bytes: usize,
}

impl<A> Default for Memory<A> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), bytes: 0 }
    }
}

impl<A: Clone> Memory<A> {
    /// What is known of this id.
    pub fn seen(&self, id: &str) -> Seen<A> {
        match self.entries.iter().find(|entry| entry.id == id).map(|entry| &entry.seen) {
            None | Some(Seen::Never) => Seen::Never,
            Some(Seen::Running) => Seen::Running,
            Some(Seen::Answered(answer)) => Seen::Answered(answer.clone()),
            Some(Seen::Forgotten) => Seen::Forgotten,
        }
    }

    /// It is being answered.
    pub fn running(&mut self, id: &str) {
        self.remember(id, Seen::Running, 0);
    }

    /// It was answered so, in so many bytes.
    pub fn answered(&mut self, id: &str, answer: A, bytes: usize) {
        self.remember(id, Seen::Answered(answer), bytes);
    }

    fn remember(&mut self, id: &str, seen: Seen<A>, bytes: usize) {
        if let Some(at) = self.entries.iter().position(|entry| entry.id == id)
            && let Some(old) = self.entries.remove(at)
        {
            self.bytes -= old.bytes;
        }
        self.entries.push_back(Entry { id: id.to_owned(), seen, bytes });
        self.bytes += bytes;
        while self.entries.len() > IDS
            && let Some(old) = self.entries.pop_front()
        {
            self.bytes -= old.bytes;
        }
        for entry in &mut self.entries {
            if self.bytes <= BYTES {
                break;
            }
            if matches!(entry.seen, Seen::Answered(_)) {
                self.bytes -= std::mem::take(&mut entry.bytes);
                entry.seen = Seen::Forgotten;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_answers_are_forgotten_before_their_ids_are() {
        let mut memory = Memory::default();
        memory.running("a");
        assert_eq!(memory.seen("a"), Seen::Running);
        memory.answered("a", 1, 100 * 1024);
        assert_eq!(memory.seen("a"), Seen::Answered(1));
        memory.answered("b", 2, 100 * 1024);
        memory.answered("c", 3, 100 * 1024);
        assert_eq!(memory.seen("a"), Seen::Forgotten);
        assert_eq!(memory.seen("b"), Seen::Answered(2));
        memory.answered("huge", 4, BYTES + 1);
        assert_eq!(memory.seen("huge"), Seen::Forgotten);
        for n in 0..IDS {
            memory.answered(&n.to_string(), n, 10);
        }
        assert_eq!(memory.seen("c"), Seen::Never);
        assert!(memory.entries.len() <= IDS && memory.bytes <= BYTES);
    }
}
