//! The packages of the examples, as the agent lays one out for a host.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use selvedge_control::PackageRef;
use selvedge_package::FilePath;
use selvedge_package::bundle::Builder;
use selvedge_package::draft::Draft;

use crate::programs::set_up;
use crate::serving::Written;

/// The package of `target/examples/NAME`.
pub fn package(name: &str) -> Written {
    let example = set_up(&format!("examples/{name}"));
    let text = fs::read_to_string(example.join("selvedge.toml")).unwrap();
    let manifest = Draft::from_toml(&text).unwrap().finish().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(manifest.clone());
    let models = manifest.models.iter().map(|model| &model.file);
    let files =
        models.chain(&manifest.module.component).chain(&manifest.files).chain(&manifest.acceptance.cases);
    for file in files {
        let bytes = fs::read(example.join(file.to_string())).unwrap();
        place(directory.path(), file, &bytes);
        builder.bytes(file.clone(), &bytes).unwrap();
    }
    let built = builder.build().unwrap();
    let config = built.bundle.oci().config.digest;
    let (_, config) = built.blobs.iter().find(|(digest, _)| *digest == config).unwrap();
    fs::write(directory.path().join("manifest.json"), config).unwrap();
    fs::write(directory.path().join("package.json"), &built.manifest).unwrap();
    Written { directory, package: PackageRef { name: manifest.name, digest: built.bundle.digest() } }
}

fn place(package: &Path, file: &FilePath, bytes: &[u8]) {
    let path = package.join(file.to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}
