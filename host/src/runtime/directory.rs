//! A package's directory, of which nothing is believed before its digest was checked.
//!
//! Files are opened without following a link at the end of their path, and only plain files are read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use selvedge_package::bundle::{Bundle, BundleError};
use selvedge_package::limits::Limits;
use selvedge_package::{Digest, FilePath};
use sha2::{Digest as _, Sha256};

use crate::failure::OpenError;

/// A directory of which the two manifests were checked.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    bundle: Bundle,
}

fn corrupt(file: &str, why: impl std::fmt::Display) -> OpenError {
    OpenError::Corrupt { file: file.to_owned(), why: why.to_string() }
}

/// Opens a plain file below `directory`; gives its length too.
fn open(directory: &Path, file: &str) -> Result<(File, u64), OpenError> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(directory.join(file))
        .map_err(|error| corrupt(file, error))?;
    let metadata = opened.metadata().map_err(|error| corrupt(file, error))?;
    if !metadata.is_file() {
        return Err(corrupt(file, "it is not a plain file"));
    }
    Ok((opened, metadata.len()))
}

fn read(directory: &Path, file: &str, most: u64) -> Result<Vec<u8>, OpenError> {
    let (opened, length) = open(directory, file)?;
    if length > most {
        return Err(corrupt(file, format!("it has {length} bytes; at most {most} are allowed")));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // One byte more than allowed shows a file that grew meanwhile.
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| corrupt(file, error))?;
    if bytes.len() as u64 > most {
        return Err(corrupt(file, format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

impl Directory {
    /// Reads the two manifests of the package that must be `digest`, or any where none is given.
    pub fn read(path: &Path, digest: Option<Digest>) -> Result<Self, OpenError> {
        let limits = Limits::PACKAGE;
        let oci = read(path, "package.json", limits.oci_manifest_bytes)?;
        let found = Digest::of(&oci);
        if let Some(expected) = digest.filter(|expected| *expected != found) {
            return Err(corrupt("package.json", format!("its digest is {found} instead of {expected}")));
        }
        let config = read(path, "manifest.json", limits.config_bytes)?;
        let bundle = Bundle::parse_within(&limits, &oci, &config).map_err(|error| match error {
            BundleError::WrongDigest { .. } | BundleError::WrongSize { .. } => {
                corrupt("manifest.json", error)
            }
            error => OpenError::Manifest(format!("{:#}", anyhow::Error::from(error))),
        })?;
        Ok(Self { path: path.to_owned(), bundle })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the two manifests say.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// The digest that a file must have, and its size.
    pub fn expected(&self, file: &FilePath) -> Result<(Digest, u64), OpenError> {
        let descriptor = self
            .bundle
            .descriptor(file)
            .ok_or_else(|| corrupt(file.as_str(), "the package does not have it"))?;
        Ok((descriptor.digest, descriptor.size))
    }

    /// The verified bytes of a file of at most `most` bytes.
    pub fn bytes(&self, file: &FilePath, most: u64) -> Result<Vec<u8>, OpenError> {
        let (digest, size) = self.expected(file)?;
        if size > most {
            return Err(OpenError::Limit(format!("`{file}` has {size} bytes; at most {most} are allowed")));
        }
        let bytes = read(&self.path, file.as_str(), size)?;
        let found = Digest::of(&bytes);
        if found != digest {
            return Err(corrupt(file.as_str(), format!("its digest is {found} instead of {digest}")));
        }
        Ok(bytes)
    }

    /// Checks a file without keeping it.
    pub fn verify(&self, file: &FilePath) -> Result<(), OpenError> {
        let (digest, size) = self.expected(file)?;
        let wrong = |why: std::io::Error| corrupt(file.as_str(), why);
        let (mut opened, length) = open(&self.path, file.as_str())?;
        if length != size {
            return Err(corrupt(file.as_str(), format!("it has {length} bytes instead of {size}")));
        }
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match opened.read(&mut buffer).map_err(wrong)? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            }
        }
        let found = Digest::from_bytes(hasher.finalize().into());
        if found == digest {
            Ok(())
        } else {
            Err(corrupt(file.as_str(), format!("its digest is {found} instead of {digest}")))
        }
    }
}
