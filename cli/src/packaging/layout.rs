//! A package on a person's disk: an OCI image layout with one manifest. Written beside its place
//! and moved there when it is whole; read with every digest of the two manifests checked.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use selvedge_package::archive::LAYOUT;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::chunks::{ChunkIndexer, Indexed};
use selvedge_package::limits::Limits;
use selvedge_package::oci::{self, Descriptor};
use selvedge_package::{Bundle, Digest, FilePath, Manifest};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::packaging::authoring::{Content, Sources};

/// Bytes copied in one piece; between two pieces the command can be interrupted.
const PIECE: usize = 1 << 20;

/// `index.json`: one manifest, which is the package.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    /// Other tools leave it out.
    #[serde(default)]
    media_type: String,
    manifests: Vec<Descriptor>,
}

/// A package in a directory.
pub struct Layout {
    dir: PathBuf,
    bundle: Bundle,
}

impl Layout {
    /// Reads the package in `dir`. Files are not read; only their sizes are checked.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        if !dir.exists() {
            return Err(Failure::no_file(dir, "name a directory that `selvedge package` made"));
        }
        if !dir.join("oci-layout").is_file() {
            return Err(Failure::refused(
                format!("{} is not a package", dir.display()),
                "`selvedge package` makes one from an ONNX file or a directory with selvedge.toml",
            ));
        }
        let manifests = listed(dir)?;
        let [descriptor] = manifests.as_slice() else {
            return Err(Failure::content::<String>("the index of one package", &dir.join("index.json"))(
                format!("it lists {} manifests", manifests.len()),
            ));
        };
        let manifest_path = blob_path(dir, &descriptor.digest);
        let manifest = read(&manifest_path, Limits::PACKAGE.oci_manifest_bytes)?;
        if Digest::of(&manifest) != descriptor.digest {
            return Err(Failure::content("what its name says", &manifest_path)("its digest is another one"));
        }
        let outer = selvedge_package::bundle::parse_oci(&Limits::PACKAGE, &manifest)
            .map_err(Failure::content("the manifest of a package", &manifest_path))?;
        let config_path = blob_path(dir, &outer.config.digest);
        let config = read(&config_path, Limits::PACKAGE.config_bytes)?;
        let bundle = Bundle::parse(&manifest, &config).map_err(Failure::content("a package", dir))?;
        let layout = Self { dir: dir.to_owned(), bundle };
        for blob in layout.bundle.blobs() {
            let path = layout.blob(&blob.digest);
            let found = std::fs::metadata(&path).map_err(Failure::file("read", &path))?.len();
            if found != blob.size {
                return Err(Failure::content::<String>("whole", &path)(format!(
                    "it has {found} bytes instead of {}",
                    blob.size
                )));
            }
        }
        Ok(layout)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The package.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    /// Where a blob lies.
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        blob_path(&self.dir, digest)
    }

    /// Lays the package out as the host opens it: `package.json`, `manifest.json` and the files by
    /// their paths, as hard links to the blobs where that can be.
    pub fn lay_out(&self, into: &Path) -> Result<(), Failure> {
        let own =
            [("package.json", self.bundle.digest()), ("manifest.json", self.bundle.oci().config.digest)];
        let own = own.into_iter().map(|(name, digest)| (into.join(name), digest));
        let files = self.bundle.files().map(|file| (into.join(file.path.as_str()), file.digest));
        for (path, digest) in own.chain(files) {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(Failure::file("make", parent))?;
            }
            let blob = self.blob(&digest);
            // Some file systems have no hard links.
            std::fs::hard_link(&blob, &path)
                .or_else(|_| std::fs::copy(&blob, &path).map(drop))
                .map_err(Failure::file("write", &path))?;
        }
        Ok(())
    }
}

