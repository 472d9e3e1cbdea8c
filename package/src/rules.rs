//! What a manifest must satisfy beyond its shape: names used once, at least one model and one
//! acceptance case, numbers within their limits.
//!
//! Nothing is repaired: a manifest that breaks a rule is refused, with the field that breaks it.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::Limits;
use crate::manifest::{ExecutionProvider, Isolation, Manifest, Tolerance};
use crate::name::{FilePath, PackageName};
use crate::oci;
use crate::tensor::TensorSpec;

/// The version of the manifest's format that this program understands.
pub const FORMAT: u32 = 1;

/// Names of files that a laid-out package has beside its own.
pub const RESERVED: [&str; 2] = ["package.json", "manifest.json"];

/// A rule that a manifest breaks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ManifestError {
    #[error("the manifest has format {found}; this program reads format {FORMAT}")]
    Format { found: u32 },
    #[error("`{field}` is {found}; it must be {least} to {most}")]
    OutOfRange { field: String, found: u64, least: u64, most: u64 },
    #[error("`{field}` has {found} entries; at most {most} are allowed")]
    TooMany { field: &'static str, found: usize, most: usize },
    #[error("`{field}` is empty; at least one is needed")]
    Missing { field: &'static str },
    #[error("`{field}` has {found} bytes; at most {most} are allowed")]
    TooLong { field: String, found: usize, most: usize },
    #[error("`{field}` has `{name}` twice")]
    Duplicate { field: &'static str, name: String },
    #[error("the file `{path}` is named twice: in `{first}` and in `{second}`")]
    FileTwice { path: FilePath, first: &'static str, second: &'static str },
    #[error("`{path}` is a name that Selvedge keeps for itself")]
    Reserved { path: FilePath },
    #[error("`{folder}` cannot be both a file and the folder of `{path}`")]
    FileIsFolder { folder: FilePath, path: FilePath },
    #[error("`{field}`: `{name}` is not allowed: {rule}")]
    BadName { field: &'static str, name: String, rule: &'static str },
    #[error("the tensor `{tensor}` has dimension {found}; a dimension is -1 or at least 0")]
    Dimension { tensor: String, found: i64 },
    #[error("`{field}` is {found}; a tolerance is a finite number of at least 0")]
    Tolerance { field: String, found: f64 },
    #[error(
        "`module.sequences` needs a `module.component`: the built-in module keeps nothing between requests"
    )]
    SequencesOfNone,
    #[error("`min-release` {min_release} is above `release` {release}")]
    MinRelease { min_release: u64, release: u64 },
    #[error(
        "`module.batching` puts requests together along the first extent of every input and output, which has to be -1; that of `{tensor}` is not"
    )]
    NotBatched { tensor: String },
    #[error(
        "`module.batching` goes with neither `module.sequences` nor `isolation = \"request\"`: requests that run together share an instance"
    )]
    BatchedApart,
}

/// What a file of a package is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// An ONNX model.
    Model,
    /// External data of a model.
    ExternalData,
    /// The guest component.
    Component,
    /// An acceptance case.
    Case,
    /// Anything else.
    Other,
}

impl Use {
    /// The media type of a file of this use.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Model => oci::MODEL,
            Self::Component => oci::COMPONENT,
            Self::ExternalData | Self::Case | Self::Other => oci::FILE,
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Model => "models.file",
            Self::ExternalData => "models.external-data",
            Self::Component => "module.component",
            Self::Case => "acceptance.cases",
            Self::Other => "files",
        }
    }
}

