//! `selvedge-agent import`: hands the file to the agent that runs, or takes it itself where none does.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::offline::Offline;
use super::{ImportError, Imported, PATH, take};
use crate::facts;
use crate::fetch::Hardware;
use crate::identity::IdentityError;
use crate::lock::{Lock, LockError};
use crate::store::{RealDisk, Store, StoreError};

/// Bytes of a piece on the socket.
const PIECE: usize = 64 * 1024;
/// Longest silence of the agent: it hashes and syncs what it was given.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest answer, in bytes.
const ANSWER: u64 = 64 * 1024;

/// Why a file was not imported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportFailure {
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{holder} runs on it but does not answer")]
    Silent { holder: String, source: std::io::Error },
    #[error("{what} ({reason})")]
    Refused { reason: String, what: String },
    #[error("the answer of the agent cannot be read: {0}")]
    Answer(String),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("there is no device in {}: `selvedge-agent run --data {0}` makes one", directory.display())]
    NoDevice { directory: PathBuf },
    #[error("the device has no usable identity")]
    Identity(#[from] IdentityError),
    #[error("the device's storage failed")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Import(#[from] ImportError),
}

/// Imports a file into a data directory.
pub fn import(path: &Path, data: &Path) -> Result<Imported, ImportFailure> {
    let failed = |action| move |source| ImportFailure::File { action, path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed("open"))?;
    if let Some(holder) = Lock::held_by(data) {
        return through_the_agent(file, data, holder);
    }
    if !data.join("agent.redb").exists() {
        return Err(ImportFailure::NoDevice { directory: data.to_owned() });
    }
    let _lock = Lock::take(data, Duration::from_secs(1))?;
    let store = Store::open(Arc::new(RealDisk), data)?;
    import_into(std::io::BufReader::with_capacity(PIECE, file), &store)
}

/// Imports a file into a store that no agent runs on; the caller holds the directory's lock.
pub fn import_into(file: impl Read, store: &Store) -> Result<Imported, ImportFailure> {
    let memory_mib = facts::memory_mib().unwrap_or(u64::from(u32::MAX));
    let hardware = Hardware { architecture: std::env::consts::ARCH, memory_mib };
    let mut gate = Offline::open(store.clone(), hardware)?;
    Ok(take(file, store, &mut gate)?)
}

fn through_the_agent(mut file: impl Read, data: &Path, holder: String) -> Result<Imported, ImportFailure> {
    let silent = |source| ImportFailure::Silent { holder: holder.clone(), source };
    let mut socket = UnixStream::connect(data.join("run/agent.sock")).map_err(silent)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n");
    socket.write_all(head.as_bytes()).map_err(silent)?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(|source| ImportFailure::File {
            action: "read",
            path: "the file".into(),
            source,
        })?;
        let sent = socket
            .write_all(format!("{read:x}\r\n").as_bytes())
            .and_then(|()| socket.write_all(&piece[..read]))
            .and_then(|()| socket.write_all(b"\r\n"));
        // An agent that has seen enough stops reading, and says why.
        if read == 0 || sent.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let mut limited = (&mut socket).take(ANSWER);
    if let Err(source) = limited.read_to_end(&mut answer)
        && answer.is_empty()
    {
        return Err(silent(source));
    }
    let text = String::from_utf8_lossy(&answer);
    let unreadable = || ImportFailure::Answer(text.chars().take(200).collect());
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(unreadable)?;
    if head.split(' ').nth(1) == Some("200") {
        return serde_json::from_str(body).map_err(|_| unreadable());
    }
    #[derive(serde::Deserialize)]
    struct Refusal {
        error: String,
        reason: String,
    }
    let refusal: Refusal = serde_json::from_str(body).map_err(|_| unreadable())?;
    Err(ImportFailure::Refused { reason: refusal.reason, what: refusal.error })
}