/// Writes the package of `sources` into the empty directory `dir`. Each file is read once, in
/// pieces; `read` hears of every piece's length.
pub async fn write(dir: &Path, sources: Sources, read: impl Fn(u64)) -> Result<Layout, Failure> {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).map_err(Failure::file("make", &blobs))?;
    let mut contents: BTreeMap<FilePath, Indexed> = BTreeMap::new();
    for (path, content) in sources.files {
        let indexed = match content {
            Content::Bytes(bytes) => {
                let indexed = Indexed::of(&bytes);
                put(dir, &indexed.digest, &bytes)?;
                read(bytes.len() as u64);
                indexed
            }
            Content::Disk(source) => copy(&source, dir, &blobs, &read).await?,
        };
        contents.insert(path, indexed);
    }
    let mut builder = Builder::new(sources.manifest);
    for (path, indexed) in contents {
        builder.file(path, indexed).map_err(Failure::content("a package", dir))?;
    }
    let Built { bundle, manifest, blobs: made } = builder.build().map_err(|source| Failure::Refused {
        what: "the files do not make a package".to_owned(),
        advice: "the manifest lists every file that the package has: models, component, cases, and in `files` all others".to_owned(),
        source: Some(source.into()),
    })?;
    for (digest, bytes) in &made {
        put(dir, digest, bytes)?;
    }
    put(dir, &bundle.digest(), &manifest)?;
    finish(dir, bundle)
}

/// Makes a package of a directory that has all of its blobs.
pub fn finish(dir: &Path, bundle: Bundle) -> Result<Layout, Failure> {
    let index = index([&bundle])?;
    for (name, bytes) in [("index.json", index.as_slice()), ("oci-layout", LAYOUT)] {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(Failure::file("write", &path))?;
    }
    Ok(Layout { dir: dir.to_owned(), bundle })
}

/// The `index.json` of a layout of these packages. The first of a version is found by it; where there
/// are several packages, by name and version.
pub fn index<'a>(bundles: impl IntoIterator<Item = &'a Bundle>) -> Result<Vec<u8>, Failure> {
    let bundles: Vec<&Bundle> = bundles.into_iter().collect();
    let name = |bundle: &Bundle| match bundles.len() {
        1 => bundle.manifest().version.to_string(),
        _ => format!("{}-{}", bundle.manifest().name, bundle.manifest().version),
    };
    let index = Index {
        schema_version: 2,
        media_type: "application/vnd.oci.image.index.v1+json".to_owned(),
        manifests: bundles
            .iter()
            .map(|bundle| Descriptor {
                media_type: oci::MANIFEST.to_owned(),
                digest: bundle.digest(),
                size: bundle.length(),
                annotations: BTreeMap::from([("org.opencontainers.image.ref.name".to_owned(), name(bundle))]),
            })
            .collect(),
    };
    serde_json::to_vec_pretty(&index)
        .map_err(|source| Failure::Internal { what: "cannot write index.json", source: source.into() })
}

/// What the `index.json` of a layout lists.
pub fn listed(dir: &Path) -> Result<Vec<Descriptor>, Failure> {
    let path = dir.join("index.json");
    let index: Index = serde_json::from_slice(&read(&path, Limits::PACKAGE.oci_manifest_bytes)?)
        .map_err(Failure::content("the index of a package", &path))?;
    Ok(index.manifests)
}

/// Copies a file to where its digest says, which is known only at its end.
async fn copy(source: &Path, dir: &Path, blobs: &Path, read: &impl Fn(u64)) -> Result<Indexed, Failure> {
    let mut from = File::open(source).map_err(Failure::file("open", source))?;
    let mut to = tempfile::NamedTempFile::new_in(blobs).map_err(Failure::file("write in", blobs))?;
    let mut indexer = ChunkIndexer::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        let length = from.read(&mut piece).map_err(Failure::file("read", source))?;
        if length == 0 {
            break;
        }
        size += length as u64;
        if size > Limits::PACKAGE.blob_bytes {
            return Err(Failure::refused(
                format!("{} is larger than {} bytes", source.display(), Limits::PACKAGE.blob_bytes),
                "split its weights into several external-data files",
            ));
        }
        indexer.update(&piece[..length]);
        to.write_all(&piece[..length]).map_err(Failure::file("write", to.path()))?;
        read(length as u64);
        // Lets Ctrl-C through between two pieces.
        tokio::task::yield_now().await;
    }
    let indexed = indexer.finish();
    let path = blob_path(dir, &indexed.digest);
    let file = to.persist(&path).map_err(|error| Failure::File {
        doing: "write",
        path: path.clone(),
        source: error.error,
    })?;
    readable(&file, &path)?;
    Ok(indexed)
}

