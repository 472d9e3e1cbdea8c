//! A folder of packages that a person names (`serve --packages DIR`): every folder in it is one, as the
//! host opens it, or as `selvedge package` writes it (an OCI image layout, laid out by `layout` first).
//!
//! Nobody has signed for these: who may write to the folder says what is served. Their files are held
//! against their digests all the same, as everywhere.

mod layout;
mod place;

use std::path::{Path, PathBuf};

use selvedge_control::PackageRef;

use crate::runtime::directory::Directory;
pub use place::{LAID, temporary};

/// Most folders that are looked at.
const MOST: usize = 128;

/// The folder.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    /// Where packages are laid out that are not as the host opens them.
    laid: PathBuf,
}

/// A package in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name of its folder.
    pub folder: String,
    /// Where the host opens it.
    pub directory: PathBuf,
    /// Its name and digest.
    pub package: PackageRef,
    /// Its version.
    pub version: String,
}

/// A folder that holds no package that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Its name.
    pub folder: String,
    /// Why, for people.
    pub why: String,
}

/// What is in the folder, by the folders' names.
#[derive(Debug, Default)]
pub struct Contents {
    /// Packages.
    pub found: Vec<Found>,
    /// Whatever else.
    pub unfit: Vec<Unfit>,
}

impl Folder {
    /// `path`, with `laid` for what has to be laid out.
    pub fn new(path: PathBuf, laid: PathBuf) -> Self {
        Self { path, laid }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where packages are laid out.
    pub fn laid(&self) -> &Path {
        &self.laid
    }

    /// Whether the host may make and remove directories where packages are laid out: the folder itself is a
    /// person's, and nothing there is touched. Says what is wrong.
    pub fn apart(&self) -> Result<(), String> {
        place::apart(&self.path, &self.laid)
    }

    /// Looks into it. Files, and folders whose name begins with a dot, are left alone.
    pub fn look(&self) -> std::io::Result<Contents> {
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // What a link leads to counts.
            if name.starts_with('.') || !std::fs::metadata(entry.path()).is_ok_and(|found| found.is_dir()) {
                continue;
            }
            if folders.len() == MOST {
                let error = format!("there are more than {MOST} folders in `{}`", self.path.display());
                return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, error));
            }
            folders.push((name, entry.path()));
        }
        folders.sort();
        let mut contents = Contents::default();
        for (folder, path) in folders {
            match self.package(&folder, &path) {
                Ok(found) => contents.found.push(found),
                Err(why) => contents.unfit.push(Unfit { folder, why }),
            }
        }
        contents.one_of_each_name();
        Ok(contents)
    }

    fn package(&self, folder: &str, path: &Path) -> Result<Found, String> {
        let directory = if path.join("package.json").exists() {
            path.to_owned()
        } else if path.join("oci-layout").exists() {
            layout::lay_out(path, &self.laid)?
        } else {
            return Err(
                "it is no package: it has neither `package.json` nor `oci-layout` (`selvedge package` \
                        writes such folders)"
                    .to_owned(),
            );
        };
        let directory = std::path::absolute(directory).map_err(|error| error.to_string())?;
        let read = Directory::read(&directory, None).map_err(|error| error.to_string())?;
        let manifest = read.bundle().manifest();
        Ok(Found {
            folder: folder.to_owned(),
            package: PackageRef { name: manifest.name.clone(), digest: read.bundle().digest() },
            version: manifest.version.to_string(),
            directory,
        })
    }

    /// Lays out what has to be, and takes away what was for packages that are not in the folder any more. Before
    /// this process is shut in, hard links can be made. What is wrong is said when the packages are loaded.
    pub fn prepare(&self) {
        if let Ok(contents) = self.look() {
            layout::tidy(&self.laid, contents.found.iter().map(|found| found.directory.as_path()));
        }
    }
}

