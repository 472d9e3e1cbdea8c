//! Files that people sign, on disk: single ones, and folders of them as they travel.
//!
//! A folder holds `ROLE.json` for every file that changes and, in `before/`, the files that they take
//! the place of, so that whoever signs can compare. What travels is believed only as far as it is
//! signed.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use selvedge_package::trust::{ImageFiles, bins};
use selvedge_signing::tree::ChangedFiles;

use crate::failure::Failure;
use crate::supervisor::record::write_atomically;

/// Largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Most files in a folder.
const MOST: usize = 10_000;
/// The folder of what was before.
const BEFORE: &str = "before";

/// Reads one.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Failure::no_file(path, "name a file that is to be signed, or a root"),
        _ => Failure::file("open", path)(source),
    })?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Failure::file("read", path))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::content::<String>("signed metadata", path)(format!(
            "it is larger than {LARGEST} bytes"
        )));
    }
    Ok(bytes)
}

/// The file that is named, or the `.json` files of the folder that is named, in the order of their
/// names.
pub fn named(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Failure::file("list", path))?.take(MOST) {
        let file = entry.map_err(Failure::file("list", path))?.path();
        if file.extension().is_some_and(|ext| ext == "json") && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Failure::missing(
            format!("{} holds no .json file", path.display()),
            "name a file, or the folder of a proposal",
        ));
    }
    Ok(files)
}

/// Writes a proposal into a folder that must not be there yet.
pub fn propose(dir: &Path, changed: &ChangedFiles, before: Option<&ImageFiles>) -> Result<(), Failure> {
    let make =
        |dir: &Path| DirBuilder::new().mode(0o755).create(dir).map_err(Failure::file("make the folder", dir));
    make(dir)?;
    for (role, file) in &changed.0 {
        write_atomically(&dir.join(format!("{role}.json")), file, true)?;
    }
    if let Some(before) = before {
        let dir = dir.join(BEFORE);
        make(&dir)?;
        for (role, file) in before.roles() {
            write_atomically(&dir.join(format!("{role}.json")), file, true)?;
        }
    }
    Ok(())
}

/// Reads the files of a proposal, by role. The name says the role; a root is none of them.
pub fn proposal(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let mut roles = BTreeMap::new();
    for path in named(dir)? {
        let role = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if role == "targets" || bins::prefix(role).is_some() {
            roles.insert(role.to_owned(), read(&path)?);
        }
    }
    if roles.is_empty() {
        return Err(Failure::missing(
            format!("{} holds no list of releases", dir.display()),
            "`selvedge release --propose DIR` and `selvedge trust renew --propose DIR` make such a folder",
        ));
    }
    Ok(roles)
}

/// What the proposal takes the place of; `None` where there was nothing.
pub fn before(dir: &Path) -> Result<Option<ImageFiles>, Failure> {
    let dir = dir.join(BEFORE);
    if !dir.is_dir() {
        return Ok(None);
    }
    let mut files = ImageFiles::default();
    for (role, file) in proposal(&dir)? {
        files.set(&role, file);
    }
    Ok(Some(files))
}
