//! From what a person has (a bare model, or a directory with `selvedge.toml`) to a finished manifest
//! and the places of all files. What can be found out is filled in; nothing that was said is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use selvedge_control::ProbedModel;
use selvedge_package::draft::{Draft, DraftError};
use selvedge_package::limits::Limits;
use selvedge_package::manifest::Model;
use selvedge_package::{FilePath, Manifest, PackageName, rules};
use serde::Deserialize;

use crate::context::read_small;
use crate::failure::Failure;

/// The file of an authored package.
pub const MANIFEST_FILE: &str = "selvedge.toml";
/// Largest acceptance case that is read here for the files that it names.
const LARGEST_CASE: u64 = 16 << 20;

/// Where the bytes of a file come from.
#[derive(Debug, Clone)]
pub enum Content {
    /// A file on disk.
    Disk(PathBuf),
    /// Bytes that were made here.
    Bytes(Vec<u8>),
}

/// A finished manifest, and every file that it names.
#[derive(Debug)]
pub struct Sources {
    /// The manifest.
    pub manifest: Manifest,
    /// Its files.
    pub files: BTreeMap<FilePath, Content>,
}

/// A package that is being written: what was said so far, and where its files are.
#[derive(Debug)]
pub struct Authored {
    /// The manifest as far as it goes.
    pub draft: Draft,
    /// Directory in which files named by the draft are looked for.
    pub base: PathBuf,
    /// Files that lie elsewhere or were made here.
    pub given: BTreeMap<FilePath, Content>,
}

impl Authored {
    /// From a directory with `selvedge.toml`.
    pub fn directory(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(MANIFEST_FILE);
        if !path.is_file() {
            return Err(Failure::missing(
                format!("there is no {MANIFEST_FILE} in {}", dir.display()),
                "write one (docs/package.md), or name an .onnx file to package it as it is",
            ));
        }
        let text = read_small(&path, Limits::PACKAGE.config_bytes)?;
        let draft =
            Draft::from_toml(&text).map_err(Failure::content("a manifest that can be used", &path))?;
        Ok(Self { draft, base: dir.to_owned(), given: BTreeMap::new() })
    }

