//! Writing an archive. Equal contents give equal bytes: no owner, no date.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::path::Path;
use super::{ArchiveError, ArchiveLimits, BLOCK, LAYOUT, MetadataFiles};
use crate::digest::Digest;

/// Writes an archive: `index.json` and the metadata at once, then blob after blob, then the end.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
    blobs: BTreeSet<Digest>,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Writes everything up to the first blob. `index` is the OCI image index.
    pub fn new(inner: W, index: &[u8], metadata: &MetadataFiles) -> Result<Self, ArchiveError> {
        let mut writer = Self { inner, blobs: BTreeSet::new(), bytes: 0 };
        writer.small(&Path::Layout, LAYOUT)?;
        writer.small(&Path::Index, index)?;
        for (repository, name, bytes) in metadata.iter() {
            writer.small(&Path::metadata(repository, name.clone()), bytes)?;
        }
        Ok(writer)
    }

    /// Writes a blob of exactly `size` bytes from `from`; one that is there already is left out. Bytes
    /// that do not have the digest are an error, and the archive is of no use then.
    pub fn blob(&mut self, digest: Digest, size: u64, from: impl Read) -> Result<(), ArchiveError> {
        let limits = ArchiveLimits::PACKAGES;
        if self.blobs.contains(&digest) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(size);
        if self.blobs.len() >= limits.blobs {
            return Err(ArchiveError::TooMany { what: "blobs", most: limits.blobs as u64 });
        }
        if self.bytes > limits.total_bytes {
            return Err(ArchiveError::TooMany { what: "bytes of blobs", most: limits.total_bytes });
        }
        self.header(&Path::Blob(digest), size)?;
        let mut from = from.take(size.saturating_add(1));
        let (mut hasher, mut left) = (Sha256::new(), size);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(ArchiveError::Io { action: "filled", source }),
            };
            left = left.checked_sub(read as u64).ok_or(ArchiveError::Blob { digest })?;
            hasher.update(&buffer[..read]);
            self.put(&buffer[..read])?;
        }
        if left != 0 || hex::encode(hasher.finalize()) != digest.hex() {
            return Err(ArchiveError::Blob { digest });
        }
        self.blobs.insert(digest);
        self.pad(size)
    }

    /// Writes the end and gives back what was written to.
    pub fn finish(mut self) -> Result<W, ArchiveError> {
        self.put(&[0; 2 * BLOCK])?;
        self.inner.flush().map_err(ArchiveError::io("written"))?;
        Ok(self.inner)
    }

    fn small(&mut self, path: &Path, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.header(path, bytes.len() as u64)?;
        self.put(bytes)?;
        self.pad(bytes.len() as u64)
    }

    fn header(&mut self, path: &Path, size: u64) -> Result<(), ArchiveError> {
        let (name, most) = (path.to_string(), path.most(&ArchiveLimits::PACKAGES));
        if size > most {
            return Err(ArchiveError::TooLarge { name, found: size, most });
        }
        let mut header = Header::new_ustar();
        let long = |_| ArchiveError::Name { name: name.clone(), reason: "it is too long for an archive" };
        header.set_path(&name).map_err(long)?;
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        self.put(header.as_bytes())
    }

    fn pad(&mut self, size: u64) -> Result<(), ArchiveError> {
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        self.put(&[0; BLOCK][..usize::try_from(padding).unwrap_or(0)])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.inner.write_all(bytes).map_err(ArchiveError::io("written"))
    }
}
