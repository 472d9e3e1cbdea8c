//! `up.json`: what a `selvedge up` started and where. It stays after the end, so that the next
//! start takes the same ports and other commands can say what is not running. It holds no secret.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::context::read_small;
use crate::failure::{Cause, Failure};
use crate::supervisor::process::Process;

/// Version of this file's format.
const FORMAT: u32 = 1;

/// The record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Version of the format: 1.
    pub format: u32,
    /// Base address of the registry.
    pub registry: String,
    /// Address of the broker, as `mqtts://host:port`.
    pub broker: String,
    /// Base address of the inference endpoint.
    pub inference: String,
    /// File with the registry's token.
    pub token_file: PathBuf,
    /// Name of the target that the agent is.
    pub target: String,
    /// The agent's data directory.
    pub agent_data: PathBuf,
    /// Directory of the keys.
    pub keys: PathBuf,
    /// `up` itself and every child, by name; empty when nothing runs.
    pub pids: BTreeMap<String, Process>,
}

impl Record {
    /// The record of the data directory `dir`; `None` where no `up` has ever run.
    pub fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join("up.json");
        if !path.try_exists().map_err(Failure::file("look at", &path))? {
            return Ok(None);
        }
        let text = match read_small(&path, 65_536) {
            Err(Failure::Content { source, .. }) => return Err(unreadable(&path, source)),
            Err(Failure::File { source, .. }) if source.kind() == std::io::ErrorKind::InvalidData => {
                return Err(unreadable(&path, source.into()));
            }
            text => text?,
        };
        let record: Self = serde_json::from_str(&text).map_err(|source| unreadable(&path, source.into()))?;
        if record.format != FORMAT {
            let why = format!("its format is {}, not {FORMAT}", record.format);
            return Err(unreadable(&path, why.into()));
        }
        Ok(Some(record))
    }

    /// Writes the record in one step.
    pub fn write(&self, dir: &Path) -> Result<(), Failure> {
        let record = Self { format: FORMAT, ..self.clone() };
        let mut text = serde_json::to_string_pretty(&record)
            .map_err(|source| Failure::Internal { what: "cannot write up.json", source: source.into() })?;
        text.push('\n');
        write_atomically(&dir.join("up.json"), text.as_bytes(), false)
    }

    /// The port of an address that an earlier start had; 0 where there is none.
    pub fn port(address: &str) -> u16 {
        address.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok()).unwrap_or(0)
    }
}

/// A record that cannot be used is no loss: it holds nothing that cannot be said again.
fn unreadable(path: &Path, source: Cause) -> Failure {
    Failure::Refused {
        what: format!("{} is not a record of `selvedge up` that this version reads", path.display()),
        advice: format!(
            "{} may be deleted while no `selvedge up` runs; it only remembers ports, the target's name and \
             where the keys are: the next `selvedge up` needs --keys and --name again if you gave them before",
            path.display()
        ),
        source: Some(source),
    }
}

/// Writes a file in one step: temporary file, sync, rename, sync of the directory. Mode 0600; with
/// `new`, an existing file is not replaced.
pub fn write_atomically(path: &Path, bytes: &[u8], new: bool) -> Result<(), Failure> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(Failure::file("write in", dir))?;
    file.write_all(bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(Failure::file("write", file.path()))?;
    let kept = if new { file.persist_noclobber(path) } else { file.persist(path) };
    kept.map_err(|error| Failure::File { doing: "write", path: path.to_owned(), source: error.error })?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(Failure::file("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_another_format_does_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), None);
        let record = Record { format: 1, registry: "http://127.0.0.1:5".into(), ..Record::default() };
        record.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), Some(record));
        for bad in ["{\"format\":2}", "[]", "", "{"] {
            std::fs::write(dir.path().join("up.json"), bad).unwrap();
            assert!(matches!(Record::read(dir.path()), Err(Failure::Refused { .. })), "{bad}");
        }
    }

    #[test]
    fn ports_come_back_out_of_addresses() {
        for (address, port) in
            [("mqtts://127.0.0.1:1883", 1883), ("http://127.0.0.1:80/", 80), ("", 0), ("http://x", 0)]
        {
            assert_eq!(Record::port(address), port, "{address}");
        }
    }

    #[test]
    fn a_new_file_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_atomically(&path, b"a", true).unwrap();
        let refused = write_atomically(&path, b"b", true).unwrap_err();
        assert_eq!(refused.exit(), crate::exit::Exit::Conflict);
        assert_eq!(std::fs::read(&path).unwrap(), b"a");
    }
}