    /// From a bare model: named after its file, version 1.0.0.
    pub fn bare(model: &Path) -> Result<Self, Failure> {
        let base =
            model.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        let own =
            model.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<FilePath>().ok());
        let file = match own {
            Some(file) => file,
            None => fixed_path("model.onnx")?,
        };
        let name = model.file_stem().map(|stem| package_name(&stem.to_string_lossy()));
        let draft = Draft {
            name: name.and_then(|name| name.parse().ok()),
            version: Some(semver::Version::new(1, 0, 0)),
            models: vec![Model {
                name: fixed_name("model")?,
                file: file.clone(),
                external_data: Vec::new(),
                intra_op_threads: 1,
                execution_providers: Vec::new(),
                sessions: 1,
            }],
            ..Draft::default()
        };
        Ok(Self { draft, base, given: BTreeMap::from([(file, Content::Disk(model.to_owned()))]) })
    }

    /// The model to probe, when the manifest lacks what a probe finds out. A module of one's own is
    /// then taken to have the model's inputs and outputs; the acceptance cases show whether it does.
    pub fn to_probe(&self) -> Option<PathBuf> {
        let draft = &self.draft;
        let lacking =
            draft.inputs.is_empty() || draft.outputs.is_empty() || draft.acceptance.cases.is_empty();
        match draft.models.as_slice() {
            [model] if lacking => Some(self.place(&model.file)),
            _ => None,
        }
    }

    /// Fills in what the probe found and the manifest lacks.
    pub fn fill_in(&mut self, probed: ProbedModel) -> Result<(), Failure> {
        if self.draft.inputs.is_empty() {
            self.draft.inputs = probed.inputs;
        }
        if self.draft.outputs.is_empty() {
            self.draft.outputs = probed.outputs;
        }
        if let [model] = self.draft.models.as_mut_slice()
            && model.external_data.is_empty()
        {
            for name in probed.external_data {
                let beside = match model.file.as_str().rsplit_once('/') {
                    Some((folder, _)) => format!("{folder}/{name}"),
                    None => name,
                };
                let path =
                    beside.parse().map_err(|source: selvedge_package::NameError| Failure::Refused {
                        what: "the model's external data lies where a package cannot have it".to_owned(),
                        advice: "export the model with its external data beside it, under a plain name"
                            .to_owned(),
                        source: Some(source.into()),
                    })?;
                model.external_data.push(path);
            }
        }
        if self.draft.acceptance.cases.is_empty() {
            let path = fixed_path("cases/recorded.json")?;
            let case = serde_json::to_vec(&probed.case).map_err(|source| Failure::Internal {
                what: "cannot write the recorded case",
                source: source.into(),
            })?;
            self.given.insert(path.clone(), Content::Bytes(case));
            self.draft.acceptance.cases.push(path);
        }
        Ok(())
    }

    /// The finished manifest with the places of all files. Files that acceptance cases take their
    /// tensors from become files of the package.
    pub fn finish(mut self) -> Result<Sources, Failure> {
        self.add_case_files()?;
        let Self { draft, base, mut given } = self;
        let manifest = draft.finish().map_err(unfinished)?;
        let mut files = BTreeMap::new();
        let named = rules::files(&manifest).map_err(|source| unfinished(DraftError::Rule(source)))?;
        for path in named.into_keys() {
            let content = match given.remove(&path) {
                Some(content) => content,
                None => Content::Disk(inside(&base, &path)?),
            };
            files.insert(path, content);
        }
        Ok(Sources { manifest, files })
    }

    fn add_case_files(&mut self) -> Result<(), Failure> {
        let mut named: BTreeSet<FilePath> = self.draft.files.iter().cloned().collect();
        for case in &self.draft.acceptance.cases {
            let path = self.place(case);
            let text = match self.given.get(case) {
                Some(Content::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
                Some(Content::Disk(given)) => read_small(given, LARGEST_CASE)?,
                None => read_small(&inside(&self.base, case)?, LARGEST_CASE)?,
            };
            let read: CaseFiles =
                serde_json::from_str(&text).map_err(Failure::content("an acceptance case", &path))?;
            for tensor in read.inputs.into_iter().chain(read.outputs) {
                if let Some(file) = tensor.file
                    && named.insert(file.clone())
                {
                    self.draft.files.push(file);
                }
            }
        }
        Ok(())
    }

    fn place(&self, path: &FilePath) -> PathBuf {
        match self.given.get(path) {
            Some(Content::Disk(place)) => place.clone(),
            _ => self.base.join(path.as_str()),
        }
    }
}

/// An acceptance case, as far as it names files. The host reads all of it.
#[derive(Deserialize)]
struct CaseFiles {
    #[serde(default)]
    inputs: Vec<CaseTensor>,
    #[serde(default)]
    outputs: Vec<CaseTensor>,
}

#[derive(Deserialize)]
struct CaseTensor {
    file: Option<FilePath>,
}

/// The place of a file of an authored directory. A link that leads out of the directory is
/// refused: a package from elsewhere could otherwise take along a private file of whoever packs it.
fn inside(base: &Path, path: &FilePath) -> Result<PathBuf, Failure> {
    let place = base.join(path.as_str());
    let real = place.canonicalize().map_err(|source| Failure::Refused {
        what: format!("the manifest names {path}, which {} does not have", base.display()),
        advice: format!("put it there, or take it out of {MANIFEST_FILE} and of the acceptance cases"),
        source: Some(source.into()),
    })?;
    let base = base.canonicalize().map_err(Failure::file("open", base))?;
    if !real.starts_with(&base) {
        return Err(Failure::refused(
            format!("{} leads out of {}", place.display(), base.display()),
            "copy the file into the directory",
        ));
    }
    if !real.is_file() {
        return Err(Failure::refused(
            format!("{} is not a file", place.display()),
            "name files, not directories",
        ));
    }
    Ok(real)
}

fn unfinished(error: DraftError) -> Failure {
    Failure::Refused {
        what: "the manifest is not complete".to_owned(),
        advice: format!(
            "correct {MANIFEST_FILE} (docs/package.md), or give it on the command line (`selvedge package --help`)"
        ),
        source: Some(error.into()),
    }
}