/// Every file that a manifest names, with its use. Refuses a path named twice (external data may be
/// shared by models), a reserved one, and one that is both file and folder.
pub fn files(manifest: &Manifest) -> Result<BTreeMap<FilePath, Use>, ManifestError> {
    let mut all: BTreeMap<FilePath, Use> = BTreeMap::new();
    let models = manifest.models.iter().flat_map(|model| {
        let data = model.external_data.iter().map(|path| (path, Use::ExternalData));
        std::iter::once((&model.file, Use::Model)).chain(data)
    });
    let named = models
        .chain(manifest.module.component.iter().map(|path| (path, Use::Component)))
        .chain(manifest.acceptance.cases.iter().map(|path| (path, Use::Case)))
        .chain(manifest.files.iter().map(|path| (path, Use::Other)));
    for (path, used) in named {
        if RESERVED.contains(&path.as_str()) {
            return Err(ManifestError::Reserved { path: path.clone() });
        }
        match all.insert(path.clone(), used) {
            Some(Use::ExternalData) if used == Use::ExternalData => {}
            Some(first) => {
                return Err(ManifestError::FileTwice {
                    path: path.clone(),
                    first: first.field(),
                    second: used.field(),
                });
            }
            None => {}
        }
    }
    for path in all.keys() {
        let mut folder = path.as_str();
        while let Some((above, _)) = folder.rsplit_once('/') {
            if let Some((file, _)) = all.iter().find(|(file, _)| file.as_str() == above) {
                return Err(ManifestError::FileIsFolder { folder: file.clone(), path: path.clone() });
            }
            folder = above;
        }
    }
    Ok(all)
}

/// Checks every rule.
pub fn check(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    if manifest.format != FORMAT {
        return Err(ManifestError::Format { found: manifest.format });
    }
    if !manifest.version.to_string().is_ascii() || manifest.version.to_string().len() > 128 {
        return Err(ManifestError::TooLong {
            field: "version".into(),
            found: manifest.version.to_string().len(),
            most: 128,
        });
    }
    // The release is signed as a JSON integer, which other readers hold in 53 or 63 bits.
    within("release", manifest.release, 1, 1 << 53)?;
    if manifest.min_release > manifest.release {
        return Err(ManifestError::MinRelease {
            min_release: manifest.min_release,
            release: manifest.release,
        });
    }
    short("description", &manifest.description, limits.text_bytes)?;
    short("license", &manifest.license, limits.text_bytes)?;
    check_requires(manifest, limits)?;
    check_module(manifest, limits)?;
    check_models(manifest, limits)?;
    // A model may compute something from nothing; where there are several, inputs were forgotten.
    if manifest.inputs.is_empty() && manifest.models.len() > 1 {
        return Err(ManifestError::Missing { field: "inputs" });
    }
    if manifest.outputs.is_empty() {
        return Err(ManifestError::Missing { field: "outputs" });
    }
    check_tensors("inputs", &manifest.inputs, limits)?;
    check_tensors("outputs", &manifest.outputs, limits)?;
    check_acceptance(manifest, limits)?;
    check_activation(manifest, limits)?;
    check_settings("settings", &manifest.settings, limits)?;
    check_sources(manifest, limits)?;
    few("files", files(manifest)?.len(), limits.files)
}

/// Checks that `settings` have keys and values that can be environment variables of a guest.
pub fn check_settings(
    field: &'static str,
    settings: &BTreeMap<String, String>,
    limits: &Limits,
) -> Result<(), ManifestError> {
    few(field, settings.len(), limits.settings)?;
    for (key, value) in settings {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        if key.is_empty() || key.len() > limits.setting_key_bytes || !key.bytes().all(plain) {
            return Err(ManifestError::BadName {
                field,
                name: key.chars().take(80).collect(),
                rule: "a key has 1 to 63 of A-Z, a-z, 0-9, `_`, `-` and `.`",
            });
        }
        short(&format!("{field}.{key}"), value, limits.setting_value_bytes)?;
        if value.contains('\0') {
            return Err(ManifestError::BadName {
                field,
                name: key.clone(),
                rule: "a value has no NUL character",
            });
        }
    }
    Ok(())
}

fn check_sources(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let sources = &manifest.sources;
    few("sources", sources.len(), limits.sources)?;
    match sources.iter().enumerate().find(|(n, source)| sources[..*n].contains(source)) {
        Some((_, twice)) => {
            let name = twice.as_str().chars().take(80).collect();
            Err(ManifestError::Duplicate { field: "sources", name })
        }
        None => Ok(()),
    }
}

