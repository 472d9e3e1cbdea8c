//! The names that an archive's entries may have, and what they say.

use std::fmt;

use super::{ArchiveError, ArchiveLimits};
use crate::digest::Digest;
use crate::limits::MetadataLimits;
use crate::name::DeviceId;
use crate::trust::{Repository, bins};

/// A metadata file's name in the standard layout of a TUF repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetadataName {
    /// `N.root.json`
    Root(u64),
    /// `timestamp.json`
    Timestamp,
    /// `N.snapshot.json`
    Snapshot(u64),
    /// `N.targets.json`, or `N.bin-x.json` of a delegated role.
    Targets {
        /// `targets`, or the bin.
        role: String,
        /// Its version.
        version: u64,
    },
    /// `DEVICE.json`, a target: what the device shall run.
    Assignment(DeviceId),
}

impl MetadataName {
    /// By the file's name in the folder of its repository; `None` where a repository has no such file.
    pub fn parse(repository: Repository, name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".json")?;
        if stem == "timestamp" {
            return Some(Self::Timestamp);
        }
        if let Some((version, role)) = stem.split_once('.')
            && let Some(version) = number(version)
        {
            return match role {
                "root" => Some(Self::Root(version)),
                "snapshot" => Some(Self::Snapshot(version)),
                "targets" => Some(Self::Targets { role: role.to_owned(), version }),
                bin if repository == Repository::Image && bins::prefix(bin).is_some() => {
                    Some(Self::Targets { role: role.to_owned(), version })
                }
                _ => None,
            };
        }
        match repository {
            Repository::Director => stem.parse().ok().map(Self::Assignment),
            Repository::Image => None,
        }
    }

    /// The most bytes that such a file may have.
    pub fn most(&self, repository: Repository) -> usize {
        let limits = MetadataLimits::DEVICE;
        match (self, repository) {
            (Self::Root(_), _) => limits.root_bytes,
            (Self::Timestamp, _) => limits.timestamp_bytes,
            (Self::Snapshot(_), _) => limits.snapshot_bytes,
            (Self::Targets { .. }, Repository::Director) => limits.director_targets_bytes,
            (Self::Targets { role, .. }, _) if role == "targets" => limits.image_targets_bytes,
            (Self::Targets { .. }, _) => limits.delegated_bytes,
            (Self::Assignment(_), _) => limits.assignment_bytes,
        }
    }
}

impl fmt::Display for MetadataName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(version) => write!(f, "{version}.root.json"),
            Self::Timestamp => f.write_str("timestamp.json"),
            Self::Snapshot(version) => write!(f, "{version}.snapshot.json"),
            Self::Targets { role, version } => write!(f, "{version}.{role}.json"),
            Self::Assignment(device) => write!(f, "{device}.json"),
        }
    }
}

/// A version as it is written: decimal, no sign, no leading zero.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok()).flatten()
}

/// What an entry's name says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    Layout,
    Index,
    Metadata(u8, MetadataName),
    Blob(Digest),
}

pub(super) fn of(repository: Repository) -> u8 {
    match repository {
        Repository::Image => 0,
        Repository::Director => 1,
    }
}

impl Path {
    pub fn metadata(repository: Repository, name: MetadataName) -> Self {
        Self::Metadata(of(repository), name)
    }

    pub fn parse(name: &[u8]) -> Result<Self, ArchiveError> {
        let strange = |reason| ArchiveError::Name { name: shown(name), reason };
        let text = std::str::from_utf8(name).map_err(|_| strange("it is not text"))?;
        let parsed = if text == "oci-layout" {
            Some(Self::Layout)
        } else if text == "index.json" {
            Some(Self::Index)
        } else if let Some(hex) = text.strip_prefix("blobs/sha256/") {
            Digest::from_hex(hex).ok().map(Self::Blob)
        } else if let Some(file) = text.strip_prefix("selvedge/image/") {
            MetadataName::parse(Repository::Image, file).map(|name| Self::metadata(Repository::Image, name))
        } else if let Some(file) = text.strip_prefix("selvedge/director/") {
            let name = MetadataName::parse(Repository::Director, file);
            name.map(|name| Self::metadata(Repository::Director, name))
        } else {
            None
        };
        parsed
            .filter(|path| path.to_string() == text)
            .ok_or_else(|| strange("an archive of packages has no such file"))
    }

    pub fn repository(number: u8) -> Repository {
        if number == 0 { Repository::Image } else { Repository::Director }
    }

    /// The most bytes that the file may have.
    pub fn most(&self, limits: &ArchiveLimits) -> u64 {
        match self {
            Self::Layout => limits.layout_bytes,
            Self::Index => limits.index_bytes,
            Self::Metadata(repository, name) => name.most(Self::repository(*repository)) as u64,
            Self::Blob(_) => limits.blob_bytes,
        }
    }

    /// Where in the archive it stands.
    pub fn stage(&self) -> u8 {
        match self {
            Self::Layout => 0,
            Self::Index => 1,
            Self::Metadata(..) => 2,
            Self::Blob(_) => 3,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout => f.write_str("oci-layout"),
            Self::Index => f.write_str("index.json"),
            Self::Metadata(0, name) => write!(f, "selvedge/image/{name}"),
            Self::Metadata(_, name) => write!(f, "selvedge/director/{name}"),
            Self::Blob(digest) => write!(f, "blobs/sha256/{}", digest.hex()),
        }
    }
}

/// A name from outside as an error may show it.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(120).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, taken: bool) {
        match Path::parse(name.as_bytes()) {
            Ok(path) => {
                assert!(taken, "{name}");
                assert_eq!(path.to_string(), name);
            }
            Err(error) => assert!(!taken, "{name}: {error}"),
        }
    }

    #[test]
    fn names_of_the_list_and_no_others() {
        let hex = "ab".repeat(32);
        for name in
            ["oci-layout", "index.json", "selvedge/image/timestamp.json", "selvedge/image/1.root.json"]
        {
            check(name, true);
        }
        for name in
            ["image/12.snapshot.json", "image/3.targets.json", "image/3.bin-0f.json", "director/a-b.json"]
        {
            check(&format!("selvedge/{name}"), true);
        }
        check(&format!("blobs/sha256/{hex}"), true);
        for name in [
            "",
            "/",
            ".",
            "..",
            "./oci-layout",
            "/oci-layout",
            "oci-layout/",
            "index.json/../oci-layout",
            "blobs/",
            "blobs/sha256",
            "blobs/sha256/",
            "selvedge/",
            "selvedge/image/",
            "selvedge/image/.json",
            "selvedge/image/01.root.json",
            "selvedge/image/0.root.json",
            "selvedge/image/+1.root.json",
            "selvedge/image/1.root.json.json",
            "selvedge/image/99999999999999999999.root.json",
            "selvedge/image/edge-1.json",
            "selvedge/image/1.bin-00000.json",
            "selvedge/image/1.../x.json",
            "selvedge/director/1.bin-3.json",
            "selvedge/director/../x.json",
            "selvedge/director/a/b.json",
            "selvedge/other/timestamp.json",
            "blobs/sha512/00",
            "manifest.json",
        ] {
            check(name, false);
        }
        check(&format!("blobs/sha256/{}", hex.to_uppercase()), false);
        check(&format!("blobs/sha256/{hex}0"), false);
        check(&format!("blobs/sha256/{hex}\0"), false);
    }
}