fn put(dir: &Path, digest: &Digest, bytes: &[u8]) -> Result<(), Failure> {
    let path = blob_path(dir, digest);
    std::fs::write(&path, bytes).map_err(Failure::file("write", &path))
}

/// Temporary files are 0600; a package is no secret.
fn readable(file: &File, path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(Failure::file("change", path))
}

/// Where a blob of a layout lies.
pub fn blob_path(dir: &Path, digest: &Digest) -> PathBuf {
    dir.join("blobs/sha256").join(digest.hex())
}

/// Reads a file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(Failure::file("open", path))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Failure::file("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(Failure::content::<String>("part of a package", path)(format!(
            "it is larger than {limit} bytes"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::draft::Draft;

    const TOML: &str = r#"
        name = "a"
        version = "1.0.0"
        release = 1
        files = ["big.bin"]
        models = [{ name = "model", file = "model.onnx" }]
        inputs = [{ name = "x", datatype = "FP32", shape = [1] }]
        outputs = [{ name = "y", datatype = "FP32", shape = [1] }]
        acceptance = { cases = ["cases/one.json"] }
    "#;

    fn sources(dir: &Path) -> Sources {
        let big = dir.join("big.bin");
        std::fs::write(&big, vec![7; 3 * PIECE + 5]).unwrap();
        let content = |text: &str| Content::Bytes(text.as_bytes().to_vec());
        Sources {
            manifest: Draft::from_toml(TOML).unwrap().finish().unwrap(),
            files: BTreeMap::from([
                ("model.onnx".parse().unwrap(), content("not really")),
                ("cases/one.json".parse().unwrap(), content("{}")),
                ("big.bin".parse().unwrap(), Content::Disk(big)),
            ]),
        }
    }

    #[tokio::test]
    async fn what_is_written_reads_back_and_lays_out() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let written = write(&out, sources(dir.path()), |_| {}).await.unwrap();
        let opened = Layout::open(&out).unwrap();
        assert_eq!(opened.bundle().digest(), written.bundle().digest());
        let laid = dir.path().join("laid");
        opened.lay_out(&laid).unwrap();
        assert_eq!(std::fs::read(laid.join("big.bin")).unwrap().len(), 3 * PIECE + 5);
        let (manifest, config) = (
            std::fs::read(laid.join("package.json")).unwrap(),
            std::fs::read(laid.join("manifest.json")).unwrap(),
        );
        assert_eq!(Bundle::parse(&manifest, &config).unwrap().digest(), written.bundle().digest());
        assert!(
            std::fs::read_dir(out.join("blobs/sha256")).unwrap().all(|entry| entry
                .unwrap()
                .file_name()
                .len()
                == 64)
        );
    }

    #[tokio::test]
    async fn a_damaged_package_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let written = write(&out, sources(dir.path()), |_| {}).await.unwrap();
        let check = |path: PathBuf, bytes: &[u8]| {
            let good = std::fs::read(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let failure = Layout::open(&out).err().unwrap();
            assert_eq!(failure.exit(), crate::exit::Exit::Refused, "{failure:?}");
            std::fs::write(&path, good).unwrap();
        };
        check(written.blob(&written.bundle().digest()), b"{}");
        check(written.blob(&written.bundle().oci().config.digest), b"{}");
        check(out.join("index.json"), br#"{"schemaVersion":2,"mediaType":"x","manifests":[]}"#);
        check(out.join("index.json"), &vec![b' '; 70_000]);
        let file: FilePath = "big.bin".parse().unwrap();
        check(written.blob(&written.bundle().descriptor(&file).unwrap().digest), b"short");
        assert!(Layout::open(&out).is_ok());
        assert!(Layout::open(dir.path()).is_err());
    }
}
