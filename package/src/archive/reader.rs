//! Reading an archive as a stream, entry by entry. Everything is bounded before it is read.

use std::collections::BTreeSet;
use std::io::Read;

use tar::{EntryType, Header};

use super::path::Path;
use super::{ArchiveError, ArchiveLimits, BLOCK, MetadataName};
use crate::digest::Digest;
use crate::trust::Repository;

/// One entry of an archive.
#[derive(Debug)]
pub enum Entry<'a, R> {
    /// `oci-layout`, of a version that is known.
    Layout,
    /// `index.json`.
    Index(Vec<u8>),
    /// A metadata file. Nothing of it was verified.
    Metadata {
        /// Whose it is.
        repository: Repository,
        /// Its name.
        name: MetadataName,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A blob that says that it has this digest.
    Blob(Blob<'a, R>),
}

/// A blob to be read. What is left of it is skipped.
#[derive(Debug)]
pub struct Blob<'a, R> {
    /// The digest in its name: a claim, until its bytes were compared with it.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
    reader: &'a mut Reader<R>,
}

/// Reads an archive.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    limits: ArchiveLimits,
    seen: BTreeSet<Path>,
    stage: u8,
    metadata: (usize, u64),
    blobs: (usize, u64),
    /// Bytes of the current blob that were not read, and what fills its last block.
    left: u64,
    padding: u64,
    name: String,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads from `inner`, which may be a pipe or a socket.
    pub fn new(inner: R, limits: ArchiveLimits) -> Self {
        let name = "the first entry".to_owned();
        let (metadata, blobs) = ((0, 0), (0, 0));
        Self {
            inner,
            limits,
            seen: BTreeSet::new(),
            stage: 0,
            metadata,
            blobs,
            left: 0,
            padding: 0,
            name,
            ended: false,
        }
    }

    /// The next entry, or `None` at the end. After an error there is no next one.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_, R>>, ArchiveError> {
        if self.ended {
            return Ok(None);
        }
        // An error leaves the stream nowhere.
        self.ended = true;
        self.skip()?;
        let Some((path, size)) = self.header()? else {
            if self.stage == 0 {
                return Err(ArchiveError::Header { reason: "it is empty" });
            }
            return Ok(None);
        };
        self.ended = false;
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        self.name = path.to_string();
        Ok(Some(match path {
            Path::Layout => {
                let bytes = self.small()?;
                self.ended = true;
                check_layout(&bytes)?;
                self.ended = false;
                Entry::Layout
            }
            Path::Index => Entry::Index(self.small()?),
            Path::Metadata(repository, name) => {
                let bytes = self.small()?;
                Entry::Metadata { repository: Path::repository(repository), name, bytes }
            }
            Path::Blob(digest) => Entry::Blob(Blob { digest, size, reader: self }),
        }))
    }

    /// Reads a header and checks all that it says; `None` for the end of the archive.
    fn header(&mut self) -> Result<Option<(Path, u64)>, ArchiveError> {
        let mut block = [0; BLOCK];
        let next = if self.stage == 0 {
            "its first entry".to_owned()
        } else {
            format!("what follows {}", self.name)
        };
        read_exact(&mut self.inner, &mut block, || next)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let bad = |reason| ArchiveError::Header { reason };
        let header = Header::from_byte_slice(&block);
        let sum = block.iter().enumerate().map(|(at, byte)| {
            // The sum is taken as if its own field were blank.
            if (148..156).contains(&at) { u32::from(b' ') } else { u32::from(*byte) }
        });
        if header.as_ustar().is_none() {
            return Err(bad("it is not a tar in the ustar format"));
        }
        if header.cksum().ok() != Some(sum.sum()) {
            return Err(bad("the checksum of an entry is wrong"));
        }
        let name = header.path_bytes();
        let path = match header.entry_type() {
            EntryType::Regular => Path::parse(&name)?,
            other => {
                let reason = kind(other);
                let name = String::from_utf8_lossy(&name).chars().take(120).collect::<String>();
                return Err(ArchiveError::Name { name: name.escape_debug().to_string(), reason });
            }
        };
        let size = header.entry_size().map_err(|_| bad("the size of an entry is no number"))?;
        self.admit(&path, size)?;
        Ok(Some((path, size)))
    }

    /// Checks an entry against the limits, the order and what was there before.
    fn admit(&mut self, path: &Path, size: u64) -> Result<(), ArchiveError> {
        let most = path.most(&self.limits);
        if size > most {
            return Err(ArchiveError::TooLarge { name: path.to_string(), found: size, most });
        }
        let (stage, reason) = (path.stage(), "the order is oci-layout, index.json, metadata, blobs");
        let follows = match (self.stage, stage) {
            // `stage` counts from 1: 0 is the beginning.
            (0, 0) | (1, 1) => true,
            (2.., 2 | 3) => stage + 1 >= self.stage,
            (1, 0) | (2.., 0 | 1) => return Err(ArchiveError::Twice { name: path.to_string() }),
            _ => false,
        };
        if !follows {
            return Err(ArchiveError::Order { name: path.to_string(), reason });
        }
        self.stage = stage + 1;
        let limits = &self.limits;
        let (count, bytes, most, most_bytes, what) = match path {
            Path::Layout | Path::Index => return Ok(()),
            Path::Metadata(..) => {
                let (count, bytes) = &mut self.metadata;
                (
                    count,
                    bytes,
                    limits.metadata,
                    limits.metadata_bytes,
                    ("metadata files", "bytes of metadata"),
                )
            }
            Path::Blob(_) => {
                let (count, bytes) = &mut self.blobs;
                (count, bytes, limits.blobs, limits.total_bytes, ("blobs", "bytes of blobs"))
            }
        };
        *count += 1;
        *bytes = bytes.saturating_add(size);
        if *count > most {
            return Err(ArchiveError::TooMany { what: what.0, most: most as u64 });
        }
        if *bytes > most_bytes {
            return Err(ArchiveError::TooMany { what: what.1, most: most_bytes });
        }
        if !self.seen.insert(path.clone()) {
            return Err(ArchiveError::Twice { name: path.to_string() });
        }
        Ok(())
    }

    /// The whole of the current entry, whose size was checked.
    fn small(&mut self) -> Result<Vec<u8>, ArchiveError> {
        self.ended = true;
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or(usize::MAX)];
        read_exact(&mut self.inner, &mut bytes, || self.name.clone())?;
        self.left = 0;
        self.ended = false;
        Ok(bytes)
    }

    /// Passes over the rest of the current entry.
    fn skip(&mut self) -> Result<(), ArchiveError> {
        let rest = self.left + self.padding;
        let skipped = std::io::copy(&mut (&mut self.inner).take(rest), &mut std::io::sink())
            .map_err(ArchiveError::io("read"))?;
        if skipped < rest {
            return Err(ArchiveError::Truncated { inside: self.name.clone() });
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

impl<R: Read> Blob<'_, R> {
    /// All of it, if it has its digest and is no larger than `most`: for manifests and indexes.
    pub fn bytes(mut self, most: u64) -> Result<Vec<u8>, ArchiveError> {
        if self.size > most {
            return Err(ArchiveError::TooLarge { name: self.reader.name.clone(), found: self.size, most });
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).map_err(ArchiveError::io("read"))?;
        if bytes.len() as u64 != self.size {
            return Err(ArchiveError::Truncated { inside: self.reader.name.clone() });
        }
        if Digest::of(&bytes) != self.digest {
            return Err(ArchiveError::Blob { digest: self.digest });
        }
        Ok(bytes)
    }
}

/// Gives the blob's bytes as they are; whoever reads them compares them with the digest. An archive that
/// ends too early is an error, not the end of the blob.
impl<R: Read> Read for Blob<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let reader = &mut *self.reader;
        let most = usize::try_from(reader.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = reader.inner.read(&mut buffer[..most])?;
        if read == 0 {
            let inside = ArchiveError::Truncated { inside: reader.name.clone() };
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, inside));
        }
        reader.left -= read as u64;
        Ok(read)
    }
}

fn check_layout(bytes: &[u8]) -> Result<(), ArchiveError> {
    let read: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| ArchiveError::Layout)?;
    let version = read.get("imageLayoutVersion").and_then(|version| version.as_str());
    if version == Some("1.0.0") { Ok(()) } else { Err(ArchiveError::Layout) }
}

fn kind(of: EntryType) -> &'static str {
    match of {
        EntryType::Directory => "it is a directory; only regular files are allowed",
        EntryType::Symlink | EntryType::Link => "it is a link; only regular files are allowed",
        EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader => {
            "it changes the name or the size of the entry after it, which is not allowed"
        }
        _ => "it is not a regular file",
    }
}

fn read_exact(
    inner: &mut impl Read,
    buffer: &mut [u8],
    inside: impl FnOnce() -> String,
) -> Result<(), ArchiveError> {
    inner.read_exact(buffer).map_err(|source| match source.kind() {
        std::io::ErrorKind::UnexpectedEof => ArchiveError::Truncated { inside: inside() },
        _ => ArchiveError::Io { action: "read", source },
    })
}
