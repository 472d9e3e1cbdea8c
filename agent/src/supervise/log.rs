//! The host's log: a file that it appends to by itself, so that it can go on without the agent, and
//! that the agent keeps from growing without end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Size at which the file is cut, in bytes.
const LARGEST: u64 = 4 * 1024 * 1024;
/// What is kept of it then, in the file with `.1`.
const KEPT: u64 = 1024 * 1024;

/// Opens the log for appending (mode 0600).
pub fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Cuts the log where it has grown too large. The host writes in append mode, so it goes on at the
/// new end; lines that it writes during the cut may be lost.
pub fn trim(path: &Path) -> io::Result<bool> {
    trim_at(path, LARGEST, KEPT)
}

fn trim_at(path: &Path, largest: u64, kept: u64) -> io::Result<bool> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    if size <= largest {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(size.saturating_sub(kept)))?;
    let mut old = File::create(old_name(path))?;
    io::copy(&mut file.by_ref().take(kept), &mut old)?;
    file.set_len(0)?;
    Ok(true)
}

fn old_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_newest_part_is_kept_and_the_writer_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("host.log");
        assert!(!trim_at(&path, 10, 4).unwrap());
        let mut host = open(&path).unwrap();
        host.write_all(b"0123456789").unwrap();
        assert!(!trim_at(&path, 10, 4).unwrap());
        host.write_all(b"abc").unwrap();
        assert!(trim_at(&path, 10, 4).unwrap());
        host.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read(old_name(&path)).unwrap(), b"9abc");
    }
}
