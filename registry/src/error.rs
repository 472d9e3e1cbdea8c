//! What can go wrong inside the registry: every variant is the action that failed.
//!
//! What a caller did wrong is a [`crate::refusal::Refusal`] instead, and has a reason code.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A failure of the registry itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With which path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The database refused or could not be reached.
    #[error("the database could not {action}")]
    Database {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: sqlx::Error,
    },
    /// The database's layout could not be brought up to date.
    #[error("cannot bring the database {} up to date; was it made by a newer registry?", path.display())]
    Migrate {
        /// The database.
        path: PathBuf,
        /// Why not.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// A row does not hold what this registry writes there.
    #[error("the database holds a {what} that cannot be read: {why}")]
    Corrupt {
        /// What was read.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The audit log's chain of hashes is broken.
    #[error("the audit log was changed: entry {number} does not follow from the one before it")]
    AuditBroken {
        /// The first entry that does not fit.
        number: i64,
    },
    /// A socket could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Plain text was asked for on an address that others reach.
    #[error(
        "refusing to listen on {address}: without TLS only loopback addresses are allowed; use 127.0.0.1 or [::1]"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate authority failed.
    #[error("the certificate authority could not {action}: {why}")]
    Pki {
        /// What was tried.
        action: &'static str,
        /// Why not.
        why: String,
    },
    /// The embedded broker failed.
    #[error("the embedded broker could not {action}: {why}")]
    Broker {
        /// What was tried.
        action: &'static str,
        /// Why not.
        why: String,
    },
    /// One side of the registry ended while it should run.
    #[error("the {side} side ended by itself: {why}; start the registry again")]
    Ended {
        /// `REST` or `MQTT`.
        side: &'static str,
        /// Why, as far as it is known.
        why: String,
    },
    /// Another registry works on the same data.
    #[error("{} is in use by another selvedge-registry; stop it first", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// A root of trust does not fit to what this registry has served before.
    #[error("the {repository} root in {} cannot be used: {why}", path.display())]
    Root {
        /// `image` or `director`.
        repository: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Keys or roots could not be read.
    #[error("cannot use {what}: {why}")]
    Keys {
        /// Which.
        what: String,
        /// Why not.
        why: String,
    },
    /// Metadata could not be signed.
    #[error("cannot sign {what}: {why}")]
    Sign {
        /// Which metadata.
        what: String,
        /// Why not.
        why: String,
    },
    /// The MQTT client could not be started.
    #[error("cannot use the broker {url}: {why}")]
    Mqtt {
        /// The broker's address.
        url: String,
        /// Why not.
        why: String,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
}

impl Error {
    /// A closure for `map_err` on file operations.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// A closure for `map_err` on database operations.
    pub fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { action, source }
    }

    /// The error and its causes on one line, as logs show it.
    pub fn chain(&self) -> String {
        causes(self)
    }
}

/// Any error with its causes, on one line.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
