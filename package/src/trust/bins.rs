//! The bins of a large Image repository: which delegated role lists a target.
//!
//! A target falls into the bin that its name's SHA-256 begins with. `targets.json` lists targets itself
//! while it has at most [`LARGEST_BIN`]; then they move to sixteen bins of one hex digit, and a bin
//! that grows beyond it is split in the same way. A device downloads the branches of its own packages
//! and no more, however many packages there are.

use crate::digest::Digest;

/// Targets that one role lists before it is split.
pub const LARGEST_BIN: usize = 64;

/// Hex digits of the deepest bin's name. Its bins are never split, however many targets they have.
pub const DEEPEST: usize = 4;

/// Bins that a split makes: one for each hex digit.
pub const FANOUT: usize = 16;

const STEM: &str = "bin-";

/// The roles that may list `target`, the outermost first: `bin-3`, `bin-3a`, `bin-3a7`, `bin-3a7f`.
/// The innermost of them that exists does.
pub fn branch(target: &str) -> Vec<String> {
    let hash = Digest::of(target.as_bytes()).hex();
    (1..=DEEPEST).map(|digits| role(&hash[..digits])).collect()
}

/// The role of the bin of a prefix.
pub fn role(prefix: &str) -> String {
    format!("{STEM}{prefix}")
}

/// The prefix of a bin's role; `None` for a role that is no bin.
pub fn prefix(role: &str) -> Option<&str> {
    let prefix = role.strip_prefix(STEM)?;
    let digits = prefix.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (digits && (1..=DEEPEST).contains(&prefix.len())).then_some(prefix)
}

/// The prefixes of the bins that a role is split into; `""` stands for `targets.json`.
pub fn children(parent: &str) -> impl Iterator<Item = String> {
    "0123456789abcdef".chars().map(move |digit| format!("{parent}{digit}"))
}

/// Whether `target` falls into the bin of `prefix`.
pub fn holds(prefix: &str, target: &str) -> bool {
    Digest::of(target.as_bytes()).hex().starts_with(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_follows_the_hash_of_the_name() {
        let hash = Digest::of(b"file-type-1.0.0.pkg.json").hex();
        let branch = branch("file-type-1.0.0.pkg.json");
        assert_eq!(branch.len(), DEEPEST);
        for (at, role) in branch.iter().enumerate() {
            assert_eq!(prefix(role), Some(&hash[..=at]));
            assert!(holds(&hash[..=at], "file-type-1.0.0.pkg.json"));
        }
        assert_eq!(children("3").collect::<Vec<_>>()[10], "3a");
        assert_eq!(children("").count(), FANOUT);
    }

    #[test]
    fn other_roles_are_no_bins() {
        for role in ["targets", "bin-", "bin-g", "bin-3A", "bin-12345", "bin3", "bin-3/..", "xbin-3"] {
            assert_eq!(prefix(role), None, "{role}");
        }
    }
}
