//! Reading the file: from bytes that anyone may have made to blobs in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use selvedge_package::archive::{ArchiveError, ArchiveLimits, Blob, Entry, MetadataFiles, Reader};
use selvedge_package::bundle::parse_oci;
use selvedge_package::chunks::{ChunkIndex, index_size};
use selvedge_package::limits::Limits;
use selvedge_package::trust::MetadataBundle;
use selvedge_package::{Bundle, Digest};

use super::{Gate, ImportError, Imported, MOST_PACKAGES, Permit};
use crate::store::{MARGIN, Put, Store, StoreError};

/// Takes a file. On an error nothing is left of it that the device did not have or need before.
pub fn take(file: impl Read, store: &Store, gate: &mut impl Gate) -> Result<Imported, ImportError> {
    let mut packages = BTreeSet::new();
    match read(file, store, gate, &mut packages) {
        Ok(imported) => Ok(imported),
        Err(error) => {
            gate.give_up(&packages);
            Err(error)
        }
    }
}

fn read(
    file: impl Read,
    store: &Store,
    gate: &mut impl Gate,
    packages: &mut BTreeSet<Digest>,
) -> Result<Imported, ImportError> {
    let mut reader = Reader::new(file, ArchiveLimits::PACKAGES);
    let mut files = MetadataFiles::default();
    let mut index = Vec::new();
    let mut offered = MetadataBundle::default();
    let mut taking: Option<Taking<'_>> = None;
    while let Some(entry) = reader.next_entry()? {
        match entry {
            Entry::Layout => {}
            Entry::Index(bytes) => index = listed(&bytes)?,
            Entry::Metadata { repository, name, bytes } => files.insert(repository, name, bytes),
            Entry::Blob(blob) => {
                let taking = match &mut taking {
                    Some(taking) => taking,
                    // The first blob: all metadata has come.
                    none => {
                        offered = files.bundle()?;
                        let permit = judge(&files, &offered, gate)?;
                        none.insert(Taking::new(store, permit, &index))
                    }
                };
                taking.blob(blob, gate, packages)?;
            }
        }
    }
    let Some(taking) = taking else {
        return Err(ImportError::Content("it holds no package".to_owned()));
    };
    let mut imported = taking.end()?;
    if files.device().is_some() {
        gate.accept(&offered)?;
        imported.accepted = true;
    }
    Ok(imported)
}

fn judge(
    files: &MetadataFiles,
    offered: &MetadataBundle,
    gate: &mut impl Gate,
) -> Result<Permit, ImportError> {
    if files.is_empty() {
        let what = "it comes without the metadata that vouches for it; `selvedge export` makes files with it";
        return Err(ImportError::refused("no-metadata", what));
    }
    gate.judge(offered, files.device())
}

/// The manifests that an `index.json` lists.
fn listed(bytes: &[u8]) -> Result<Vec<Digest>, ImportError> {
    #[derive(serde::Deserialize)]
    struct Index {
        manifests: Vec<Descriptor>,
    }
    #[derive(serde::Deserialize)]
    struct Descriptor {
        digest: Digest,
    }
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|error| ImportError::Content(format!("its index.json cannot be read: {error}")))?;
    if index.manifests.is_empty() || index.manifests.len() > MOST_PACKAGES {
        let found = index.manifests.len();
        let what = format!("it lists {found} packages; 1 to {MOST_PACKAGES} are taken from one file");
        return Err(ImportError::Content(what));
    }
    Ok(index.manifests.into_iter().map(|descriptor| descriptor.digest).collect())
}

/// The blobs of a file on their way into the store.
struct Taking<'a> {
    store: &'a Store,
    permit: Permit,
    /// Manifests that were listed and have not come.
    awaited: BTreeSet<Digest>,
    /// Manifests whose config has not come, by the config's digest.
    halves: BTreeMap<Digest, Vec<u8>>,
    bundles: Vec<Bundle>,
    imported: Imported,
}

impl<'a> Taking<'a> {
    fn new(store: &'a Store, permit: Permit, index: &[Digest]) -> Self {
        let awaited = index.iter().copied().collect();
        Self {
            store,
            permit,
            awaited,
            halves: BTreeMap::new(),
            bundles: Vec::new(),
            imported: Imported::default(),
        }
    }

