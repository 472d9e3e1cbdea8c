//! Packages from elsewhere: an OCI image layout, as a directory or as a tar, whoever wrote it. It
//! becomes a package directory, with every blob compared with its digest.
//!
//! Other tools order a tar as they like and put directories into it, so it is unpacked first, by
//! names that an OCI layout has and within bounds; anything else in it is refused.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Component, Path, PathBuf};

use selvedge_package::archive::ArchiveLimits;
use selvedge_package::bundle::parse_oci;
use selvedge_package::chunks::ChunkIndexer;
use selvedge_package::limits::Limits;
use selvedge_package::{Bundle, Digest};

use crate::failure::Failure;
use crate::packaging::layout::{Layout, blob_path, finish, listed, read};

/// Entries that a tar may have.
const MOST_ENTRIES: usize = 20_000;
/// Bytes copied in one piece.
const PIECE: usize = 1 << 20;

/// The packages that a layout directory holds: those of its index that are packages of ours.
pub fn packages(dir: &Path) -> Result<Vec<Bundle>, Failure> {
    let mut found = Vec::new();
    let mut others = 0;
    for descriptor in listed(dir)? {
        let path = blob_path(dir, &descriptor.digest);
        let manifest = verified(dir, &descriptor.digest, Limits::PACKAGE.oci_manifest_bytes)?;
        let Ok(outer) = parse_oci(&Limits::PACKAGE, &manifest) else {
            others += 1;
            continue;
        };
        let config = verified(dir, &outer.config.digest, Limits::PACKAGE.config_bytes)?;
        found.push(Bundle::parse(&manifest, &config).map_err(Failure::content("a package", &path))?);
    }
    if found.is_empty() {
        return Err(Failure::refused(
            format!("{} holds no package of Selvedge", dir.display()),
            format!("it lists {others} other things; packages are made by `selvedge package`"),
        ));
    }
    Ok(found)
}

/// Copies one package of a layout directory into the empty directory `out`.
pub async fn adopt(from: &Path, bundle: Bundle, out: &Path) -> Result<Layout, Failure> {
    let blobs = out.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).map_err(Failure::file("make", &blobs))?;
    let own = (bundle.digest(), bundle.length());
    let all = bundle.blobs().into_iter().map(|blob| (blob.digest, blob.size)).chain([own]);
    for (digest, size) in all.collect::<BTreeSet<_>>() {
        let (source, target) = (blob_path(from, &digest), blob_path(out, &digest));
        let mut to = File::create_new(&target).map_err(Failure::file("write", &target))?;
        let found = copy(&source, size, &mut to).await?;
        if found != digest {
            return Err(Failure::content("what its name says", &source)("its digest is another one"));
        }
    }
    finish(out, bundle)
}

/// Copies a blob of exactly that many bytes; its digest.
async fn copy(source: &Path, size: u64, to: &mut File) -> Result<Digest, Failure> {
    let from = File::open(source).map_err(Failure::file("open", source))?;
    let length = from.metadata().map_err(Failure::file("read", source))?.len();
    if length != size {
        return Err(Failure::content::<String>("whole", source)(format!(
            "it has {length} bytes instead of {size}"
        )));
    }
    let mut from = from.take(size);
    let (mut hashing, mut piece) = (ChunkIndexer::new(), vec![0; PIECE]);
    loop {
        let length = from.read(&mut piece).map_err(Failure::file("read", source))?;
        if length == 0 {
            return Ok(hashing.finish().digest);
        }
        hashing.update(&piece[..length]);
        to.write_all(&piece[..length]).map_err(Failure::file("copy", source))?;
        tokio::task::yield_now().await;
    }
}

fn verified(dir: &Path, digest: &Digest, most: u64) -> Result<Vec<u8>, Failure> {
    let path = blob_path(dir, digest);
    let bytes = read(&path, most)?;
    if Digest::of(&bytes) != *digest {
        return Err(Failure::content("what its name says", &path)("its digest is another one"));
    }
    Ok(bytes)
}

/// Unpacks a tar of an OCI layout into the empty directory `dir`.
pub fn unpack(file: &Path, dir: &Path) -> Result<(), Failure> {
    let limits = ArchiveLimits::PACKAGES;
    let open = File::open(file).map_err(Failure::file("open", file))?;
    let all = limits.total_bytes.saturating_add(limits.metadata_bytes).saturating_mul(2);
    let mut tar = tar::Archive::new(open.take(all));
    let wrong = |why: String| Failure::content::<String>("a tar of an OCI image layout", file)(why);
    let (mut total, mut seen) = (0u64, BTreeSet::new());
    for (count, entry) in tar.entries().map_err(|error| wrong(error.to_string()))?.enumerate() {
        let entry = entry.map_err(|error| wrong(error.to_string()))?;
        let path = entry.path().map_err(|error| wrong(error.to_string()))?.into_owned();
        let Some(name) = plain(&path) else {
            return Err(wrong(format!("it has an entry `{}`", path.display())));
        };
        if count >= MOST_ENTRIES {
            return Err(wrong(format!("it has more than {MOST_ENTRIES} entries")));
        }
        match entry.header().entry_type() {
            tar::EntryType::Directory => continue,
            tar::EntryType::Regular => {}
            _ => return Err(wrong(format!("its entry `{name}` is no regular file"))),
        }
        let most = match name.as_str() {
            "oci-layout" => limits.layout_bytes,
            "index.json" => limits.index_bytes,
            name if is_blob(name) => limits.blob_bytes,
            name if is_metadata(name) => limits.metadata_bytes,
            _ => return Err(wrong(format!("it has an entry `{name}`, which no OCI layout has"))),
        };
        total = total.saturating_add(entry.size());
        if entry.size() > most || total > limits.total_bytes {
            return Err(wrong(format!("`{name}` is too large: {} bytes", entry.size())));
        }
        if !seen.insert(name.clone()) {
            return Err(wrong(format!("it has `{name}` twice")));
        }
        let place = dir.join(&name);
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent).map_err(Failure::file("make", parent))?;
        }
        let mut to = File::create_new(&place).map_err(Failure::file("write", &place))?;
        let size = entry.size();
        let copied = std::io::copy(&mut entry.take(size), &mut to).map_err(Failure::file("unpack", file))?;
        if copied != size {
            return Err(wrong(format!("it ends in the middle of `{name}`; copy it again")));
        }
    }
    if ["oci-layout", "index.json"].iter().all(|name| seen.contains(*name)) {
        return Ok(());
    }
    Err(wrong("it has no `oci-layout` and `index.json`".to_owned()))
}

/// The name of an entry without `./`; `None` for one that leads elsewhere.
fn plain(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_str()?),
            _ => return None,
        }
    }
    Some(parts.join("/"))
}

fn is_blob(name: &str) -> bool {
    name.strip_prefix("blobs/sha256/").is_some_and(|hex| Digest::from_hex(hex).is_ok())
}

fn is_metadata(name: &str) -> bool {
    let rest = name.strip_prefix("selvedge/image/").or_else(|| name.strip_prefix("selvedge/director/"));
    rest.is_some_and(|file| file.ends_with(".json") && !file.contains('/'))
}

/// A directory beside `out` that disappears again.
pub fn beside(out: &Path) -> Result<tempfile::TempDir, Failure> {
    let parent =
        out.parent().filter(|dir| !dir.as_os_str().is_empty()).map_or(PathBuf::from("."), Path::to_owned);
    tempfile::Builder::new()
        .prefix(".selvedge-")
        .tempdir_in(&parent)
        .map_err(Failure::file("write in", &parent))
}