fn check_requires(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let requires = &manifest.requires;
    few("requires.architectures", requires.architectures.len(), limits.requirements)?;
    let mut seen = BTreeSet::new();
    for name in &requires.architectures {
        check_word("requires.architectures", name)?;
        if !seen.insert(name) {
            return Err(ManifestError::Duplicate { field: "requires.architectures", name: name.clone() });
        }
    }
    few("requires.labels", requires.labels.len(), limits.requirements)?;
    for (key, value) in &requires.labels {
        check_word("requires.labels", key)?;
        check_word("requires.labels", value)?;
    }
    Ok(())
}

fn check_word(field: &'static str, name: &str) -> Result<(), ManifestError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./".contains(&b);
    if name.is_empty() || name.len() > 63 || !name.bytes().all(plain) {
        return Err(ManifestError::BadName {
            field,
            name: name.chars().take(80).collect(),
            rule: "1 to 63 of A-Z, a-z, 0-9, `_`, `-`, `.` and `/`",
        });
    }
    Ok(())
}

fn check_module(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let module = &manifest.module;
    within("module.memory-mib", module.memory_mib.into(), 1, limits.memory_mib.into())?;
    within("module.deadline-ms", module.deadline_ms.into(), 1, limits.deadline_ms.into())?;
    within("module.concurrency", module.concurrency.into(), 1, limits.concurrency.into())?;
    within("module.tensor-mib", module.tensor_mib.into(), 1, limits.tensor_mib.into())?;
    if let Some(sequences) = &module.sequences {
        within("module.sequences.most", sequences.most.into(), 1, limits.sequences.into())?;
        let most = limits.sequence_idle_seconds.into();
        within("module.sequences.idle-seconds", sequences.idle_seconds.into(), 1, most)?;
        if module.component.is_none() {
            return Err(ManifestError::SequencesOfNone);
        }
    }
    within("module.queue", module.queue().into(), 0, limits.queue.into())?;
    check_batching(manifest, limits)?;
    for (n, capability) in module.capabilities.iter().enumerate() {
        if module.capabilities[..n].contains(capability) {
            return Err(ManifestError::Duplicate {
                field: "module.capabilities",
                name: format!("{capability:?}").to_lowercase(),
            });
        }
    }
    Ok(())
}

fn check_batching(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let Some(batching) = manifest.module.batching else { return Ok(()) };
    within("module.batching.max-size", batching.max_size.into(), 2, limits.batch.into())?;
    let deadline = manifest.module.deadline_ms;
    within("module.batching.max-delay-ms", batching.max_delay_ms.into(), 0, deadline.into())?;
    if manifest.module.sequences.is_some() || manifest.module.isolation == Isolation::Request {
        return Err(ManifestError::BatchedApart);
    }
    if manifest.inputs.is_empty() {
        return Err(ManifestError::Missing { field: "inputs" });
    }
    match manifest.inputs.iter().chain(&manifest.outputs).find(|tensor| tensor.shape.first() != Some(&-1)) {
        Some(tensor) => Err(ManifestError::NotBatched { tensor: tensor.name.clone() }),
        None => Ok(()),
    }
}

fn check_models(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    if manifest.models.is_empty() {
        return Err(ManifestError::Missing { field: "models" });
    }
    few("models", manifest.models.len(), limits.models)?;
    let mut names: BTreeSet<&PackageName> = BTreeSet::new();
    for model in &manifest.models {
        if !names.insert(&model.name) {
            return Err(ManifestError::Duplicate { field: "models.name", name: model.name.to_string() });
        }
        let threads = u64::from(model.intra_op_threads);
        within("models.intra-op-threads", threads, 1, limits.intra_op_threads.into())?;
        check_providers(&model.execution_providers)?;
        // A request uses one at a time: more than run side by side would be memory for nothing.
        let most = limits.sessions.min(manifest.module.concurrency);
        within("models.sessions", model.sessions.into(), 1, most.into())?;
    }
    Ok(())
}

