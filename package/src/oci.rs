//! The outer shape of a package: an OCI image manifest with an artifact type of ours.
//!
//! Follows the OCI image specification 1.1, "Guidance for an Empty Descriptor" and artifact use.
//! The bytes of this JSON are what TUF signs; everything else hangs on them by digest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Media type of the manifest itself.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Artifact type of every package.
pub const ARTIFACT: &str = "application/vnd.selvedge.package.v1";
/// Media type of the `config` blob: the package manifest as JSON.
pub const CONFIG: &str = "application/vnd.selvedge.package.config.v1+json";
/// Media type of an ONNX model.
pub const MODEL: &str = "application/vnd.selvedge.model.v1+onnx";
/// Media type of a guest component.
pub const COMPONENT: &str = "application/vnd.selvedge.component.v1+wasm";
/// Media type of any other file: labels, external data, acceptance cases.
pub const FILE: &str = "application/vnd.selvedge.file.v1";
/// Media type of a chunk index.
pub const CHUNK_INDEX: &str = "application/vnd.selvedge.chunk-index.v1";
/// Annotation of a layer: its path in the package.
pub const TITLE: &str = "org.opencontainers.image.title";
/// Annotation of a chunk index: the digest of the blob that it covers.
pub const INDEXES: &str = "dev.selvedge.indexes";

/// The OCI manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OciManifest {
    /// Always 2.
    pub schema_version: u32,
    /// [`MANIFEST`].
    pub media_type: String,
    /// [`ARTIFACT`].
    pub artifact_type: String,
    /// The package manifest.
    pub config: Descriptor,
    /// Files and chunk indexes.
    pub layers: Vec<Descriptor>,
    /// Free text for other tools; nothing here depends on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A blob by digest and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Descriptor {
    /// What the blob is.
    pub media_type: String,
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// Length in bytes.
    pub size: u64,
    /// [`TITLE`] or [`INDEXES`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
