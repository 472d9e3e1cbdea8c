//! Which of the blobs that are wanted is fetched next.
//!
//! Packages take turns, whatever their number of blobs; of one package the small ones go first, since
//! what else is needed may stand in them. One place is for small blobs only: an update of a few
//! kilobytes never waits until somebody else's gigabytes have come.

use std::collections::BTreeMap;

use selvedge_package::{Digest, PackageName};

use crate::transfer::AT_ONCE;

/// Largest blob that counts as small, in bytes.
pub const SMALL: u64 = 1 << 20;
/// Places for blobs of any size.
const LARGE: usize = AT_ONCE - 1;

/// A blob that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Which.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// A package that needs it.
    pub package: &'a PackageName,
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub struct Turns {
    /// When a package last had its turn.
    last: BTreeMap<PackageName, u64>,
    count: u64,
}

impl Turns {
    /// The one to fetch now beside those that are being fetched, if there is a place for it.
    pub fn next<'a>(
        &mut self,
        waiting: impl Iterator<Item = Candidate<'a>>,
        running: &[Candidate<'a>],
    ) -> Option<Digest> {
        if running.len() >= AT_ONCE {
            return None;
        }
        let large = running.iter().filter(|other| other.size > SMALL).count();
        let active = |package| running.iter().filter(|other| other.package == package).count();
        let last = &self.last;
        let chosen = waiting.filter(|one| one.size <= SMALL || large < LARGE).min_by_key(|one| {
            let turn = last.get(one.package).copied().unwrap_or(0);
            (active(one.package), turn, one.size, one.digest)
        })?;
        self.count += 1;
        self.last.insert(chosen.package.clone(), self.count);
        Some(chosen.digest)
    }

    /// Forgets packages of which nothing is wanted.
    pub fn keep(&mut self, wanted: impl Fn(&PackageName) -> bool) {
        self.last.retain(|package, _| wanted(package));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(n: u8) -> PackageName {
        format!("package-{n}").parse().unwrap()
    }

    fn digest(n: usize) -> Digest {
        Digest::of(&n.to_le_bytes())
    }

    /// In which order blobs (package, size) begin, when the one that began first always ends first.
    fn order(blobs: &[(u8, u64)]) -> Vec<usize> {
        let names: Vec<PackageName> = blobs.iter().map(|(package, _)| name(*package)).collect();
        let one = |n: usize| Candidate { digest: digest(n), size: blobs[n].1, package: &names[n] };
        let mut turns = Turns::default();
        let (mut begun, mut running) = (Vec::new(), Vec::new());
        loop {
            let waiting = (0..blobs.len()).filter(|n| !begun.contains(n)).map(one);
            let now: Vec<_> = running.iter().map(|&n| one(n)).collect();
            match turns.next(waiting, &now) {
                Some(next) => {
                    let n = (0..blobs.len()).find(|&n| digest(n) == next).unwrap();
                    begun.push(n);
                    running.push(n);
                }
                None if running.is_empty() => return begun,
                None => drop(running.remove(0)),
            }
        }
    }

    #[test]
    fn packages_take_turns_and_small_ones_go_first() {
        let gib = 1 << 30;
        // Package 0 has four models and a label file, package 1 a model and its manifest.
        let blobs = [(0, gib), (0, gib + 1), (0, gib + 2), (0, gib + 3), (0, 10), (1, gib), (1, 700)];
        assert_eq!(order(&blobs)[..3], [4, 6, 0], "the small ones, then a large one");
        assert!(order(&blobs).iter().position(|&n| n == 5).unwrap() <= 3, "package 1 has its turn");
    }

    #[test]
    fn a_small_blob_never_waits_for_large_ones() {
        let large = [(digest(1), name(0)), (digest(2), name(0))];
        let running: Vec<_> = large
            .iter()
            .map(|(digest, package)| Candidate { digest: *digest, size: 1 << 31, package })
            .collect();
        let other = name(1);
        let of = |size| [Candidate { digest: digest(3), size, package: &other }].into_iter();
        let mut turns = Turns::default();
        assert_eq!(turns.next(of(SMALL + 1), &running), None);
        assert_eq!(turns.next(of(SMALL), &running), Some(digest(3)));
    }

    proptest! {
        /// However many blobs another package has, between two turns of one package no other package
        /// has more than two turns, as long as both have blobs of that kind left.
        #[test]
        fn nobody_is_passed_over(blobs in prop::collection::vec((0..4u8, 1..100u64), 1..40)) {
            let order = order(&blobs);
            prop_assert_eq!(order.len(), blobs.len(), "every one has its turn");
            for package in 0..4u8 {
                let turns: Vec<usize> = (0..order.len()).filter(|&at| blobs[order[at]].0 == package).collect();
                for pair in turns.windows(2) {
                    for other in 0..4u8 {
                        let between = (pair[0] + 1..pair[1]).filter(|&at| blobs[order[at]].0 == other).count();
                        prop_assert!(between <= 2, "{other} had {between} turns between two of {package}");
                    }
                }
            }
        }
    }
}
