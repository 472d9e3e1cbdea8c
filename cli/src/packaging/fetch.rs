//! A released package out of the registry, into a directory as `selvedge package` makes it. Every
//! blob is compared with its digest.

use std::path::Path;

use selvedge_package::bundle::parse_oci;
use selvedge_package::limits::Limits;
use selvedge_package::{Bundle, Digest};

use crate::client::Registry;
use crate::failure::Failure;
use crate::packaging::layout::{Layout, blob_path, finish, read};
use crate::progress::Bytes;

/// Fetches the package whose OCI manifest has this digest into the empty directory `dir`.
pub async fn package(
    out: crate::output::Output,
    registry: &Registry,
    digest: Digest,
    dir: &Path,
) -> Result<Layout, Failure> {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).map_err(Failure::file("make", &blobs))?;
    let limits = Limits::PACKAGE;
    let place = blob_path(dir, &digest);
    registry.get_blob(&digest, limits.oci_manifest_bytes, &place, |_| {}).await?;
    let manifest = read(&place, limits.oci_manifest_bytes)?;
    let outer =
        parse_oci(&limits, &manifest).map_err(Failure::content("the manifest of a package", &place))?;
    let config = blob_path(dir, &outer.config.digest);
    registry.get_blob(&outer.config.digest, limits.config_bytes, &config, |_| {}).await?;
    let bundle = Bundle::parse(&manifest, &read(&config, limits.config_bytes)?)
        .map_err(Failure::content("a package", dir))?;
    let manifest = bundle.manifest();
    let bar = Bytes::begin(out, &format!("fetching {} {}", manifest.name, manifest.version), bundle.size());
    for blob in bundle.blobs() {
        let place = blob_path(dir, &blob.digest);
        if !place.exists() {
            registry.get_blob(&blob.digest, blob.size, &place, bar.counter()).await?;
        }
    }
    bar.end();
    finish(dir, bundle)
}