/// Each once, and the processor last: it takes every operator, and leaves none to those after it.
fn check_providers(providers: &[ExecutionProvider]) -> Result<(), ManifestError> {
    let field = "models.execution-providers";
    for (n, provider) in providers.iter().enumerate() {
        if providers[..n].contains(provider) {
            return Err(ManifestError::Duplicate { field, name: provider.to_string() });
        }
    }
    match providers.split_last() {
        Some((_, before)) if before.contains(&ExecutionProvider::Cpu) => {
            Err(ManifestError::BadName { field, name: "cpu".to_owned(), rule: "`cpu` comes last" })
        }
        _ => Ok(()),
    }
}

fn check_tensors(field: &'static str, tensors: &[TensorSpec], limits: &Limits) -> Result<(), ManifestError> {
    few(field, tensors.len(), limits.tensors)?;
    let mut names = BTreeSet::new();
    for tensor in tensors {
        if tensor.name.is_empty() || tensor.name.chars().any(char::is_control) {
            return Err(ManifestError::BadName {
                field,
                name: tensor.name.chars().take(80).collect(),
                rule: "a tensor's name is not empty and has no control characters",
            });
        }
        short(&format!("{field}.name"), &tensor.name, limits.tensor_name_bytes)?;
        if !names.insert(&tensor.name) {
            return Err(ManifestError::Duplicate { field, name: tensor.name.clone() });
        }
        few("shape", tensor.shape.len(), limits.rank)?;
        if let Some(found) = tensor.shape.iter().copied().find(|extent| *extent < -1) {
            return Err(ManifestError::Dimension { tensor: tensor.name.clone(), found });
        }
    }
    Ok(())
}

fn check_acceptance(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let acceptance = &manifest.acceptance;
    if acceptance.cases.is_empty() {
        return Err(ManifestError::Missing { field: "acceptance.cases" });
    }
    few("acceptance.cases", acceptance.cases.len(), limits.cases)?;
    within("acceptance.latency-ms", acceptance.latency_ms.into(), 0, limits.deadline_ms.into())?;
    within("acceptance.memory-mib", acceptance.memory_mib.into(), 0, limits.budget_mib.into())?;
    check_tolerance("acceptance.tolerance", acceptance.tolerance)?;
    few(
        "acceptance.tolerance-by-architecture",
        acceptance.tolerance_by_architecture.len(),
        limits.requirements,
    )?;
    for (architecture, tolerance) in &acceptance.tolerance_by_architecture {
        check_word("acceptance.tolerance-by-architecture", architecture)?;
        check_tolerance(&format!("acceptance.tolerance-by-architecture.{architecture}"), *tolerance)?;
    }
    Ok(())
}

fn check_activation(manifest: &Manifest, limits: &Limits) -> Result<(), ManifestError> {
    let activation = &manifest.activation;
    for (field, found, most) in [
        ("activation.probation-seconds", activation.probation_seconds, limits.probation_seconds),
        ("activation.probation-failures", activation.probation_failures, 100),
        ("activation.probation-latency-ms", activation.probation_latency_ms, limits.deadline_ms),
        ("activation.probation-memory-mib", activation.probation_memory_mib, limits.budget_mib),
        ("activation.warm-up", activation.warm_up, limits.warm_up),
    ] {
        within(field, found.into(), 0, most.into())?;
    }
    Ok(())
}

fn check_tolerance(field: &str, tolerance: Tolerance) -> Result<(), ManifestError> {
    for (part, found) in [("absolute", tolerance.absolute), ("relative", tolerance.relative)] {
        if !found.is_finite() || found < 0.0 {
            return Err(ManifestError::Tolerance { field: format!("{field}.{part}"), found });
        }
    }
    Ok(())
}

fn within(field: &str, found: u64, least: u64, most: u64) -> Result<(), ManifestError> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(ManifestError::OutOfRange { field: field.to_owned(), found, least, most })
    }
}

fn few(field: &'static str, found: usize, most: usize) -> Result<(), ManifestError> {
    if found <= most { Ok(()) } else { Err(ManifestError::TooMany { field, found, most }) }
}

fn short(field: &str, text: &str, most: usize) -> Result<(), ManifestError> {
    if text.len() <= most {
        Ok(())
    } else {
        Err(ManifestError::TooLong { field: field.to_owned(), found: text.len(), most })
    }
}
