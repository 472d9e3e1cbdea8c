//! The file operations that the store is made of, as a trait.
//!
//! The real disk is [`RealDisk`]; tests put a disk here that fails, tears or forgets a chosen
//! write. Nothing in the store touches a file in another way.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the database is written through.
pub use redb::StorageBackend;

/// A file system as far as the store needs one. Every call is complete when it returns, and durable
/// only after the sync that the caller asks for.
pub trait Disk: Debug + Send + Sync + 'static {
    /// The database's backing file, made if it is not there.
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>>;
    /// A new file for writing (mode 0600); an old one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// An existing file, for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// A file for reading and writing, made if it is not there.
    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// A directory with its parents (mode 0700); it may exist.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// Renames within the file system, replacing.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// A second name for a file.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes a file's name away.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Makes names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// A file's length; `None` where there is no file.
    fn size(&self, path: &Path) -> io::Result<Option<u64>>;
    /// Bytes of the disk that a file takes up, holes not counted; 0 where there is no file.
    fn used(&self, path: &Path) -> io::Result<u64> {
        Ok(self.size(path)?.unwrap_or(0))
    }
    /// Bytes that we may still write under this directory; by default more than anyone needs.
    fn free(&self, path: &Path) -> io::Result<u64> {
        let _ = path;
        Ok(u64::MAX)
    }
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Makes everything written durable.
    fn sync(&self) -> io::Result<()>;
}

/// The machine's own file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let file = writable(path)?;
        // Pages that are there already can then be written on a full disk.
        let _ = allocate(&file, 0, file.metadata()?.len());
        Ok(Box::new(FileBackend(file)))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(File::open(path)?)))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(writable(path)?)))
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn used(&self, path: &Path) -> io::Result<u64> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(found.blocks().saturating_mul(512)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// Takes the blocks of a file's range now, so that no later write into it finds the disk full.
fn allocate(file: &File, from: u64, length: u64) -> io::Result<()> {
    use rustix::io::Errno;
    if length == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, length) {
        Err(full @ (Errno::NOSPC | Errno::DQUOT)) => Err(full.into()),
        // Not every file system can; then a write may fail.
        _ => Ok(()),
    }
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.0.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// The database's file. The data directory's lock keeps a second writer away, so it takes none.
#[derive(Debug)]
struct FileBackend(File);

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let old = self.0.metadata()?.len();
        if let Err(full) = allocate(&self.0, old, len.saturating_sub(old)) {
            self.0.set_len(old)?;
            return Err(full);
        }
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// A backend behind a pointer, as the database takes its backend by value.
#[derive(Debug)]
pub(super) struct Backend(pub Box<dyn StorageBackend>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

/// Where something is written before it is renamed into its place.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(TEMPORARY);
    path.with_file_name(name)
}

/// How the names of half-written things end; whatever carries it at start is removed.
pub(super) const TEMPORARY: &str = ".tmp";
