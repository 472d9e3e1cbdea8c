//! The single-file form of packages: a tar of an OCI image layout together with the TUF metadata that
//! vouches for it, for USB sticks and plain HTTP.
//!
//! ```text
//! oci-layout
//! index.json
//! selvedge/image/1.root.json, timestamp.json, 7.snapshot.json, 3.targets.json, 2.bin-3a.json
//! selvedge/director/1.root.json, timestamp.json, 9.snapshot.json, 9.targets.json, DEVICE.json
//! blobs/sha256/<hex>
//! ```
//!
//! In this order: whoever reads it as a stream has the metadata before the first blob. [`Reader`] takes
//! regular files of exactly these names and nothing else that a tar may hold: no links, no directories,
//! no long names, nothing twice. It verifies no signature and stores nothing; [`MetadataFiles::bundle`]
//! is what [`crate::trust::accept`] takes.

mod metadata;
mod path;
mod reader;
mod writer;

use crate::digest::Digest;
use crate::limits::Limits;

pub use metadata::MetadataFiles;
pub use path::MetadataName;
pub use reader::{Blob, Entry, Reader};
pub use writer::Writer;

/// The content of `oci-layout`.
pub const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// A tar is made of these.
const BLOCK: usize = 512;

/// Limits of an archive. Each field names the attack that it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of `oci-layout`.
    pub layout_bytes: u64,
    /// Bytes of `index.json`: endless text before anything is known of it.
    pub index_bytes: u64,
    /// Metadata files, and roots among them: filling the memory with files that nobody needs.
    pub metadata: usize,
    /// Bytes of all metadata together: as above.
    pub metadata_bytes: u64,
    /// Blobs: exhausting a file system's inodes.
    pub blobs: usize,
    /// Bytes of one blob: a transfer without end.
    pub blob_bytes: u64,
    /// Bytes of all blobs together: filling the disk.
    pub total_bytes: u64,
}

impl ArchiveLimits {
    /// What every program of Selvedge uses.
    pub const PACKAGES: Self = Self {
        layout_bytes: 1 << 10,
        index_bytes: 256 << 10,
        metadata: 512,
        metadata_bytes: 8 << 20,
        blobs: 8192,
        blob_bytes: Limits::PACKAGE.blob_bytes,
        total_bytes: 4 * Limits::PACKAGE.package_bytes,
    };
}

/// Why an archive is not read, or not written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ArchiveError {
    #[error("the archive cannot be {action}")]
    Io {
        action: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the archive ends in the middle of {inside}; copy it again")]
    Truncated { inside: String },
    #[error("this is no archive of packages: {reason}")]
    Header { reason: &'static str },
    #[error("the archive has an entry `{name}`: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("the archive has `{name}` twice")]
    Twice { name: String },
    #[error("the archive has `{name}` in the wrong place: {reason}")]
    Order { name: String, reason: &'static str },
    #[error("`{name}` in the archive has {found} bytes; at most {most} are allowed")]
    TooLarge { name: String, found: u64, most: u64 },
    #[error("the archive has more than {most} {what}")]
    TooMany { what: &'static str, most: u64 },
    #[error("`oci-layout` in the archive is not one of version 1.0.0")]
    Layout,
    #[error("blob {digest} has other bytes than its digest or its size says")]
    Blob { digest: Digest },
    #[error("the archive's metadata does not make one state of a repository: {reason}")]
    Metadata { reason: String },
}

impl ArchiveError {
    fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}
