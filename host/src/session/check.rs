//! What is asked of a model, against what it takes and gives.

use std::collections::{HashMap, HashSet};

use selvedge_package::tensor::TensorSpec;

use super::{Model, RunError};
use crate::tensor::Tensor;

impl Model {
    /// Before anything else is done with them: there may be any number.
    pub(super) fn check_wanted(&self, outputs: &[String]) -> Result<(), RunError> {
        if outputs.is_empty() {
            return Ok(());
        }
        if outputs.len() > self.outputs.len() {
            let (asked, there) = (outputs.len(), self.outputs.len());
            return Err(RunError::InvalidInput(format!(
                "{asked} outputs were asked for; the model has {there}"
            )));
        }
        let known: HashSet<&str> = self.outputs.iter().map(|spec| spec.name.as_str()).collect();
        let mut asked = HashSet::with_capacity(outputs.len());
        for name in outputs {
            if !known.contains(name.as_str()) {
                return Err(RunError::InvalidInput(unknown("output", name, &self.outputs)));
            }
            if !asked.insert(name.as_str()) {
                return Err(RunError::InvalidInput(format!(
                    "the model's output `{name}` was asked for twice"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, inputs: &[(String, Tensor)]) -> Result<(), RunError> {
        for (index, (name, tensor)) in inputs.iter().enumerate() {
            let mut specs = self.inputs.iter().chain(&self.defaults);
            let Some(spec) = specs.find(|spec| spec.name == *name) else {
                return Err(RunError::InvalidInput(unknown("input", name, &self.inputs)));
            };
            if inputs[..index].iter().any(|(before, _)| before == name) {
                return Err(RunError::InvalidInput(format!("the model's input `{name}` was given twice")));
            }
            if spec.datatype != tensor.datatype() {
                return Err(RunError::InvalidInput(format!(
                    "the model's input `{name}` is {}, and {} came",
                    spec.datatype,
                    tensor.datatype()
                )));
            }
        }
        // ONNX Runtime itself would run without an input and fail somewhere inside.
        let missing =
            |spec: &&TensorSpec| !spec.optional && !inputs.iter().any(|(name, _)| *name == spec.name);
        match self.inputs.iter().find(missing) {
            Some(missing) => {
                Err(RunError::InvalidInput(format!("the model's input `{}` is missing", missing.name)))
            }
            None => Ok(()),
        }
    }
}

fn unknown(direction: &str, name: &str, specs: &[TensorSpec]) -> String {
    let known: Vec<_> = specs.iter().take(20).map(|spec| format!("`{}`", spec.name)).collect();
    let name: String = name.chars().take(80).collect();
    format!("the model has no {direction} `{name}`; it has {}", known.join(", "))
}

/// What was asked for, in the order in which it was.
pub(super) fn select(answer: Vec<(String, Tensor)>, wanted: &[String]) -> Vec<(String, Tensor)> {
    if wanted.is_empty() {
        return answer;
    }
    let mut answer: HashMap<String, Tensor> = answer.into_iter().collect();
    wanted.iter().filter_map(|name| answer.remove_entry(name)).collect()
}
