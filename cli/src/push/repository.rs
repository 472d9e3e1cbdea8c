//! The directory that remembers what was pushed: one file for the Image repository and the roots,
//! one for each device. Versions grow from what is in it, so it must not be lost or forked.
//!
//! A file is replaced as a whole, and is on the disk before anything of it is published. One push
//! at a time holds the directory's lock. A file that does not read back is damage, never "nothing
//! yet": versions that begin again would be refused by every device.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::trust::AssignedPackage;
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::message::DeviceState;
use selvedge_signing::PublicKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Deadline;
use crate::failure::Failure;
use crate::supervisor::record::write_atomically;

/// Version of the format of both files.
const FORMAT: u32 = 1;
/// Largest file that is read, in bytes: the limit of a targets role, and as much again.
const LARGEST: u64 = 32 << 20;
/// How long the lock is waited for: one that was just killed may hold it a moment longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A repository that this process alone may change.
pub struct Repository {
    dir: PathBuf,
    _lock: File,
}

/// `repository.json`: roots and the Image repository, each file as it was signed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// [`FORMAT`].
    format: u32,
    /// Consecutive Image roots, oldest first.
    pub image_roots: Vec<String>,
    /// Consecutive Director roots, oldest first.
    pub director_roots: Vec<String>,
    /// What is released: `targets.json`.
    pub targets: Option<String>,
    /// And the bins that it is split into, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bins: BTreeMap<String, String>,
    /// Pins it.
    pub snapshot: Option<String>,
    /// Pins that.
    pub timestamp: Option<String>,
}

/// `devices/NAME.json`: what one device was told, and what it said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// [`FORMAT`].
    format: u32,
    /// Which.
    pub device: DeviceId,
    /// Digest of the token of its enrolment file; absent where a registry enrolled it.
    pub token: Option<Digest>,
    /// Its key, once that is known.
    pub public_key: Option<PublicKey>,
    /// Sequence of what was signed last; 0: nothing was.
    pub sequence: u64,
    /// Version of the Director's metadata that was signed last; 0: none was.
    pub version: u64,
    /// What it shall run.
    pub assignments: Vec<AssignedPackage>,
    /// The nonce that was echoed last, in hexadecimal.
    pub nonce: String,
    /// What was signed last.
    pub signed: Option<Signed>,
    /// The newest epoch that signed rows have proved.
    pub epoch: u64,
    /// Epoch and sequence of the newest event.
    pub events: (u64, u64),
    /// Epoch and sequence of `state`.
    pub reported: (u64, u64),
    /// What it reported last.
    pub state: Option<DeviceState>,
}

/// The Director's files for one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// `timestamp.json`.
    pub timestamp: String,
    /// `snapshot.json`.
    pub snapshot: String,
    /// `targets.json`.
    pub targets: String,
    /// `NAME.json`.
    pub assignment: String,
}

impl Device {
    /// One that was never told anything.
    pub fn new(device: DeviceId) -> Self {
        Self {
            format: FORMAT,
            device,
            token: None,
            public_key: None,
            sequence: 0,
            version: 0,
            assignments: Vec::new(),
            nonce: String::new(),
            signed: None,
            epoch: 0,
            events: (0, 0),
            reported: (0, 0),
            state: None,
        }
    }
}

