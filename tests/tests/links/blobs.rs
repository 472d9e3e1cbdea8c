//! Looking over the devices' shoulders: whatever is to be seen under a digest's name has that digest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_package::Digest;

const LOOK: Duration = Duration::from_millis(50);

/// Looks at the blobs below these data directories again and again until `over`, each time at those
/// that are new, and at all of them in the end; how many blobs there are, and how many were looked at.
pub fn watch(data: &[PathBuf], over: &AtomicBool) -> (usize, usize) {
    let (mut seen, mut looks) = (BTreeSet::new(), 0);
    loop {
        let last = over.load(Ordering::SeqCst);
        for folder in data {
            for path in blobs(&folder.join("blobs/sha256")) {
                if last || !seen.contains(&path) {
                    looks += usize::from(check(&path));
                    seen.insert(path);
                }
            }
        }
        if last {
            return (seen.len(), looks);
        }
        std::thread::sleep(LOOK);
    }
}

fn blobs(folder: &Path) -> Vec<PathBuf> {
    // Before the agent's first start there is none.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Whether it is there and right. It may be gone again: collected, or a name of a moment ago.
fn check(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(Digest::of(&bytes).hex(), name, "{} is corrupt", path.display());
    true
}
