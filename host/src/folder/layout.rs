//! An OCI image layout, laid out as the host opens packages: files under their names, as hard links to
//! the blobs where that can be, else as copies. What is laid out is checked when it is opened.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use selvedge_package::Digest;
use selvedge_package::bundle::{Bundle, parse_oci};
use selvedge_package::limits::Limits;
use serde::Deserialize;

use super::place;
use crate::runtime::directory::Directory;

/// Held while something is laid out or taken away: the folder is looked at by several at once.
static LAYING: Mutex<()> = Mutex::new(());

/// What is laid out has a name of its own until it is whole.
static NUMBER: AtomicU64 = AtomicU64::new(0);

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
/// taken as it is, if it is whole.
pub fn lay_out(from: &Path, laid: &Path) -> Result<PathBuf, String> {
    let limits = Limits::PACKAGE;
    let index = read(&from.join("index.json"), limits.oci_manifest_bytes)?;
    let index: Index = serde_json::from_slice(&index).map_err(|error| format!("`index.json`: {error}"))?;
    let [Listed { digest }] = &index.manifests[..] else {
        return Err(format!("its `index.json` lists {} packages: one is wanted", index.manifests.len()));
    };
    let place = laid.join(digest.hex());
    let _one_at_a_time = LAYING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_whole(&place, *digest) {
        return Ok(place);
    }
    let blob = |digest: &Digest| from.join("blobs/sha256").join(digest.hex());
    let manifest = read(&blob(digest), limits.oci_manifest_bytes)?;
    let words = |error: selvedge_package::bundle::BundleError| format!("{:#}", anyhow::Error::from(error));
    let config = parse_oci(&limits, &manifest).map_err(words)?.config.digest;
    let bundle = Bundle::parse(&manifest, &read(&blob(&config), limits.config_bytes)?).map_err(words)?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let new = laid.join(format!("{}.new-{}-{number}", digest.hex(), std::process::id()));
    let files = bundle.files().map(|file| (file.path.as_str(), file.digest));
    let own = [("package.json", *digest), ("manifest.json", config)];
    let wrong = |what: &str, error: std::io::Error| {
        format!("`{what}` cannot be laid out in `{}`: {error}", laid.display())
    };
    let laying = || -> Result<(), String> {
        let mut directories = BTreeSet::new();
        for half_made in [&new, &place] {
            if half_made.exists() {
                std::fs::remove_dir_all(half_made).map_err(|error| wrong("it", error))?;
            }
        }
        for (file, digest) in own.into_iter().chain(files) {
            let parents = put(&blob(&digest), &new, file).map_err(|error| wrong(file, error))?;
            directories.extend(parents);
        }
        directories.iter().try_for_each(|directory| keep(directory)).map_err(|error| wrong("it", error))?;
        std::fs::rename(&new, &place).and_then(|()| keep(laid)).map_err(|error| wrong("it", error))
    };
    let result = laying();
    if result.is_err() {
        // What is left of it is of no use, and goes with the next start at the latest.
        drop(std::fs::remove_dir_all(&new));
    }
    result.map(|()| place)
}

/// Whether the package is there with all its files at their length. What they hold is checked when it is opened.
fn is_whole(place: &Path, digest: Digest) -> bool {
    let Ok(directory) = Directory::read(place, Some(digest)) else { return false };
    directory.bundle().files().all(|file| {
        let found = std::fs::symlink_metadata(place.join(file.path.as_str()));
        found.is_ok_and(|found| found.is_file() && found.len() == file.size)
    })
}

/// Has what a directory lists kept, whatever happens to the machine.
fn keep(directory: &Path) -> std::io::Result<()> {
    std::fs::File::open(directory)?.sync_all()
}

/// Puts a blob under its name in `new`; gives the directories that it is in.
fn put(blob: &Path, new: &Path, file: &str) -> std::io::Result<Vec<PathBuf>> {
    let path = new.join(file);
    let parent = path.parent().unwrap_or(new);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    // Across file systems, and where this process is shut in, there are no hard links.
    std::fs::hard_link(blob, &path).or_else(|_| {
        // Not `fs::copy`: it sets a mode, which this process may not do any more either.
        let mut from = std::fs::File::open(blob)?;
        let mut to = std::fs::File::create(&path)?;
        std::io::copy(&mut from, &mut to)?;
        to.sync_all()
    })?;
    let within = parent.ancestors().take_while(|directory| directory.starts_with(new));
    Ok(within.map(Path::to_owned).collect())
}

/// Removes what was laid out below `laid` and is none of `kept`. What has another name was put there by
/// somebody else, and stays.
pub fn tidy<'a>(laid: &Path, kept: impl Iterator<Item = &'a Path>) {
    let _one_at_a_time = LAYING.lock().unwrap_or_else(PoisonError::into_inner);
    let kept: Vec<_> = kept.filter_map(Path::file_name).map(ToOwned::to_owned).collect();
    let Ok(entries) = std::fs::read_dir(laid) else { return };
    let gone = |name: &std::ffi::OsString| place::is_own(name) && !kept.contains(name);
    for entry in entries.flatten().filter(|entry| gone(&entry.file_name())) {
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
