//! Small files, read up to a bound.
//!
//! What another program may have written, or a disk spoiled, is neither taken into memory whole nor waited
//! for: a pipe in a file's place would keep the agent's only thread for ever.

use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of a file that a program leaves for another one.
pub const NOTE: u64 = 64 * 1024;

/// The content of a file that has at most so many bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = std::fs::File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("it is no file".to_owned()));
    }
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(wrong(format!("it has more than {most} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &Path, expected: Result<&[u8], &str>) {
        match (read(path, 4), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_larger_or_no_file_is_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        check(&path, Err("No such file"));
        for (content, expected) in [("", Ok("")), ("1234", Ok("1234")), ("12345", Err("more than 4"))] {
            std::fs::write(&path, content).unwrap();
            check(&path, expected.map(str::as_bytes));
        }
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        check(&path, Err("more than 4"));
        check(place.path(), Err("no file"));
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        check(&pipe, Err("no file"));
    }
}
