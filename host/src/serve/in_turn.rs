//! A package asked for a request of a sequence, whose turn it is: to whoever asks, a package like any other.

use std::sync::{Arc, Mutex, PoisonError};

use selvedge_package::{Digest, FilePath, Manifest, PackageName};

use super::predictor::{Prediction, Predictor};
use crate::deadline::Deadline;
use crate::failure::{OpenError, PredictError};
use crate::sequence::Turn;
use crate::tensor::NamedTensor;
use crate::threads::yielding::Way;

/// One request of a sequence.
pub struct InTurn {
    package: Arc<dyn Predictor>,
    turn: Mutex<Option<Turn>>,
}

impl InTurn {
    /// The package, to be asked once.
    pub fn asked_once(package: &Arc<dyn Predictor>, turn: Turn) -> Arc<dyn Predictor> {
        Arc::new(Self { package: Arc::clone(package), turn: Mutex::new(Some(turn)) })
    }
}

impl Predictor for InTurn {
    fn manifest(&self) -> &Manifest {
        self.package.manifest()
    }

    fn digest(&self) -> Digest {
        self.package.digest()
    }

    fn models(&self) -> &[(PackageName, Digest)] {
        self.package.models()
    }

    fn read_file(&self, path: &FilePath) -> Result<Vec<u8>, OpenError> {
        self.package.read_file(path)
    }

    fn is_quick(&self) -> bool {
        self.package.is_quick()
    }

    fn way(&self) -> Way {
        self.package.way()
    }

    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, deadline: Deadline) -> Prediction {
        match self.turn.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(turn) => Arc::clone(&self.package).proceed(turn, inputs, deadline),
            None => Box::pin(async {
                Err(PredictError::Internal("a request of a sequence was asked twice".to_owned()))
            }),
        }
    }
}