    fn blob<R: Read>(
        &mut self,
        blob: Blob<'_, R>,
        gate: &mut impl Gate,
        packages: &mut BTreeSet<Digest>,
    ) -> Result<(), ImportError> {
        let limits = &Limits::PACKAGE;
        if self.awaited.remove(&blob.digest) {
            let manifest = blob.bytes(limits.oci_manifest_bytes)?;
            let oci = parse_oci(limits, &manifest).map_err(content)?;
            if self.halves.insert(oci.config.digest, manifest).is_some() {
                return Err(ImportError::Content("two of its packages have one config".to_owned()));
            }
            return Ok(());
        }
        if let Some(manifest) = self.halves.remove(&blob.digest) {
            let config = blob.bytes(limits.config_bytes)?;
            let bundle = Bundle::parse(&manifest, &config).map_err(content)?;
            self.permit.admits(&bundle)?;
            self.room(&bundle)?;
            packages.insert(bundle.digest());
            gate.keep(packages)?;
            for bytes in [manifest, config] {
                self.small(&bytes)?;
            }
            let manifest = bundle.manifest();
            let name = format!("{} {} (release {})", manifest.name, manifest.version, manifest.release);
            self.imported.packages.push(name);
            self.bundles.push(bundle);
            return Ok(());
        }
        let digest = blob.digest;
        let found = self.bundles.iter().find_map(|bundle| {
            let known = bundle.blobs().into_iter().find(|known| known.digest == digest)?;
            Some((known.size, bundle.index_of(&digest).map(|index| index.digest)))
        });
        let Some((size, index)) = found else {
            let what = format!("blob {digest} belongs to no package that is before it in the file");
            return Err(ImportError::Content(what));
        };
        if blob.size != size {
            return Err(ArchiveError::Blob { digest }.into());
        }
        if self.store.has(&digest)? {
            return Ok(());
        }
        let index = match index {
            None => ChunkIndex::without_index(digest, size).map_err(content)?,
            Some(index) => {
                let most = index_size(size).unwrap_or(0);
                let bytes = self.store.read_small(&index, most).map_err(|error| match error {
                    StoreError::Missing { .. } => {
                        ImportError::Content(format!("blob {digest} comes before its index {index}"))
                    }
                    error => error.into(),
                })?;
                ChunkIndex::parse(&bytes, size).map_err(content)?
            }
        };
        self.chunks(blob, index)
    }

    /// Takes a blob chunk by chunk; each is compared before it is written.
    fn chunks<R: Read>(&mut self, mut blob: Blob<'_, R>, index: ChunkIndex) -> Result<(), ImportError> {
        let (digest, size) = (blob.digest, index.size());
        let mut partial = self.store.partial(digest, index.clone())?;
        let mut chunk = Vec::new();
        for n in 0..index.len() {
            let Some(part) = index.chunk(n) else { continue };
            chunk.resize(part.length as usize, 0);
            blob.read_exact(&mut chunk).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    ImportError::Archive(ArchiveError::Truncated { inside: format!("blob {digest}") })
                }
                _ => ImportError::Archive(ArchiveError::Io { action: "read", source: error }),
            })?;
            if partial.put(n, &chunk)? == Put::Spoiled {
                drop(partial);
                self.store.drop_partial(&digest)?;
                return Err(ArchiveError::Blob { digest }.into());
            }
            // As often as a transfer does.
            if n % 64 == 63 {
                partial.checkpoint()?;
            }
        }
        match partial.finish() {
            Ok(()) => {}
            // It came over the link meanwhile.
            Err(_) if self.store.has(&digest)? => {}
            Err(error) => return Err(error.into()),
        }
        self.imported.blobs += 1;
        self.imported.bytes += size;
        Ok(())
    }

    fn small(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        if !self.store.has(&Digest::of(bytes))? {
            self.store.put_blob(bytes)?;
            self.imported.blobs += 1;
            self.imported.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// A package is not begun where it does not fit.
    fn room(&self, bundle: &Bundle) -> Result<(), ImportError> {
        let needed: u64 =
            bundle.blobs().iter().map(|blob| self.store.still_to_write(&blob.digest, blob.size)).sum();
        let free = self.store.free().saturating_sub(MARGIN);
        if needed <= free {
            return Ok(());
        }
        let what = format!(
            "`{}` needs {} MiB, there are {} MiB for packages: make room on the device's disk",
            bundle.manifest().name,
            needed.div_ceil(1 << 20),
            free >> 20
        );
        Err(ImportError::refused("disk-full", what))
    }

    /// The file has ended: every package of it is whole.
    fn end(self) -> Result<Imported, ImportError> {
        if let Some(digest) = self.awaited.first() {
            return Err(ImportError::Content(format!("it lists the package {digest} and does not hold it")));
        }
        if let Some((config, _)) = self.halves.first_key_value() {
            return Err(ImportError::Content(format!("a package's config {config} is missing")));
        }
        for bundle in &self.bundles {
            for blob in bundle.blobs() {
                if !self.store.has(&blob.digest)? {
                    let name = &bundle.manifest().name;
                    return Err(ImportError::Content(format!("blob {} of `{name}` is missing", blob.digest)));
                }
            }
        }
        if let Some(desired) = &self.permit.desired {
            let has = |digest: &Digest| self.bundles.iter().any(|bundle| bundle.digest() == *digest);
            for assigned in &desired.assignments {
                if !has(&assigned.digest) && !self.store.has(&assigned.digest)? {
                    let what = format!(
                        "`{}` is assigned to this device, and neither the file nor the device has it",
                        assigned.package
                    );
                    return Err(ImportError::Content(what));
                }
            }
        }
        Ok(self.imported)
    }
}

fn content(error: impl std::error::Error) -> ImportError {
    ImportError::Content(crate::failure::chain(&error))
}
