//! What goes out of the directory of compiled modules: what another engine made, what a host left
//! half-written when it was killed, and beyond a bound what was not used for longest. Files that are not
//! called as ours are left alone.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How a compiled module's name ends.
pub const COMPILED: &str = ".cwasm";
/// How one ends that is being written.
pub const UNFINISHED: &str = ".new";

/// How much stays.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of all files together: a disk filled by packages that come and go.
    pub bytes: u64,
    /// Files: a directory of millions.
    pub files: usize,
}

/// As a host has them.
pub const BOUNDS: Bounds = Bounds { bytes: 256 << 20, files: 512 };

struct Kept {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Removes what `bounds` leave no room for, and what does not begin with `engine`. Gives the number of files
/// that went.
pub fn collect(directory: &Path, engine: &str, bounds: Bounds) -> std::io::Result<usize> {
    let (mut kept, mut gone) = (Vec::new(), 0);
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(UNFINISHED) || (name.ends_with(COMPILED) && !name.starts_with(engine)) {
            gone += remove(&entry.path());
        } else if name.ends_with(COMPILED)
            && let Some(file) = kept_file(&entry)
        {
            kept.push(file);
        }
    }
    kept.sort_by_key(|file| std::cmp::Reverse(file.used));
    let mut bytes = 0_u64;
    for (index, file) in kept.iter().enumerate() {
        bytes = bytes.saturating_add(file.bytes);
        // The newest stays, however large it is: it is what was just made.
        if index > 0 && (index >= bounds.files || bytes > bounds.bytes) {
            gone += remove(&file.path);
        }
    }
    Ok(gone)
}

fn kept_file(entry: &DirEntry) -> Option<Kept> {
    let metadata = entry.metadata().ok()?;
    Some(Kept { path: entry.path(), bytes: metadata.len(), used: metadata.modified().ok()? })
}

fn remove(path: &Path) -> usize {
    // It is gone already, or will be tried again.
    usize::from(std::fs::remove_file(path).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn check(files: &[(&str, usize)], bounds: Bounds, expected: &[&str]) {
        let place = tempfile::tempdir().unwrap();
        for (age, (name, bytes)) in files.iter().enumerate() {
            let path = place.path().join(name);
            std::fs::write(&path, vec![0; *bytes]).unwrap();
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age as u64);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(used).unwrap();
        }
        let gone = collect(place.path(), "e1-", bounds).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            (left, gone),
            (expected.iter().map(|&it| it.to_owned()).collect(), files.len() - expected.len())
        );
    }

    #[test]
    fn what_was_used_last_stays_within_both_bounds() {
        let wide = Bounds { bytes: 100, files: 10 };
        let three = [("e1-a.cwasm", 40), ("e1-b.cwasm", 40), ("e1-c.cwasm", 40)];
        check(&three, wide, &["e1-a.cwasm", "e1-b.cwasm"]);
        check(&three, Bounds { files: 1, ..wide }, &["e1-a.cwasm"]);
        check(&three, Bounds { bytes: 1000, ..wide }, &["e1-a.cwasm", "e1-b.cwasm", "e1-c.cwasm"]);
        check(&[("e1-a.cwasm", 400), ("e1-b.cwasm", 4)], wide, &["e1-a.cwasm"]);
    }

    #[test]
    fn other_engines_and_half_files_go_and_strangers_stay() {
        let files = [
            ("e1-a.cwasm", 1),
            ("e2-a.cwasm", 1),
            ("a.cwasm", 1),
            ("e1-b.cwasm.7.new", 1),
            ("notes.txt", 500),
        ];
        check(&files, Bounds { bytes: 100, files: 10 }, &["e1-a.cwasm", "notes.txt"]);
    }
}
