//! The folder `selvedge/` of an OCI image layout: the signed metadata that travels with packages, under
//! the names that a file of `selvedge export` has. Other tools leave it alone.
//!
//! It may come from anyone: only files of these names are taken, bounded before they are read, and
//! none through a link.

use std::fs::{self, DirEntry};
use std::path::Path;

use selvedge_package::archive::{ArchiveLimits, MetadataFiles, MetadataName};
use selvedge_package::trust::Repository;

use super::layout;
use crate::failure::Failure;

const NAME: &str = "selvedge";
const REPOSITORIES: [(&str, Repository); 2] =
    [("image", Repository::Image), ("director", Repository::Director)];

/// Writes it into the layout in `dir`; no folder where there is no metadata.
pub fn write(dir: &Path, files: &MetadataFiles) -> Result<(), Failure> {
    for (repository, name, bytes) in files.iter() {
        let known = REPOSITORIES.iter().find(|(_, known)| *known == repository);
        let (folder, _) = known.expect("both repositories have a folder");
        let folder = dir.join(NAME).join(folder);
        fs::create_dir_all(&folder).map_err(Failure::file("make", &folder))?;
        let path = folder.join(name.to_string());
        fs::write(&path, bytes).map_err(Failure::file("write", &path))?;
    }
    Ok(())
}

/// Reads it; a plain layout has none.
pub fn read(dir: &Path) -> Result<MetadataFiles, Failure> {
    let (top, limits) = (dir.join(NAME), ArchiveLimits::PACKAGES);
    let (mut files, mut count, mut total) = (MetadataFiles::default(), 0, 0);
    match fs::symlink_metadata(&top) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(files),
        Err(source) => return Err(Failure::file("read", &top)(source)),
        Ok(found) if !found.is_dir() => return Err(strange(&top, "it is not a folder")),
        Ok(_) => {}
    }
    for entry in entries(&top, REPOSITORIES.len())? {
        let named = entry.file_name();
        let known = REPOSITORIES.iter().find(|(name, _)| named == *name);
        let (Some((_, repository)), true) = (known, is(&entry, fs::FileType::is_dir)?) else {
            return Err(strange(&entry.path(), "there is no such repository"));
        };
        for entry in entries(&entry.path(), limits.metadata)? {
            let (path, named) = (entry.path(), entry.file_name());
            let name = named.to_str().and_then(|text| {
                MetadataName::parse(*repository, text).filter(|name| name.to_string() == text)
            });
            let (Some(name), true) = (name, is(&entry, fs::FileType::is_file)?) else {
                return Err(strange(&path, "a repository has no such file"));
            };
            let bytes = layout::read(&path, name.most(*repository) as u64)?;
            (count, total) = (count + 1, total + bytes.len() as u64);
            if count > limits.metadata || total > limits.metadata_bytes {
                return Err(strange(&path, "there is more metadata than any device reads"));
            }
            files.insert(*repository, name, bytes);
        }
    }
    Ok(files)
}

/// What a folder holds, in any order; more than `most` are refused.
fn entries(dir: &Path, most: usize) -> Result<Vec<DirEntry>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Failure::file("list", dir))? {
        if found.len() == most {
            return Err(strange(dir, "it holds more than belongs there"));
        }
        found.push(entry.map_err(Failure::file("list", dir))?);
    }
    Ok(found)
}

/// The kind of the entry itself: links are not followed.
fn is(entry: &DirEntry, kind: fn(&fs::FileType) -> bool) -> Result<bool, Failure> {
    Ok(kind(&entry.file_type().map_err(Failure::file("read", &entry.path()))?))
}

fn strange(path: &Path, why: &'static str) -> Failure {
    Failure::content::<String>("metadata beside packages", path)(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn files() -> MetadataFiles {
        let mut files = MetadataFiles::default();
        for (repository, name) in [
            (Repository::Image, "1.root.json"),
            (Repository::Image, "7.bin-0f.json"),
            (Repository::Director, "timestamp.json"),
            (Repository::Director, "edge-1.json"),
        ] {
            files.insert(repository, MetadataName::parse(repository, name).unwrap(), name.into());
        }
        files
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_empty());
        write(dir.path(), &MetadataFiles::default()).unwrap();
        assert!(!dir.path().join(NAME).exists());
        write(dir.path(), &files()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), files());
    }

    #[test]
    fn nothing_is_read_that_does_not_belong_there() {
        let check = |make: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &files()).unwrap();
            make(&dir.path().join(NAME));
            assert_eq!(read(dir.path()).map(drop).map_err(|failure| failure.exit()), Err(Exit::Refused));
        };
        let link = |to: &Path, from: &Path| std::os::unix::fs::symlink(to, from).unwrap();
        check(&|top| fs::write(top.join("image/x.json"), "").unwrap());
        check(&|top| fs::write(top.join("image/01.root.json"), "").unwrap());
        check(&|top| fs::write(top.join("image/edge-1.json"), "").unwrap());
        check(&|top| fs::write(top.join("other"), "").unwrap());
        check(&|top| fs::create_dir(top.join("image/2.root.json")).unwrap());
        check(&|top| link(&top.join("image/1.root.json"), &top.join("image/2.root.json")));
        check(&|top| {
            fs::rename(top.join("image"), top.join("../elsewhere")).unwrap();
            link(&top.join("../elsewhere"), &top.join("image"));
        });
        check(&|top| {
            fs::rename(top, top.join("../elsewhere")).unwrap();
            link(&top.join("../elsewhere"), top);
        });
        check(&|top| fs::write(top.join("image/2.root.json"), vec![b' '; 4 << 20]).unwrap());
        check(&|top| {
            for number in 1..=ArchiveLimits::PACKAGES.metadata {
                fs::write(top.join(format!("image/{number}.root.json")), "").unwrap();
            }
        });
    }
}
