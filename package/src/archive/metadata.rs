//! The metadata of an archive, and the bundle that a device is offered.

use std::collections::BTreeMap;

use super::path::{Path, of};
use super::{ArchiveError, ArchiveLimits, MetadataName};
use crate::name::DeviceId;
use crate::trust::{DelegatedFile, MetadataBundle, Repository, RepositoryMetadata, file_version};

/// Metadata files by repository and name, in the order in which an archive has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataFiles(BTreeMap<(u8, MetadataName), Vec<u8>>);

impl MetadataFiles {
    /// Adds one file that a [`super::Reader`] gave.
    pub fn insert(&mut self, repository: Repository, name: MetadataName, bytes: Vec<u8>) {
        self.0.insert((of(repository), name), bytes);
    }

    /// Every file.
    pub fn iter(&self) -> impl Iterator<Item = (Repository, &MetadataName, &[u8])> {
        self.0
            .iter()
            .map(|((repository, name), bytes)| (Path::repository(*repository), name, bytes.as_slice()))
    }

    /// Whether there are none: a plain OCI image layout.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The device that the archive was made for, if it was made for one.
    pub fn device(&self) -> Option<&DeviceId> {
        self.0.keys().find_map(|(_, name)| match name {
            MetadataName::Assignment(device) => Some(device),
            _ => None,
        })
    }

    /// The files of a bundle, under the versions that they say they have. A Director without any
    /// metadata is left out. `device` is the one that the assignment is for.
    pub fn of(bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<Self, ArchiveError> {
        let mut files = Self::default();
        for (repository, metadata) in
            [(Repository::Image, &bundle.image), (Repository::Director, &bundle.director)]
        {
            if *metadata == RepositoryMetadata::default() {
                continue;
            }
            let mut put = |name: &dyn Fn(u64) -> MetadataName, bytes: &[u8]| {
                let version = file_version(bytes);
                if version == 0 {
                    let reason = format!("a file of the {repository} repository says no version");
                    return Err(ArchiveError::Metadata { reason });
                }
                files.insert(repository, name(version), bytes.to_vec());
                Ok(())
            };
            for root in &metadata.roots {
                put(&MetadataName::Root, root)?;
            }
            put(&|_| MetadataName::Timestamp, &metadata.timestamp)?;
            put(&MetadataName::Snapshot, &metadata.snapshot)?;
            put(&|version| MetadataName::Targets { role: "targets".into(), version }, &metadata.targets)?;
            for DelegatedFile { role, file } in &metadata.delegated {
                put(&|version| MetadataName::Targets { role: role.clone(), version }, file)?;
            }
        }
        if let Some(device) = device {
            let name = MetadataName::Assignment(device.clone());
            if name.to_string() == MetadataName::Timestamp.to_string() {
                let reason = "a device of this name has no place in an archive".to_owned();
                return Err(ArchiveError::Metadata { reason });
            }
            files.insert(Repository::Director, name, bundle.assignment.clone());
        }
        let (found, most) = (files.0.len(), ArchiveLimits::PACKAGES.metadata);
        if found > most {
            return Err(ArchiveError::TooMany { what: "metadata files", most: most as u64 });
        }
        Ok(files)
    }

    /// The bundle that the files make: nothing of it is verified. A role with two versions is refused;
    /// what is missing is left empty, and [`crate::trust::accept`] says so.
    pub fn bundle(&self) -> Result<MetadataBundle, ArchiveError> {
        let mut bundle = MetadataBundle::default();
        for (repository, name, bytes) in self.iter() {
            let metadata = match repository {
                Repository::Image => &mut bundle.image,
                Repository::Director => &mut bundle.director,
            };
            let file = bytes.to_vec();
            let twice = match name {
                // They come in the order of their versions.
                MetadataName::Root(_) => {
                    metadata.roots.push(file);
                    false
                }
                MetadataName::Timestamp => !std::mem::replace(&mut metadata.timestamp, file).is_empty(),
                MetadataName::Snapshot(_) => !std::mem::replace(&mut metadata.snapshot, file).is_empty(),
                MetadataName::Targets { role, .. } if role == "targets" => {
                    !std::mem::replace(&mut metadata.targets, file).is_empty()
                }
                MetadataName::Targets { role, .. } => {
                    let known = metadata.delegated.iter().any(|delegated| delegated.role == *role);
                    metadata.delegated.push(DelegatedFile { role: role.clone(), file });
                    known
                }
                MetadataName::Assignment(_) => !std::mem::replace(&mut bundle.assignment, file).is_empty(),
            };
            if twice {
                let reason = format!(
                    "there is more than one version of what `{name}` is, in the {repository} repository"
                );
                return Err(ArchiveError::Metadata { reason });
            }
        }
        Ok(bundle)
    }
}