impl Repository {
    /// Opens the directory, which is made where it is missing, and takes its lock.
    pub async fn open(dir: &Path) -> Result<Self, Failure> {
        let devices = dir.join("devices");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&devices)
            .map_err(Failure::file("make the directory", &devices))?;
        let path = dir.join("lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Failure::file("open", &path))?;
        let deadline = Deadline::after(PATIENCE);
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { dir: dir.to_owned(), _lock: lock }),
                Err(TryLockError::Error(source)) => return Err(Failure::file("lock", &path)(source)),
                Err(TryLockError::WouldBlock) if deadline.passed() => {
                    return Err(Failure::Conflict {
                        what: format!("another push works with {}", dir.display()),
                        advice: "wait until it has ended: two at once would give one version twice"
                            .to_owned(),
                    });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Roots and releases; empty before the first push.
    pub fn image(&self) -> Result<Image, Failure> {
        let path = self.dir.join("repository.json");
        let none = || Image { format: FORMAT, ..Image::default() };
        let image: Image = read("the memory of `selvedge push`", &path)?.unwrap_or_else(none);
        check_format(&path, image.format)?;
        Ok(image)
    }

    /// Keeps it.
    pub fn keep_image(&self, image: &Image) -> Result<(), Failure> {
        write(&self.dir.join("repository.json"), image)
    }

    /// What is known of a device.
    pub fn device(&self, device: &DeviceId) -> Result<Option<Device>, Failure> {
        let path = self.device_path(device);
        let Some(read) = read::<Device>("the memory of a device", &path)? else {
            return Ok(None);
        };
        check_format(&path, read.format)?;
        if read.device != *device {
            return Err(Failure::content::<String>("the memory of that device", &path)(format!(
                "it speaks of {}",
                read.device
            )));
        }
        Ok(Some(read))
    }

    /// Keeps it.
    pub fn keep_device(&self, device: &Device) -> Result<(), Failure> {
        write(&self.device_path(&device.device), device)
    }

    /// Forgets a device that was never told anything.
    pub fn forget_device(&self, device: &DeviceId) -> Result<(), Failure> {
        let path = self.device_path(device);
        std::fs::remove_file(&path).map_err(Failure::file("remove", &path))
    }

    /// The file of a device.
    pub fn device_path(&self, device: &DeviceId) -> PathBuf {
        self.dir.join("devices").join(format!("{device}.json"))
    }

    /// The file with the events of a device, one JSON a line.
    pub fn events_path(&self, device: &DeviceId) -> PathBuf {
        self.dir.join("devices").join(format!("{device}.events.jsonl"))
    }
}

fn read<T: DeserializeOwned>(what: &'static str, path: &Path) -> Result<Option<T>, Failure> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Failure::file("open", path)(source)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Failure::file("read", path))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::content::<String>(what, path)(format!("it is larger than {LARGEST} bytes")));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(Failure::content(what, path))
}

fn check_format(path: &Path, found: u32) -> Result<(), Failure> {
    if found == FORMAT {
        return Ok(());
    }
    Err(Failure::content::<String>("of a format that this version reads", path)(format!(
        "it has format {found}, this version reads {FORMAT}: update selvedge"
    )))
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let bytes = serde_json::to_vec_pretty(value).map_err(|source| Failure::Internal {
        what: "cannot write the memory of `selvedge push`",
        source: source.into(),
    })?;
    write_atomically(path, &bytes, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[tokio::test]
    async fn what_is_kept_reads_back_and_damage_is_not_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(dir.path()).await.unwrap();
        let name: DeviceId = "edge-1".parse().unwrap();
        assert_eq!(repository.device(&name).unwrap(), None);
        let mut device = Device::new(name.clone());
        device.sequence = 7;
        device.public_key = Some(PublicKey::from_bytes([3; 32]));
        repository.keep_device(&device).unwrap();
        assert_eq!(repository.device(&name).unwrap(), Some(device));
        let mut image = repository.image().unwrap();
        image.targets = Some("x".to_owned());
        repository.keep_image(&image).unwrap();
        assert_eq!(repository.image().unwrap(), image);
        for damage in ["", "{", "{\"format\":2}", "[]"] {
            std::fs::write(repository.device_path(&name), damage).unwrap();
            std::fs::write(dir.path().join("repository.json"), damage).unwrap();
            assert_eq!(repository.device(&name).unwrap_err().exit(), Exit::Refused, "{damage}");
            assert_eq!(repository.image().unwrap_err().exit(), Exit::Refused, "{damage}");
        }
    }

    #[tokio::test]
    async fn one_push_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = Repository::open(dir.path()).await.unwrap();
        let second = Repository::open(dir.path()).await.map(drop);
        assert_eq!(second.unwrap_err().exit(), Exit::Conflict);
        drop(first);
        assert!(Repository::open(dir.path()).await.is_ok());
    }
}
