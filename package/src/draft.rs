//! The manifest as a person writes it: `selvedge.toml`.
//!
//! It has the fields of [`Manifest`] under the same names. What a program can find out by itself may
//! be left out: `format`, `release`, `inputs`, `outputs`, acceptance cases. An unknown key is
//! refused, naming the nearest known one. [`Draft::finish`] refuses a draft that lacks something.

use std::collections::BTreeMap;

use semver::Version;
use serde::Deserialize;

use crate::limits::Limits;
use crate::manifest::{Acceptance, Activation, Manifest, Model, Module, Requires, Tolerance};
use crate::name::{FilePath, PackageName};
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::rules::{self, ManifestError};
use crate::tensor::TensorSpec;

/// A manifest that may still lack something. The fields are those of [`Manifest`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs)]
pub struct Draft {
    pub format: Option<u32>,
    pub name: Option<PackageName>,
    pub version: Option<Version>,
    pub release: Option<u64>,
    pub min_release: u64,
    pub description: String,
    pub license: String,
    pub requires: Requires,
    pub module: Module,
    pub models: Vec<Model>,
    pub files: Vec<FilePath>,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub acceptance: DraftAcceptance,
    pub activation: Activation,
    pub settings: BTreeMap<String, String>,
    pub sources: Vec<Origin>,
}

/// Acceptance rules that may still lack cases.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs)]
pub struct DraftAcceptance {
    pub cases: Vec<FilePath>,
    pub tolerance: Tolerance,
    pub tolerance_by_architecture: BTreeMap<String, Tolerance>,
    pub latency_ms: u32,
    pub memory_mib: u32,
}

/// A draft that cannot be read or finished.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DraftError {
    #[error("the file has {found} bytes; at most {most} are allowed")]
    TooLarge { found: u64, most: u64 },
    #[error("line {line}: `{key}` is unknown{}", suggestion(.nearest.as_deref()))]
    Unknown { line: usize, key: String, nearest: Option<String> },
    #[error("line {line}: {message}")]
    Toml { line: usize, message: String },
    #[error("`{field}` is missing: {remedy}")]
    Missing { field: &'static str, remedy: &'static str },
    #[error("the manifest breaks a rule")]
    Rule(#[source] ManifestError),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl Draft {
    /// Reads `selvedge.toml`.
    pub fn from_toml(text: &str) -> Result<Self, DraftError> {
        let most = Limits::PACKAGE.config_bytes;
        if text.len() as u64 > most {
            return Err(DraftError::TooLarge { found: text.len() as u64, most });
        }
        toml::from_str(text).map_err(|error| explain(text, &error))
    }

    /// The finished manifest, checked.
    pub fn finish(self) -> Result<Manifest, DraftError> {
        let missing = |field, remedy| DraftError::Missing { field, remedy };
        let acceptance = Acceptance {
            cases: self.acceptance.cases,
            tolerance: self.acceptance.tolerance,
            tolerance_by_architecture: self.acceptance.tolerance_by_architecture,
            latency_ms: self.acceptance.latency_ms,
            memory_mib: self.acceptance.memory_mib,
        };
        let manifest = Manifest {
            format: self.format.unwrap_or(rules::FORMAT),
            name: self.name.ok_or_else(|| missing("name", "say how the package is called"))?,
            version: self.version.ok_or_else(|| missing("version", "give a version such as 1.0.0"))?,
            release: self.release.ok_or_else(|| {
                missing("release", "give a number above that of the last release of this name")
            })?,
            min_release: self.min_release,
            description: self.description,
            license: self.license,
            requires: self.requires,
            module: self.module,
            models: self.models,
            files: self.files,
            inputs: self.inputs,
            outputs: self.outputs,
            acceptance,
            activation: self.activation,
            settings: self.settings,
            sources: self.sources,
        };
        rules::check(&manifest, &Limits::PACKAGE).map_err(DraftError::Rule)?;
        Ok(manifest)
    }
}

/// Turns the parser's error into one that says the line and, for an unknown name, the nearest one.
fn explain(text: &str, error: &toml::de::Error) -> DraftError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
    let message = error.message();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((unknown, known)) if message.starts_with("unknown ") => DraftError::Unknown {
            line,
            key: unknown.chars().take(80).collect(),
            nearest: nearest(unknown, known.iter().copied()).map(str::to_owned),
        },
        _ => DraftError::Toml { line, message: message.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "file-type"
version = "1.0.0"
release = 3
settings = { threshold = "0.5" }

[[models]]
name = "magika"
file = "model.onnx"

[[inputs]]
name = "bytes"
datatype = "BYTES"
shape = [1]

[[outputs]]
name = "label"
datatype = "BYTES"
shape = [1]

[acceptance]
cases = ["cases/pdf.json"]
tolerance = { absolute = 1e-4, relative = 0.0 }

[activation]
swap = "stop-first"
"#;

    #[test]
    fn a_draft_becomes_a_manifest_and_its_json_reads_back() {
        let manifest = Draft::from_toml(GOOD).unwrap().finish().unwrap();
        assert_eq!(manifest.release, 3);
        let json = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(serde_json::from_slice::<Manifest>(&json).unwrap(), manifest);
    }

    #[test]
    fn unknown_names_are_refused_with_line_and_nearest() {
        let check = |from: &str, to: &str, line, key: &str, nearest: Option<&str>| {
            assert_eq!(
                Draft::from_toml(&GOOD.replace(from, to)),
                Err(DraftError::Unknown { line, key: key.into(), nearest: nearest.map(str::to_owned) }),
                "{to}"
            );
        };
        check("settings =", "setings =", 5, "setings", Some("settings"));
        check("file =", "flie =", 9, "flie", Some("file"));
        check("[activation]", "[colour]", 25, "colour", None);
        check("stop-first", "stop-frist", 26, "stop-frist", Some("stop-first"));
        check("\"BYTES\"", "\"FP31\"", 13, "FP31", Some("FP32"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let check = |line: &str, field: &str| {
            let text = GOOD.replace(line, "");
            let error = Draft::from_toml(&text).and_then(Draft::finish).unwrap_err();
            let said = match &error {
                DraftError::Rule(rule) => rule.to_string(),
                other => other.to_string(),
            };
            assert!(said.contains(&format!("`{field}`")), "{said}");
        };
        check("name = \"file-type\"", "name");
        check("version = \"1.0.0\"", "version");
        check("release = 3", "release");
        check("cases = [\"cases/pdf.json\"]", "acceptance.cases");
        check("[[models]]\nname = \"magika\"\nfile = \"model.onnx\"", "models");
    }

    #[test]
    fn only_a_package_of_one_model_may_take_nothing() {
        let inputs = "[[inputs]]\nname = \"bytes\"\ndatatype = \"BYTES\"\nshape = [1]";
        let text = GOOD.replace(inputs, "");
        assert!(text.len() < GOOD.len());
        assert!(Draft::from_toml(&text).and_then(Draft::finish).unwrap().inputs.is_empty());
        let text = format!("{text}\n[[models]]\nname = \"other\"\nfile = \"other.onnx\"\n");
        let error = Draft::from_toml(&text).and_then(Draft::finish).unwrap_err();
        assert!(
            matches!(&error, DraftError::Rule(rule) if rule.to_string().contains("`inputs`")),
            "{error:?}"
        );
    }

    #[test]
    fn a_bad_value_says_its_line() {
        let text = GOOD.replace("\"model.onnx\"", "\"../model.onnx\"");
        let error = Draft::from_toml(&text).unwrap_err();
        assert!(matches!(&error, DraftError::Toml { line: 9, .. }), "{error:?}");
    }
}