/// A file's stem as a package name: lower case, other characters as `-`.
fn package_name(stem: &str) -> String {
    let text: String = stem
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    text.trim_matches(['-', '_']).chars().take(63).collect()
}

fn fixed_path(text: &str) -> Result<FilePath, Failure> {
    text.parse().map_err(|source: selvedge_package::NameError| Failure::Internal {
        what: "a fixed path is wrong",
        source: source.into(),
    })
}

fn fixed_name(text: &str) -> Result<PackageName, Failure> {
    text.parse().map_err(|source: selvedge_package::NameError| Failure::Internal {
        what: "a fixed name is wrong",
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn probed() -> ProbedModel {
        serde_json::from_value(json!({
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
            "external_data": ["w.data"],
            "case": {"name": "recorded", "inputs": [], "outputs": []},
        }))
        .unwrap()
    }

    #[test]
    fn names_come_out_of_file_names() {
        for (stem, name) in [("MobileNet v2", "mobilenet-v2"), ("_x_", "x"), ("ä", ""), ("a.b", "a-b")] {
            assert_eq!(package_name(stem), name);
        }
    }

    #[test]
    fn a_bare_model_becomes_a_whole_package() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["My Net.onnx", "w.data"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let mut authored = Authored::bare(&dir.path().join("My Net.onnx")).unwrap();
        assert_eq!(authored.to_probe().unwrap(), dir.path().join("My Net.onnx"));
        authored.fill_in(probed()).unwrap();
        authored.draft.release = Some(1);
        let sources = authored.finish().unwrap();
        assert_eq!(sources.manifest.name.as_str(), "my-net");
        let paths: Vec<&str> = sources.files.keys().map(|path| path.as_str()).collect();
        assert_eq!(paths, ["cases/recorded.json", "model.onnx", "w.data"]);
    }

    #[test]
    fn external_data_outside_is_refused() {
        let mut authored = Authored::bare(Path::new("m.onnx")).unwrap();
        let outside = ProbedModel { external_data: vec!["../secret".into()], ..probed() };
        assert_eq!(authored.fill_in(outside).unwrap_err().exit(), crate::exit::Exit::Refused);
    }

    #[test]
    fn files_of_cases_come_along_and_links_do_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("p");
        std::fs::create_dir_all(package.join("cases")).unwrap();
        std::fs::write(
            package.join(MANIFEST_FILE),
            "name='a'\nversion='1.0.0'\nrelease=1\nmodels=[{name='m',file='m.onnx'}]\ninputs=[{name='x',datatype='BYTES',shape=[1]}]\n\
             outputs=[{name='y',datatype='BYTES',shape=[1]}]\nacceptance={cases=['cases/a.json']}",
        )
        .unwrap();
        std::fs::write(package.join("m.onnx"), "x").unwrap();
        std::fs::write(
            package.join("cases/a.json"),
            json!({"name": "a", "inputs": [{"name": "x", "file": "cases/a.pdf"}]}).to_string(),
        )
        .unwrap();
        std::fs::write(package.join("cases/a.pdf"), "%PDF").unwrap();
        let sources = Authored::directory(&package).unwrap().finish().unwrap();
        assert!(sources.manifest.files.iter().any(|path| path.as_str() == "cases/a.pdf"));
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::remove_file(package.join("m.onnx")).unwrap();
        assert_eq!(
            Authored::directory(&package).unwrap().finish().unwrap_err().exit(),
            crate::exit::Exit::Refused
        );
        std::os::unix::fs::symlink("../secret", package.join("m.onnx")).unwrap();
        let failure = Authored::directory(&package).unwrap().finish().unwrap_err();
        assert!(failure.to_string().contains("leads out"), "{failure}");
    }

    #[test]
    fn a_manifest_with_a_typing_error_names_the_line() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MANIFEST_FILE), "name = 'a'\nmodles = []").unwrap();
        let failure = Authored::directory(dir.path()).unwrap_err();
        assert!(
            failure.chain().contains("line 2") && failure.chain().contains("models"),
            "{}",
            failure.chain()
        );
    }
}
