//! A package as a whole: the OCI manifest, the package manifest, and the set of blobs that the two
//! must agree on.
//!
//! [`Bundle::parse`] is the only way to a [`Bundle`]: it refuses a manifest above its limit before
//! reading it, files that are listed but absent or present but not listed, chunk indexes that are
//! missing or superfluous, and everything that [`crate::rules`] refuses. [`Builder`] makes a bundle
//! and passes it through the same door.

use std::collections::{BTreeMap, BTreeSet};

use crate::chunks::{self, Indexed};
use crate::digest::Digest;
use crate::limits::Limits;
use crate::manifest::Manifest;
use crate::name::FilePath;
use crate::oci::{self, Descriptor, OciManifest};
use crate::rules::{self, ManifestError, Use};

/// A package that is not one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BundleError {
    #[error("the {what} has {found} bytes; at most {most} are allowed")]
    TooLarge { what: &'static str, found: u64, most: u64 },
    #[error("the {what} is not what this program reads")]
    Json {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the OCI manifest's `{field}` is `{found}` instead of `{expected}`")]
    Shape { field: &'static str, expected: String, found: String },
    #[error("the {what} has digest {found} instead of {expected}")]
    WrongDigest { what: &'static str, expected: Digest, found: Digest },
    #[error("the {what} has {found} bytes instead of {expected}")]
    WrongSize { what: &'static str, expected: u64, found: u64 },
    #[error("the package manifest breaks a rule")]
    Manifest(#[source] ManifestError),
    #[error("layer {digest} has annotations that no layer has: `{annotation}`")]
    Annotation { digest: Digest, annotation: String },
    #[error("layer {digest} has no usable path")]
    Path {
        digest: Digest,
        #[source]
        source: crate::name::NameError,
    },
    #[error("two layers have the path `{path}`")]
    DuplicatePath { path: FilePath },
    #[error("the package manifest lists `{path}`, but the package does not have it")]
    Absent { path: FilePath },
    #[error("the package has `{path}`, but its manifest does not list it")]
    Unlisted { path: FilePath },
    #[error("`{path}` has media type `{found}` instead of `{expected}`")]
    MediaType { path: FilePath, expected: &'static str, found: String },
    #[error("blob {digest} is listed with {first} bytes and with {second} bytes")]
    TwoSizes { digest: Digest, first: u64, second: u64 },
    #[error("blob {digest} of {size} bytes has no chunk index")]
    NoIndex { digest: Digest, size: u64 },
    #[error("a chunk index covers {covered}, which needs none")]
    NeedlessIndex { covered: String },
    #[error("blob {covered} has two chunk indexes")]
    TwoIndexes { covered: Digest },
    #[error("`{path}` was added twice")]
    AddedTwice { path: FilePath },
}

/// A file of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File<'a> {
    /// Its path in the package.
    pub path: &'a FilePath,
    /// What it is used for.
    pub used: Use,
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// A package whose two manifests were read, checked, and found to agree.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    digest: Digest,
    length: u64,
    oci: OciManifest,
    manifest: Manifest,
    files: BTreeMap<FilePath, (Use, Descriptor)>,
    indexes: BTreeMap<Digest, Descriptor>,
}

impl Bundle {
    /// Reads the OCI manifest and the package manifest (the `config` blob) as bytes.
    ///
    /// Whoever calls this must have checked the OCI manifest's bytes against a signed digest; the
    /// rest hangs on them.
    pub fn parse(manifest: &[u8], config: &[u8]) -> Result<Self, BundleError> {
        Self::parse_within(&Limits::PACKAGE, manifest, config)
    }

    /// As [`Bundle::parse`], with limits of one's own.
    pub fn parse_within(limits: &Limits, manifest: &[u8], config: &[u8]) -> Result<Self, BundleError> {
        let oci = parse_oci(limits, manifest)?;
        at_most("package manifest", config.len() as u64, limits.config_bytes)?;
        if oci.config.size != config.len() as u64 {
            return Err(BundleError::WrongSize {
                what: "package manifest",
                expected: oci.config.size,
                found: config.len() as u64,
            });
        }
        let found = Digest::of(config);
        if oci.config.digest != found {
            return Err(BundleError::WrongDigest {
                what: "package manifest",
                expected: oci.config.digest,
                found,
            });
        }
        let manifest_read: Manifest = serde_json::from_slice(config)
            .map_err(|source| BundleError::Json { what: "package manifest", source })?;
        rules::check(&manifest_read, limits).map_err(BundleError::Manifest)?;

        let (mut layers, indexes) = sort_layers(&oci)?;
        let mut files = BTreeMap::new();
        for (path, used) in rules::files(&manifest_read).map_err(BundleError::Manifest)? {
            let Some(layer) = layers.remove(&path) else {
                return Err(BundleError::Absent { path });
            };
            if layer.media_type != used.media_type() {
                return Err(BundleError::MediaType {
                    path,
                    expected: used.media_type(),
                    found: shown(&layer.media_type),
                });
            }
            files.insert(path, (used, layer.clone()));
        }
        if let Some((path, _)) = layers.pop_first() {
            return Err(BundleError::Unlisted { path });
        }
        let indexes = indexes.into_iter().map(|(covered, layer)| (covered, layer.clone())).collect();
        let bundle = Self {
            digest: Digest::of(manifest),
            length: manifest.len() as u64,
            oci,
            manifest: manifest_read,
            files,
            indexes,
        };
        bundle.check_blobs(limits)?;
        Ok(bundle)
    }

    /// The package manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The OCI manifest.
    pub fn oci(&self) -> &OciManifest {
        &self.oci
    }

    /// The digest of the OCI manifest's bytes: the package's identity.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The length of the OCI manifest in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Every file, by path.
    pub fn files(&self) -> impl Iterator<Item = File<'_>> {
        self.files.iter().map(|(path, (used, layer))| File {
            path,
            used: *used,
            digest: layer.digest,
            size: layer.size,
        })
    }

    /// The descriptor of the file at `path`.
    pub fn descriptor(&self, path: &FilePath) -> Option<&Descriptor> {
        self.files.get(path).map(|(_, layer)| layer)
    }

    /// The chunk index of a blob; `None` for a blob of at most one chunk and for a foreign one.
    pub fn index_of(&self, blob: &Digest) -> Option<&Descriptor> {
        self.indexes.get(blob)
    }

    /// Every blob to fetch, each once: the config first, and the index of a blob before that blob.
    /// The OCI manifest is not among them, being what they were read from.
    pub fn blobs(&self) -> Vec<&Descriptor> {
        let mut order = vec![&self.oci.config];
        for (_, layer) in self.files.values() {
            // Each index is smaller than what it covers, so the chain ends.
            let mut chain = vec![layer];
            let mut covered = layer.digest;
            while let Some(index) = self.indexes.get(&covered) {
                chain.push(index);
                covered = index.digest;
            }
            order.extend(chain.into_iter().rev());
        }
        let mut once = BTreeSet::new();
        order.retain(|layer| once.insert(layer.digest));
        order
    }

    /// Bytes of all blobs together, each counted once, the OCI manifest included.
    pub fn size(&self) -> u64 {
        self.blobs().iter().map(|layer| layer.size).fold(self.length, u64::saturating_add)
    }

    /// Sizes agree, no blob is too large, and exactly the blobs that need an index have one.
    fn check_blobs(&self, limits: &Limits) -> Result<(), BundleError> {
        let mut sizes: BTreeMap<Digest, u64> = BTreeMap::new();
        let layers = self.files.values().map(|(_, layer)| layer).chain(self.indexes.values());
        let mut total = self.length;
        for layer in layers.chain([&self.oci.config]) {
            at_most("blob", layer.size, limits.blob_bytes)?;
            match sizes.insert(layer.digest, layer.size) {
                None => total = total.saturating_add(layer.size),
                Some(first) if first == layer.size => {}
                Some(first) => {
                    let digest = layer.digest;
                    return Err(BundleError::TwoSizes { digest, first, second: layer.size });
                }
            }
        }
        at_most("package", total, limits.package_bytes)?;
        for (digest, size) in &sizes {
            match (chunks::index_size(*size), self.indexes.get(digest)) {
                (None, None) => {}
                (Some(_), None) => {
                    return Err(BundleError::NoIndex { digest: *digest, size: *size });
                }
                (None, Some(_)) => {
                    return Err(BundleError::NeedlessIndex { covered: digest.to_string() });
                }
                (Some(expected), Some(index)) if index.size == expected => {}
                (Some(expected), Some(index)) => {
                    return Err(BundleError::WrongSize { what: "chunk index", expected, found: index.size });
                }
            }
        }
        match self.indexes.keys().find(|covered| !sizes.contains_key(covered)) {
            Some(covered) => Err(BundleError::NeedlessIndex { covered: covered.to_string() }),
            None => Ok(()),
        }
    }
}

type Sorted<'a> = (BTreeMap<FilePath, &'a Descriptor>, BTreeMap<Digest, &'a Descriptor>);

/// Parts the layers into files by path and chunk indexes by the blob that they cover.
fn sort_layers(oci: &OciManifest) -> Result<Sorted<'_>, BundleError> {
    let mut files = BTreeMap::new();
    let mut indexes = BTreeMap::new();
    for layer in &oci.layers {
        let digest = layer.digest;
        let wanted = if layer.media_type == oci::CHUNK_INDEX { oci::INDEXES } else { oci::TITLE };
        if let Some(annotation) = layer.annotations.keys().find(|key| *key != wanted) {
            return Err(BundleError::Annotation { digest, annotation: shown(annotation) });
        }
        let value = layer.annotations.get(wanted).map(String::as_str).unwrap_or_default();
        if wanted == oci::INDEXES {
            let covered: Digest =
                value.parse().map_err(|_| BundleError::NeedlessIndex { covered: shown(value) })?;
            if indexes.insert(covered, layer).is_some() {
                return Err(BundleError::TwoIndexes { covered });
            }
        } else {
            let path: FilePath = value.parse().map_err(|source| BundleError::Path { digest, source })?;
            if files.insert(path.clone(), layer).is_some() {
                return Err(BundleError::DuplicatePath { path });
            }
        }
    }
    Ok((files, indexes))
}

/// Reads an OCI manifest alone, as far as it can be checked without the package manifest.
pub fn parse_oci(limits: &Limits, bytes: &[u8]) -> Result<OciManifest, BundleError> {
    at_most("OCI manifest", bytes.len() as u64, limits.oci_manifest_bytes)?;
    let oci: OciManifest =
        serde_json::from_slice(bytes).map_err(|source| BundleError::Json { what: "OCI manifest", source })?;
    let version = oci.schema_version.to_string();
    for (field, expected, found) in [
        ("schemaVersion", "2", version.as_str()),
        ("mediaType", oci::MANIFEST, &oci.media_type),
        ("artifactType", oci::ARTIFACT, &oci.artifact_type),
        ("config.mediaType", oci::CONFIG, &oci.config.media_type),
    ] {
        if expected != found {
            return Err(BundleError::Shape { field, expected: expected.to_owned(), found: shown(found) });
        }
    }
    at_most("package manifest", oci.config.size, limits.config_bytes)?;
    Ok(oci)
}

fn at_most(what: &'static str, found: u64, most: u64) -> Result<(), BundleError> {
    if found <= most { Ok(()) } else { Err(BundleError::TooLarge { what, found, most }) }
}

/// Text from outside as an error may show it.
fn shown(text: &str) -> String {
    text.chars().take(120).collect::<String>().escape_debug().to_string()
}

/// Makes the OCI manifest, the config and the indexes of a package from a manifest and its files.
#[derive(Debug, Clone)]
pub struct Builder {
    manifest: Manifest,
    files: BTreeMap<FilePath, Indexed>,
}

/// A package that was built.
#[derive(Debug, Clone)]
pub struct Built {
    /// The package as any reader of it sees it.
    pub bundle: Bundle,
    /// The OCI manifest's bytes.
    pub manifest: Vec<u8>,
    /// The blobs that the builder made: config and chunk indexes. The files' own bytes are with
    /// whoever added them.
    pub blobs: Vec<(Digest, Vec<u8>)>,
}

impl Builder {
    /// A builder for a package with this manifest and no files yet.
    pub fn new(manifest: Manifest) -> Self {
        Self { manifest, files: BTreeMap::new() }
    }

    /// Adds a file of which digest and indexes are known (from a [`chunks::ChunkIndexer`]).
    pub fn file(&mut self, path: FilePath, content: Indexed) -> Result<&mut Self, BundleError> {
        if self.files.contains_key(&path) {
            return Err(BundleError::AddedTwice { path });
        }
        self.files.insert(path, content);
        Ok(self)
    }

    /// Adds a file by its bytes.
    pub fn bytes(&mut self, path: FilePath, bytes: &[u8]) -> Result<&mut Self, BundleError> {
        self.file(path, Indexed::of(bytes))
    }

    /// Joins everything and checks it as a reader would. Equal inputs give equal bytes.
    pub fn build(self) -> Result<Built, BundleError> {
        let uses = rules::files(&self.manifest).map_err(BundleError::Manifest)?;
        let config = to_json("package manifest", &self.manifest)?;
        let config_descriptor = Descriptor {
            media_type: oci::CONFIG.to_owned(),
            digest: Digest::of(&config),
            size: config.len() as u64,
            annotations: BTreeMap::new(),
        };
        let mut layers = Vec::new();
        let mut blobs = vec![(config_descriptor.digest, config.clone())];
        let mut covered = BTreeSet::new();
        for (path, content) in self.files {
            let Some(used) = uses.get(&path) else {
                return Err(BundleError::Unlisted { path });
            };
            layers.push(Descriptor {
                media_type: used.media_type().to_owned(),
                digest: content.digest,
                size: content.size,
                annotations: BTreeMap::from([(oci::TITLE.to_owned(), path.to_string())]),
            });
            let mut below = content.digest;
            for (digest, bytes) in content.indexes {
                if covered.insert(below) {
                    layers.push(Descriptor {
                        media_type: oci::CHUNK_INDEX.to_owned(),
                        digest,
                        size: bytes.len() as u64,
                        annotations: BTreeMap::from([(oci::INDEXES.to_owned(), below.to_string())]),
                    });
                    blobs.push((digest, bytes));
                }
                below = digest;
            }
        }
        let oci = OciManifest {
            schema_version: 2,
            media_type: oci::MANIFEST.to_owned(),
            artifact_type: oci::ARTIFACT.to_owned(),
            config: config_descriptor,
            layers,
            annotations: BTreeMap::new(),
        };
        let manifest = to_json("OCI manifest", &oci)?;
        let bundle = Bundle::parse(&manifest, &config)?;
        Ok(Built { bundle, manifest, blobs })
    }
}

fn to_json<T: serde::Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, BundleError> {
    serde_json::to_vec(value).map_err(|source| BundleError::Json { what, source })
}
