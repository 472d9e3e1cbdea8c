//! What all instances of a package share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_package::manifest::Capability;
use selvedge_package::{Digest, PackageName};

use crate::limits::Limits;
use crate::sandbox::Prepared;
use crate::sandbox::files::Files;
use crate::session::Model;

/// An opened package without its instances.
pub struct Shared {
    /// Its name.
    pub name: PackageName,
    /// Its verified directory.
    pub directory: PathBuf,
    /// Limits of its instances.
    pub limits: Limits,
    /// What its module may use of WASI.
    pub capabilities: Vec<Capability>,
    /// The manifest's settings with the deployment's over them.
    pub settings: BTreeMap<String, String>,
    /// Its models in the manifest's order.
    pub models: Vec<(PackageName, Arc<Model>)>,
    /// Digest and size of the ONNX file of each.
    pub files: Vec<(Digest, u64)>,
    /// What its instances may open of files.
    pub wasi_files: Option<Files>,
    /// Its component.
    pub prepared: Arc<Prepared>,
}
