//! Packages as the host opens them: a directory of hard links to blobs, under the manifest's names.
//!
//! A directory is made under another name, synced and renamed, so that one that is there is whole.
//! Where the file system has no hard links the files are copied.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use selvedge_package::Digest;
use selvedge_package::bundle::Bundle;

use super::disk::beside;
use super::{Store, StoreError};

impl Store {
    /// Lays a package out, unless it is. Every blob of it must be stored.
    pub fn lay_out(&self, bundle: &Bundle) -> Result<PathBuf, StoreError> {
        let place = self.package_path(&bundle.digest());
        if self.disk.size(&place).map_err(StoreError::io("look at", &place))?.is_some() {
            return Ok(place);
        }
        let temporary = beside(&place);
        self.remove_tree_if_there(&temporary)?;
        self.disk.make_directory(&temporary).map_err(StoreError::io("make", &temporary))?;
        self.link(&bundle.digest(), &temporary.join("package.json"))?;
        self.link(&bundle.oci().config.digest, &temporary.join("manifest.json"))?;
        let mut directories = vec![temporary.clone()];
        for file in bundle.files() {
            let path = temporary.join(file.path.as_str());
            if let Some(parent) = path.parent()
                && !directories.iter().any(|known| known == parent)
            {
                self.disk.make_directory(parent).map_err(StoreError::io("make", parent))?;
                directories.push(parent.to_owned());
            }
            self.link(&file.digest, &path)?;
        }
        for directory in directories.iter().rev() {
            self.disk.sync_directory(directory).map_err(StoreError::io("sync", directory))?;
        }
        self.disk.rename(&temporary, &place).map_err(StoreError::io("rename to", &place))?;
        self.sync_directory_of(&place)?;
        Ok(place)
    }

    /// Takes a package's directory away; it may be gone already. Its blobs stay.
    pub fn remove_layout(&self, package: &Digest) -> Result<(), StoreError> {
        self.remove_tree_if_there(&self.package_path(package))
    }

    fn link(&self, digest: &Digest, to: &Path) -> Result<(), StoreError> {
        let from = self.blob_path(digest);
        match self.disk.hard_link(&from, to) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(StoreError::Missing { digest: *digest }),
            // The same blob under one name twice cannot be: paths of a bundle differ.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied
                        | ErrorKind::Unsupported
                        | ErrorKind::TooManyLinks
                        | ErrorKind::CrossesDevices
                ) =>
            {
                self.copy(&from, to)
            }
            Err(error) => Err(StoreError::io("link", to)(error)),
        }
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let source = self.disk.open(from).map_err(StoreError::io("open", from))?;
        let target = self.disk.create(to).map_err(StoreError::io("make", to))?;
        let mut piece = vec![0; 64 * 1024];
        let mut offset = 0;
        loop {
            let read = source.read_at(offset, &mut piece).map_err(StoreError::io("read", from))?;
            if read == 0 {
                break;
            }
            target.write_at(offset, &piece[..read]).map_err(StoreError::io("write", to))?;
            offset += read as u64;
        }
        target.sync().map_err(StoreError::io("sync", to))
    }

    pub(super) fn remove_tree_if_there(&self, path: &Path) -> Result<(), StoreError> {
        match self.disk.remove_tree(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }
}
