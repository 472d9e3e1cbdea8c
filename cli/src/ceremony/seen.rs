//! What a releaser has seen of a registry: the newest version of every list of releases. A registry
//! that shows an older one would have its forgotten releases dropped by the next signature.
//!
//! It is kept in the directory of the keys, one record for each registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use selvedge_package::Digest;
use selvedge_package::trust::ImageFiles;
use selvedge_signing::metadata;
use serde::{Deserialize, Serialize};

use crate::context::read_small;
use crate::failure::Failure;
use crate::keyring::failed;
use crate::supervisor::record::write_atomically;

const FORMAT: u32 = 1;
const LARGEST: u64 = 16 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// By address of the registry, by role: version, and the digest of the file.
    registries: BTreeMap<String, BTreeMap<String, (u64, Digest)>>,
}

/// The memory of one key directory.
#[derive(Debug)]
pub struct Seen {
    path: PathBuf,
    record: Record,
}

impl Seen {
    /// Reads it; a directory without one has seen nothing.
    pub fn load(keys: &Path) -> Result<Self, Failure> {
        let path = keys.join("seen.json");
        let record = match path.exists() {
            false => Record { format: FORMAT, ..Record::default() },
            true => {
                let text = read_small(&path, LARGEST)?;
                serde_json::from_str(&text)
                    .map_err(Failure::content("a memory of lists of releases", &path))?
            }
        };
        if record.format != FORMAT {
            return Err(Failure::content::<String>("of a format that this version reads", &path)(format!(
                "it has format {}, this version reads {FORMAT}: update selvedge",
                record.format
            )));
        }
        Ok(Self { path, record })
    }

    /// Refuses what is older than what was seen, or differs from it in the same version.
    pub fn check(&self, registry: &str, files: Option<&ImageFiles>) -> Result<(), Failure> {
        let empty = BTreeMap::new();
        let known = self.record.registries.get(registry).unwrap_or(&empty);
        for (role, (version, digest)) in known {
            let file =
                files.and_then(|files| files.roles().find(|(held, _)| held == role)).map(|(_, file)| file);
            let shown = file.map_or(Ok(0), version_of)?;
            let why = if shown < *version {
                format!("the registry shows version {shown} of `{role}`, version {version} was seen before")
            } else if shown == *version && file.map(Digest::of) != Some(*digest) {
                format!("the registry shows another `{role}` of version {version} than it did before")
            } else {
                continue;
            };
            return Err(Failure::Untrusted {
                what: why,
                advice: format!(
                    "somebody may be hiding releases; if the registry was restored from a backup, release again \
                     what it has lost after removing {}",
                    self.path.display()
                ),
                source: None,
            });
        }
        Ok(())
    }

    /// Remembers what is the newest now.
    pub fn keep(&mut self, registry: &str, files: &ImageFiles) -> Result<(), Failure> {
        let mut roles = BTreeMap::new();
        for (role, file) in files.roles() {
            roles.insert(role.to_owned(), (version_of(file)?, Digest::of(file)));
        }
        self.record.registries.insert(registry.to_owned(), roles);
        let bytes = serde_json::to_vec(&self.record).map_err(|source| Failure::Internal {
            what: "cannot write what was seen",
            source: source.into(),
        })?;
        write_atomically(&self.path, &bytes, false)
    }
}

fn version_of(file: &[u8]) -> Result<u64, Failure> {
    Ok(metadata::head(file).map_err(|error| failed("read what was released", error))?.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn files(version: u64, text: &str) -> ImageFiles {
        let file = format!(
            "{{\"signed\":{{\"_type\":\"targets\",\"version\":{version},\"expires\":\"2030-01-01T00:00:00Z\",\"x\":\"{text}\"}},\"signatures\":[]}}"
        );
        ImageFiles::unsplit(file.into_bytes())
    }

    #[test]
    fn a_list_never_goes_back_or_changes_under_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let mut seen = Seen::load(dir.path()).unwrap();
        seen.check("a", None).unwrap();
        seen.keep("a", &files(5, "x")).unwrap();
        let seen = Seen::load(dir.path()).unwrap();
        for good in [files(5, "x"), files(6, "y")] {
            seen.check("a", Some(&good)).unwrap();
        }
        for bad in [Some(files(4, "x")), Some(files(5, "y")), None] {
            assert_eq!(seen.check("a", bad.as_ref()).unwrap_err().exit(), Exit::Untrusted);
        }
        seen.check("b", Some(&files(1, "x"))).unwrap();
        for damage in ["", "{", "{\"format\":2,\"registries\":{}}"] {
            std::fs::write(dir.path().join("seen.json"), damage).unwrap();
            assert_eq!(Seen::load(dir.path()).unwrap_err().exit(), Exit::Refused);
        }
    }
}
