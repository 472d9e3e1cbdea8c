//! Garbage collection: marks what the deployment needs, removes the rest.
//!
//! Runs between two steps of the agent's loop, so nothing is stored or linked meanwhile that it
//! could miss. What it cannot read it treats as needed by nobody; a package whose manifest is
//! damaged will be fetched again, its other blobs with it.

use std::collections::BTreeSet;

use selvedge_package::Digest;
use selvedge_package::bundle::{self, Bundle};
use selvedge_package::limits::Limits;

use super::disk::TEMPORARY;
use super::{Store, StoreError};

const PARTIAL: &str = "partial";

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Blobs.
    pub blobs: usize,
    /// Package directories.
    pub packages: usize,
    /// Partial blobs.
    pub partials: usize,
    /// Half-written leftovers.
    pub leftovers: usize,
}

impl Store {
    /// The package, as far as it is stored: `None` where one of its two manifests is not there yet.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a manifest whose bytes have changed.
    pub fn bundle(
        &self,
        package: &Digest,
    ) -> Result<Option<Result<Bundle, bundle::BundleError>>, StoreError> {
        let limits = &Limits::PACKAGE;
        if !self.has(package)? {
            return Ok(None);
        }
        let manifest = self.read_small(package, limits.oci_manifest_bytes)?;
        let oci = match bundle::parse_oci(limits, &manifest) {
            Ok(oci) => oci,
            Err(error) => return Ok(Some(Err(error))),
        };
        if !self.has(&oci.config.digest)? {
            return Ok(None);
        }
        let config = self.read_small(&oci.config.digest, limits.config_bytes)?;
        Ok(Some(Bundle::parse(&manifest, &config)))
    }

    /// Removes everything that none of these packages needs.
    pub fn collect(&self, packages: &BTreeSet<Digest>) -> Result<Collected, StoreError> {
        let mut needed = packages.clone();
        for package in packages {
            match self.bundle(package) {
                Ok(Some(Ok(bundle))) => needed.extend(bundle.blobs().iter().map(|blob| blob.digest)),
                Ok(Some(Err(_)) | None) => {
                    // Its manifest may be there and its config on the way.
                    if let Ok(bytes) = self.read_small(package, Limits::PACKAGE.oci_manifest_bytes)
                        && let Ok(oci) = bundle::parse_oci(&Limits::PACKAGE, &bytes)
                    {
                        needed.insert(oci.config.digest);
                        needed.extend(oci.layers.iter().map(|layer| layer.digest));
                    }
                }
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut collected = Collected::default();
        for (name, digest) in self.names("packages")? {
            let path = self.root.join("packages").join(&name);
            match digest {
                Some(digest) if packages.contains(&digest) => continue,
                Some(_) => collected.packages += 1,
                None => collected.leftovers += 1,
            }
            self.remove_tree_if_there(&path)?;
        }
        for (place, count) in [("blobs/sha256", &mut collected.blobs), (PARTIAL, &mut collected.partials)] {
            for (name, digest) in self.names(place)? {
                match digest {
                    // A power cut can leave a blob in both places.
                    Some(digest)
                        if needed.contains(&digest) && (place != PARTIAL || !self.has(&digest)?) =>
                    {
                        continue;
                    }
                    Some(_) => *count += 1,
                    None if name.ends_with(TEMPORARY) => collected.leftovers += 1,
                    None => continue,
                }
                self.remove_if_there(&self.root.join(place).join(&name))?;
            }
        }
        self.drop_bitmaps(|digest| needed.contains(digest))?;
        Ok(collected)
    }

    fn names(&self, place: &str) -> Result<Vec<(String, Option<Digest>)>, StoreError> {
        let path = self.root.join(place);
        let names = self.disk.list(&path).map_err(StoreError::io("list", &path))?;
        Ok(names
            .into_iter()
            .map(|name| {
                let digest = Digest::from_hex(&name).ok();
                (name, digest)
            })
            .collect())
    }
}
