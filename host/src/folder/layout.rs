//! An OCI image layout, laid out as the host opens packages: files under their names, as hard links to
//! the blobs where that can be, else as copies. What is laid out is checked when it is opened.

use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use selvedge_package::Digest;
use selvedge_package::bundle::{Bundle, parse_oci};
use selvedge_package::limits::Limits;
use serde::Deserialize;

/// `index.json`, as far as it is looked at.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    digest: Digest,
}

/// Lays the only package of the layout in `from` out below `laid`; gives where it is. One that is there is
/// taken as it is.
pub fn lay_out(from: &Path, laid: &Path) -> Result<PathBuf, String> {
    let limits = Limits::PACKAGE;
    let index = read(&from.join("index.json"), limits.oci_manifest_bytes)?;
    let index: Index = serde_json::from_slice(&index).map_err(|error| format!("`index.json`: {error}"))?;
    let [Listed { digest }] = &index.manifests[..] else {
        return Err(format!("its `index.json` lists {} packages: one is wanted", index.manifests.len()));
    };
    let place = laid.join(digest.hex());
    if place.is_dir() {
        return Ok(place);
    }
    let blob = |digest: &Digest| from.join("blobs/sha256").join(digest.hex());
    let manifest = read(&blob(digest), limits.oci_manifest_bytes)?;
    let words = |error: selvedge_package::bundle::BundleError| format!("{:#}", anyhow::Error::from(error));
    let config = parse_oci(&limits, &manifest).map_err(words)?.config.digest;
    let bundle = Bundle::parse(&manifest, &read(&blob(&config), limits.config_bytes)?).map_err(words)?;
    let new = laid.join(format!("{}.new-{}", digest.hex(), std::process::id()));
    let files = bundle.files().map(|file| (file.path.as_str(), file.digest));
    let own = [("package.json", *digest), ("manifest.json", config)];
    let wrong = |what: &str, error: std::io::Error| {
        format!("`{what}` cannot be laid out in `{}`: {error}", laid.display())
    };
    let laying = || -> Result<(), String> {
        if new.exists() {
            std::fs::remove_dir_all(&new).map_err(|error| wrong("it", error))?;
        }
        for (file, digest) in own.into_iter().chain(files) {
            put(&blob(&digest), &new.join(file)).map_err(|error| wrong(file, error))?;
        }
        std::fs::rename(&new, &place).map_err(|error| wrong("it", error))
    };
    let result = laying();
    if result.is_err() {
        // What is left of it is of no use, and goes with the next start at the latest.
        drop(std::fs::remove_dir_all(&new));
    }
    result.map(|()| place)
}

/// Puts a blob under its name.
fn put(blob: &Path, path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    // Across file systems, and where this process is shut in, there are no hard links.
    std::fs::hard_link(blob, path).or_else(|_| {
        // Not `fs::copy`: it sets a mode, which this process may not do any more either.
        let mut from = std::fs::File::open(blob)?;
        let mut to = std::fs::File::create(path)?;
        std::io::copy(&mut from, &mut to).map(drop)
    })
}

/// Removes what is laid out below `laid` and is none of `kept`.
pub fn tidy<'a>(laid: &Path, kept: impl Iterator<Item = &'a Path>) {
    let kept: Vec<_> = kept.filter_map(Path::file_name).map(ToOwned::to_owned).collect();
    let Ok(entries) = std::fs::read_dir(laid) else { return };
    for entry in entries.flatten().filter(|entry| !kept.contains(&entry.file_name())) {
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(%error, directory = %entry.path().display(), "could not be removed");
        }
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let wrong = |error: std::io::Error| format!("`{}`: {error}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > most {
        return Err(format!("`{}` has more than {most} bytes", path.display()));
    }
    Ok(bytes)
}
