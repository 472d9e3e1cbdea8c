//! Decides what a device may run, from signed metadata alone.
//!
//! Two TUF repositories in Uptane's shape: the Image repository says what exists, the Director
//! what this device shall run. [`accept`] takes the held state and an offer and returns the new
//! state and the desired packages, or an error and no state at all: nothing of an offer becomes
//! state before the Director's part has proved to be for this device. [`Client`] follows any TUF
//! repository with the same code. Time is an argument. Nothing here reads a file or a socket, or stops
//! what already runs.

mod accept;
mod assignment;
pub mod bins;
mod client;
mod distinct;
mod error;
mod image_files;
mod images;
mod look;
mod octets;
mod repository;
mod source;
mod state;
mod update;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use accept::{Accepted, BELIEVED_BELOW, DATED_AHEAD, accept, adopt_roots};
pub use assignment::{AssignedPackage, Assignment, Desired, DirectorAssignment, FORMAT};
pub use client::{Client, Found, Refresh};
pub use error::TrustError;
pub use image_files::{ImageFiles, read_proposed_image, verify_image};
pub use images::{ImageCustom, ImageTargets, ReleasedTarget, target_name};
pub use look::released;
pub use repository::{DelegatedFile, RepositoryMetadata, file_version};
pub use source::{Source, SourceError, Wanted};
pub use state::TrustState;

/// One of the two repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repository {
    /// What exists.
    Image,
    /// What this device shall run.
    Director,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "Image",
            Self::Director => "Director",
        })
    }
}

/// Everything that a device needs to accept a new desired state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataBundle {
    /// The Image repository.
    pub image: RepositoryMetadata,
    /// The Director repository of this device.
    pub director: RepositoryMetadata,
    /// Bytes of `<device>.json`.
    #[serde(with = "octets")]
    pub assignment: Vec<u8>,
}

fn sized(what: &str, bytes: &[u8], most: usize) -> Result<(), TrustError> {
    let found = bytes.len();
    if found <= most { Ok(()) } else { Err(TrustError::TooLarge { what: what.to_owned(), found, most }) }
}