impl Contents {
    /// A name stands for one package: where two have it, neither is meant.
    fn one_of_each_name(&mut self) {
        let all = std::mem::take(&mut self.found);
        for found in &all {
            let other = all.iter().find(|other| other.package.name == found.package.name && *other != found);
            match other {
                None => self.found.push(found.clone()),
                Some(other) => self.unfit.push(Unfit {
                    folder: found.folder.clone(),
                    why: format!(
                        "`{}` holds a package of the name `{}` too: leave one of them here",
                        other.folder, found.package.name
                    ),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_package::Manifest;
    use selvedge_package::bundle::{Builder, Built};
    use serde_json::json;

    /// A package of three files; contents that no model has, since nothing opens them here.
    fn built(name: &str, release: u64) -> (Built, Vec<(&'static str, Vec<u8>)>) {
        let manifest: Manifest =
            serde_json::from_value(crate::serve::fake::manifest(name, "1.0.0", release, "FP32", &[1]))
                .unwrap();
        let files = vec![("net.onnx", b"net".to_vec()), ("cases/a.json", b"{}".to_vec())];
        let mut builder = Builder::new(manifest);
        for (path, bytes) in &files {
            builder.bytes(path.parse().unwrap(), bytes).unwrap();
        }
        (builder.build().unwrap(), files)
    }

    fn opened(into: &Path, name: &str, release: u64) {
        let (built, files) = built(name, release);
        for (path, bytes) in &files {
            let path = into.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(into.join("package.json"), &built.manifest).unwrap();
        std::fs::write(into.join("manifest.json"), &built.blobs[0].1).unwrap();
    }

    fn image(into: &Path, name: &str, release: u64) {
        let (built, files) = built(name, release);
        let blobs = into.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        let put = |bytes: &[u8]| {
            std::fs::write(blobs.join(selvedge_package::Digest::of(bytes).hex()), bytes).unwrap();
        };
        put(&built.manifest);
        built.blobs.iter().for_each(|(_, bytes)| put(bytes));
        files.iter().for_each(|(_, bytes)| put(bytes));
        let descriptor = json!({"mediaType": selvedge_package::oci::MANIFEST, "digest": built.bundle.digest(),
            "size": built.manifest.len()});
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
        std::fs::write(into.join("index.json"), index.to_string()).unwrap();
        std::fs::write(into.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    #[test]
    fn packages_are_found_in_both_forms_and_the_rest_is_named() {
        let root = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let path = root.path().join("packages").join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        opened(&of("b"), "opened", 1);
        image(&of("a.pkg"), "image", 2);
        for folder in ["one", "two"] {
            opened(&of(folder), "same", if folder == "one" { 1 } else { 2 });
        }
        of("empty");
        of(".hidden");
        std::fs::write(of("cut").join("package.json"), "{").unwrap();
        let broken = of("broken.pkg");
        image(&broken, "broken", 1);
        std::fs::remove_file(broken.join("blobs/sha256").join(selvedge_package::Digest::of(b"net").hex()))
            .unwrap();
        std::fs::write(root.path().join("packages/README"), "a file").unwrap();
        let folder = Folder::new(root.path().join("packages"), root.path().join("data/laid"));
        for _ in 0..2 {
            let contents = folder.look().unwrap();
            let found: Vec<_> =
                contents.found.iter().map(|found| (&*found.folder, found.package.name.as_str())).collect();
            assert_eq!(found, [("a.pkg", "image"), ("b", "opened")]);
            assert_eq!(std::fs::read(contents.found[0].directory.join("cases/a.json")).unwrap(), b"{}");
            let unfit: Vec<_> = contents.unfit.iter().map(|unfit| (&*unfit.folder, &*unfit.why)).collect();
            let check = |name: &str, says: &str| {
                assert!(
                    unfit.iter().any(|(folder, why)| *folder == name && why.contains(says)),
                    "{name}: {unfit:?}"
                );
            };
            check("broken.pkg", "`net.onnx` cannot be laid out");
            check("cut", "`manifest.json`");
            check("empty", "neither `package.json` nor `oci-layout`");
            check("one", "`two` holds a package of the name `same` too");
            check("two", "`one` holds");
            assert_eq!(unfit.len(), 5);
        }
        std::fs::remove_dir_all(root.path().join("packages/a.pkg")).unwrap();
        let of_others = root.path().join("data/laid/sha256-of-others");
        std::fs::create_dir(&of_others).unwrap();
        std::fs::create_dir(root.path().join(format!("data/laid/{}.new-1", "0".repeat(64)))).unwrap();
        folder.prepare();
        let left = std::fs::read_dir(root.path().join("data/laid")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [of_others], "what the host did not make stays");
    }

    #[test]
    fn what_is_half_laid_out_is_laid_out_anew_and_by_several_at_once() {
        let root = tempfile::tempdir().unwrap();
        let (from, laid) = (root.path().join("a.pkg"), root.path().join("laid"));
        image(&from, "image", 1);
        let all = || {
            std::thread::scope(|scope| {
                let laying: Vec<_> = (0..8).map(|_| scope.spawn(|| layout::lay_out(&from, &laid))).collect();
                let mut places = laying.into_iter().map(|laying| laying.join().unwrap().unwrap());
                let place = places.next().unwrap();
                assert!(places.all(|other| other == place));
                place
            })
        };
        let place = all();
        for half in ["net.onnx", "cases/a.json", "manifest.json", "package.json"] {
            std::fs::remove_file(place.join(half)).unwrap();
            assert_eq!(all(), place);
            assert!(place.join(half).is_file(), "{half}");
            std::fs::remove_file(place.join(half)).unwrap();
            std::fs::write(place.join(half), "").unwrap();
            all();
            assert!(std::fs::metadata(place.join(half)).unwrap().len() > 0, "{half}");
        }
        assert_eq!(std::fs::read_dir(&laid).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn blobs_that_are_others_are_not_laid_out() {
        let root = tempfile::tempdir().unwrap();
        let (from, laid) = (root.path().join("a.pkg"), root.path().join("laid"));
        image(&from, "image", 1);
        let index = std::fs::read_to_string(from.join("index.json")).unwrap();
        let check = |index: String, says: &str| {
            std::fs::write(from.join("index.json"), index).unwrap();
            let why = layout::lay_out(&from, &laid).unwrap_err();
            assert!(why.contains(says), "{why}");
        };
        check("[]".to_owned(), "index.json");
        check(json!({"manifests": []}).to_string(), "0 packages");
        check(index.replace("sha256:", "sha512:"), "index.json");
        let digest = selvedge_package::Digest::of(b"net").to_string();
        let of_image =
            serde_json::from_str::<serde_json::Value>(&index).unwrap()["manifests"][0]["digest"].clone();
        check(index.replace(of_image.as_str().unwrap(), &digest), "manifest");
    }
}
