//! The function of a component that answers requests: one of two.

use std::time::Instant;

use wasmtime::Store;
use wasmtime::component::{Component, ComponentExportIndex, Instance, TypedFunc};

use super::imports::{Error, Tensors};
use super::state::State;
use super::{failure, within};
use crate::failure::PredictError;
use crate::tensor::NamedTensor;

/// The interfaces of which a component must export one, the second where it has both, and their one function.
const PREDICTOR: (&str, &str) = ("selvedge:model/predictor@0.1.0", "predict");
const RELAY: (&str, &str) = ("selvedge:model/relay@0.1.0", "predict");

/// Where a component has it.
#[derive(Clone, Copy)]
pub enum Entry {
    /// It takes tensors and gives tensors.
    Predictor(ComponentExportIndex),
    /// It sees none, and says who answers.
    Relay(ComponentExportIndex),
}

impl Entry {
    /// Says in words what is missing.
    pub fn of(component: &Component) -> Result<Self, String> {
        let predictor = || export(component, PREDICTOR).map(Self::Predictor);
        let missing = || format!("it does not export `{}` of `{}`", PREDICTOR.1, PREDICTOR.0);
        export(component, RELAY).map(Self::Relay).or_else(predictor).ok_or_else(missing)
    }

    /// The function itself.
    pub fn of_instance(self, store: &mut Store<State>, instance: &Instance) -> wasmtime::Result<Predict> {
        Ok(match self {
            Self::Predictor(index) => Predict::Tensors(instance.get_typed_func(store, index)?),
            Self::Relay(index) => Predict::Whole(instance.get_typed_func(store, index)?),
        })
    }
}

/// What a component exports under a name, if it does.
pub fn export(component: &Component, (interface, function): (&str, &str)) -> Option<ComponentExportIndex> {
    let interface = component.get_export_index(None, interface)?;
    component.get_export_index(Some(&interface), function)
}

type Listed = TypedFunc<(Vec<Tensors>,), (Result<Vec<Tensors>, Error>,)>;
type Relayed = TypedFunc<(), ()>;

/// The function of an instance.
#[derive(Clone, Copy)]
pub enum Predict {
    /// It takes tensors and gives tensors.
    Tensors(Listed),
    /// It sees none, and says who answers.
    Whole(Relayed),
}

impl Predict {
    /// Asks it. The inner error is the module's own.
    pub async fn call(
        self,
        store: &mut Store<State>,
        inputs: Vec<NamedTensor>,
        deadline: Instant,
    ) -> Result<Result<Vec<NamedTensor>, Error>, PredictError> {
        match self {
            Self::Tensors(function) => {
                let mut handles = Vec::with_capacity(inputs.len());
                for NamedTensor { name, tensor } in inputs {
                    let tensor = store.data_mut().admit_input(tensor).map_err(limit)?;
                    handles.push(Tensors { name, tensor });
                }
                let called = within(deadline, function.call_async(&mut *store, (handles,))).await;
                let (answer,) = called.map_err(|error| failure(store, error))?;
                let state = store.data_mut();
                state.end();
                match answer {
                    Ok(outputs) => state.take_outputs(outputs).map(Ok),
                    Err(error) => Ok(Err(error)),
                }
            }
            Self::Whole(function) => {
                store.data_mut().came(inputs).map_err(limit)?;
                let called = within(deadline, function.call_async(&mut *store, ())).await;
                called.map_err(|error| failure(store, error))?;
                let state = store.data_mut();
                state.end();
                state.answered().await
            }
        }
    }

    /// The same for the built-in module, on the caller's stack.
    pub async fn call_at_once(
        self,
        store: &mut Store<State>,
        inputs: Vec<NamedTensor>,
    ) -> Result<Result<Vec<NamedTensor>, Error>, PredictError> {
        let Self::Whole(function) = self else {
            return Err(PredictError::Internal("the built-in module does not export `relay`".to_owned()));
        };
        store.data_mut().came(inputs).map_err(limit)?;
        function.call(&mut *store, ()).map_err(|error| failure(store, error))?;
        store.data_mut().answered().await
    }
}

fn limit(error: Error) -> PredictError {
    PredictError::Limit(error.message)
}
