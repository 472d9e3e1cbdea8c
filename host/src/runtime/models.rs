//! Opens a package's models: what they may name, and how they come to ONNX Runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use ort::environment::Environment;
use selvedge_control::PackageRef;
use selvedge_package::FilePath;
use selvedge_package::manifest::{self, ExecutionProvider};

use super::directory::Directory;
use super::{Fatal, FatalCallback};
use crate::engine::ticker::Ticker;
use crate::failure::OpenError;
use crate::limits::MODEL_BYTES;
use crate::onnx;
use crate::session::providers::Providers;
use crate::session::{How, Model, Source};

/// What opening a model takes.
pub struct Opener<'a> {
    /// ONNX Runtime.
    pub environment: &'a Environment,
    /// Keeps its deadlines.
    pub ticker: &'a Ticker,
    /// Called when it cannot be stopped.
    pub fatal: &'a FatalCallback,
    /// What a model may run on.
    pub allowed: &'a [ExecutionProvider],
}

impl Opener<'_> {
    /// Opens one model of the package in `directory`, of which external data was verified, as often as its
    /// manifest says.
    pub fn open(&self, directory: &Directory, model: &manifest::Model) -> Result<Model, OpenError> {
        let refused = |why: String| OpenError::Model { model: model.name.to_string(), why };
        let bytes = directory.bytes(&model.file, MODEL_BYTES)?;
        let named = onnx::external_data(&bytes).map_err(|error| refused(error.to_string()))?;
        check_external(&named, model).map_err(refused)?;
        let source = if named.is_empty() {
            Source::Bytes(&bytes)
        } else {
            Source::File(&directory.path().join(model.file.as_str()))
        };
        let stuck = Arc::new(Stuck {
            package: PackageRef {
                name: directory.bundle().manifest().name.clone(),
                digest: directory.bundle().digest(),
            },
            model: model.name.clone(),
            fatal: self.fatal.clone(),
        });
        let one = |_| {
            let (stuck, allowed) = (stuck.clone(), self.allowed);
            let providers = Providers { asked: &model.execution_providers, allowed };
            let how = How { threads: model.intra_op_threads, providers };
            Model::open(self.environment, self.ticker, source, how, move || stuck.report())
                .map_err(|error| refused(error.to_string()))
        };
        let all = (0..model.sessions.max(1)).map(one).collect::<Result<Vec<_>, _>>()?;
        Model::together(all).ok_or_else(|| refused("no session was opened".to_owned()))
    }
}

/// External data lies beside the model, inside of the package, and in its manifest.
fn check_external(named: &BTreeSet<String>, model: &manifest::Model) -> Result<(), String> {
    let folder = model.file.as_str().rsplit_once('/').map(|(folder, _)| folder);
    for location in named {
        let path = match folder {
            Some(folder) => format!("{folder}/{location}"),
            None => location.clone(),
        };
        let inside = path.parse::<FilePath>().is_ok_and(|path| model.external_data.contains(&path));
        if !inside {
            let location: String = location.chars().take(200).collect();
            return Err(format!(
                "it names external data `{location}`, which is not among the manifest's `external-data` of the model"
            ));
        }
    }
    Ok(())
}

/// Tells once that a model cannot be stopped, from a thread of its own.
struct Stuck {
    package: PackageRef,
    model: selvedge_package::PackageName,
    fatal: FatalCallback,
}

impl Stuck {
    fn report(&self) {
        let fatal = Fatal {
            package: self.package.clone(),
            model: Some(self.model.clone()),
            what: format!(
                "model `{}` of package `{}` ran on after its deadline and could not be stopped",
                self.model, self.package.name
            ),
        };
        let callback: FatalCallback = Arc::clone(&self.fatal);
        let call = move || callback(fatal);
        if let Err(error) = std::thread::Builder::new().name("fatal".to_owned()).spawn(call) {
            tracing::error!(package = %self.package.name, %error, "a model cannot be stopped, nor reported");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, listed: &[&str], named: &str) -> bool {
        let model = manifest::Model {
            name: "m".parse().unwrap(),
            file: file.parse().unwrap(),
            external_data: listed.iter().map(|path| path.parse().unwrap()).collect(),
            intra_op_threads: 1,
            execution_providers: Vec::new(),
            sessions: 1,
        };
        check_external(&BTreeSet::from([named.to_owned()]), &model).is_ok()
    }

    #[test]
    fn external_data_stays_inside_of_the_package() {
        assert!(check("m.onnx", &["m.data"], "m.data"));
        assert!(check("models/m.onnx", &["models/m.data"], "m.data"));
        assert!(check("models/m.onnx", &["models/w/m.data"], "w/m.data"));
        assert!(!check("models/m.onnx", &["m.data"], "m.data"));
        for escape in
            ["../m.data", "/etc/passwd", "./m.data", "w//m.data", "", "M.data", "m.data\0", "package.json"]
        {
            assert!(!check("models/m.onnx", &["m.data", "models/m.data"], escape), "{escape}");
        }
    }
}
