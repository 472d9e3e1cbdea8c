//! Runs. The tensors of a call are the host's from then on, whatever becomes of it.

use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::wasi::nn::inference;
use super::failure::{Answer, Code, Failure};
use super::tensor::{Behind, NnTensor};
use crate::sandbox::state::{DeadlineMet, State};
use crate::session::{Model, RunError};
use crate::tensor::Tensor;

/// A model that is going to run.
pub struct Context(Arc<Model>);

impl Context {
    /// A context of `model`; it costs nothing.
    pub fn new(model: Arc<Model>) -> Self {
        Self(model)
    }
}

type Named = (String, Resource<Behind>);

impl inference::Host for State {}

impl inference::HostGraphExecutionContext for State {
    async fn compute(&mut self, context: Resource<Context>, inputs: Vec<Named>) -> Answer<Vec<Named>> {
        let model = self.table.get(&context)?.0.clone();
        let given = match self.take(&model, inputs)? {
            Ok(given) => given,
            Err(failure) => return self.refuse(failure),
        };
        let answer = match model.run(given, Vec::new(), self.deadline).await {
            Ok(answer) => answer,
            Err(RunError::Deadline) => return Err(DeadlineMet.into()),
            Err(RunError::InvalidInput(why)) => {
                return self.refuse(Failure::new(Code::InvalidArgument, why));
            }
            Err(RunError::Model(why)) => return self.refuse(Failure::new(Code::RuntimeError, why)),
        };
        let mut outputs = Vec::with_capacity(answer.len());
        for (name, tensor) in answer {
            let held = NnTensor::of(&tensor)
                .map_err(|why| Failure::new(Code::UnsupportedOperation, format!("output `{name}`: {why}")))
                .and_then(|tensor| {
                    self.made(tensor).map_err(|limit| Failure::new(Code::TooLarge, limit.message))
                });
            match held {
                Ok(tensor) => outputs.push((name, tensor)),
                Err(failure) => {
                    for (_, tensor) in outputs {
                        drop(self.release(tensor)?);
                    }
                    return self.refuse(failure);
                }
            }
        }
        Ok(Ok(outputs))
    }

    fn drop(&mut self, context: Resource<Context>) -> wasmtime::Result<()> {
        self.table.delete(context)?;
        Ok(())
    }
}

impl State {
    /// Takes all inputs from behind their handles, and says what is wrong with the first that is no tensor.
    fn take(
        &mut self,
        model: &Model,
        inputs: Vec<Named>,
    ) -> wasmtime::Result<Result<Vec<(String, Tensor)>, Failure>> {
        let mut given = Ok(Vec::with_capacity(inputs.len()));
        for (name, tensor) in inputs {
            let taken = self.release(tensor)?.map_err(|expired| expired.to_string());
            let mut specs = model.inputs().iter().chain(model.defaults());
            let rank = specs.find(|spec| spec.name == name).map(|spec| spec.shape.len());
            let tensor = taken.and_then(|tensor| tensor.to_tensor(rank).map_err(|why| why.to_string()));
            match (&mut given, tensor) {
                (Ok(given), Ok(tensor)) => given.push((name, tensor)),
                (Ok(_), Err(why)) => {
                    let name: String = name.chars().take(80).collect();
                    given = Err(Failure::new(Code::InvalidArgument, format!("input `{name}`: {why}")));
                }
                (Err(_), _) => {}
            }
        }
        Ok(given)
    }
}
