//! What a module sees of its host, apart from WASI: tensors, sessions, settings, log.
//!
//! Every argument is hostile. What a module does wrong is an error that it gets back, never a panic
//! and never the end of the host; only the deadline ends it from here.

use std::sync::{Arc, PoisonError};

use selvedge_package::tensor::{Datatype, TensorSpec};
use wasmtime::component::Resource;

use super::held::{Expired, Held};
use super::output::Level;
use super::state::{DeadlineMet, State};
use crate::deadline::Deadline;
use crate::session::{Model, RunError, Timed};
use crate::tensor::{Strings, Tensor, TensorError};

/// Generated from `wit/model.wit`.
#[allow(missing_docs)]
pub mod bindings {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "module",
        imports: {
            "selvedge:model/sessions.[method]session.run": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "selvedge:model/tensors.tensor": crate::sandbox::held::Held,
            "selvedge:model/sessions.session": super::OpenSession,
        },
    });
}

pub use bindings::selvedge::model::errors::{Code, Error};
pub use bindings::selvedge::model::tensors::NamedTensor as Tensors;
use bindings::selvedge::model::{config, errors, log, sequences, sessions, tensors};

/// A model that a module opened.
pub struct OpenSession {
    pub(super) model: Arc<Model>,
    /// Its place among the package's.
    pub(super) index: usize,
}

type Fallible<T> = wasmtime::Result<Result<T, Error>>;

pub(super) fn error(code: Code, message: impl std::fmt::Display) -> Error {
    Error { code, message: message.to_string() }
}

impl From<TensorError> for Error {
    fn from(source: TensorError) -> Self {
        error(Code::InvalidInput, source)
    }
}

impl From<Expired> for Error {
    /// The module's fault, whoever asks.
    fn from(source: Expired) -> Self {
        error(Code::Internal, source)
    }
}

macro_rules! datatypes {
    ($($ours:ident),*) => {
        impl From<tensors::Datatype> for Datatype {
            fn from(datatype: tensors::Datatype) -> Self {
                match datatype { $(tensors::Datatype::$ours => Self::$ours),* }
            }
        }

        impl From<Datatype> for tensors::Datatype {
            fn from(datatype: Datatype) -> Self {
                match datatype { $(Datatype::$ours => Self::$ours),* }
            }
        }
    };
}
datatypes!(Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Bf16, Fp32, Fp64, Bytes);

impl errors::Host for State {}

impl tensors::Host for State {}

impl tensors::HostTensor for State {
    fn create(
        &mut self,
        datatype: tensors::Datatype,
        shape: Vec<u64>,
        data: Vec<u8>,
    ) -> Fallible<Resource<Held>> {
        Ok(Tensor::fixed(datatype.into(), shape, data).map_err(Error::from).and_then(|it| self.admit(it)))
    }

    fn create_bytes(&mut self, shape: Vec<u64>, elements: Vec<Vec<u8>>) -> Fallible<Resource<Held>> {
        Ok(Tensor::bytes(shape, Strings::from_iter(elements))
            .map_err(Error::from)
            .and_then(|it| self.admit(it)))
    }

    fn datatype(&mut self, tensor: Resource<Held>) -> wasmtime::Result<tensors::Datatype> {
        Ok(self.table.get(&tensor)?.get()?.datatype().into())
    }

    fn shape(&mut self, tensor: Resource<Held>) -> wasmtime::Result<Vec<u64>> {
        Ok(self.table.get(&tensor)?.get()?.shape().to_vec())
    }

    fn byte_length(&mut self, tensor: Resource<Held>) -> wasmtime::Result<u64> {
        Ok(self.table.get(&tensor)?.get()?.byte_length() as u64)
    }

    fn read(&mut self, _: Resource<Held>, _: u64, _: u64) -> Fallible<Vec<u8>> {
        Err(replaced())
    }

    fn write(&mut self, _: Resource<Held>, _: u64, _: Vec<u8>) -> Fallible<()> {
        Err(replaced())
    }

    fn element_length(&mut self, tensor: Resource<Held>, index: u64) -> Fallible<u64> {
        let found = strings(self.table.get(&tensor)?, index);
        Ok(found.map(|(strings, index)| strings.get(index).map_or(0, <[u8]>::len) as u64))
    }

    fn element(&mut self, _: Resource<Held>, _: u64, _: u64, _: u64) -> Fallible<Vec<u8>> {
        Err(replaced())
    }

    fn drop(&mut self, tensor: Resource<Held>) -> wasmtime::Result<()> {
        self.release(tensor).map(drop)
    }
}

/// The bindings want functions that `transfer` takes the place of: they are never called.
fn replaced() -> wasmtime::Error {
    wasmtime::format_err!("`sandbox::transfer` should have answered this call")
}

/// The elements of a BYTES tensor, and the place of one.
pub(super) fn strings(held: &Held, index: u64) -> Result<(&Strings, usize), Error> {
    let tensor = held.get()?;
    let datatype = tensor.datatype();
    let strings = tensor.as_strings().ok_or(TensorError::Kind { datatype, wanted: "elements of BYTES" })?;
    let place = usize::try_from(index).ok().filter(|&index| index < strings.len());
    let missing = || error(Code::InvalidInput, format!("no element {index}: there are {}", strings.len()));
    Ok((strings, place.ok_or_else(missing)?))
}

impl sessions::Host for State {
    fn models(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.shared.models.iter().map(|(name, _)| name.to_string()).collect())
    }
}

impl sessions::HostSession for State {
    fn open(&mut self, model: String) -> Fallible<Resource<OpenSession>> {
        let Some(index) = self.shared.models.iter().position(|(name, _)| name.as_str() == model) else {
            let known: Vec<_> = self.shared.models.iter().map(|(name, _)| format!("`{name}`")).collect();
            let model: String = model.chars().take(80).collect();
            let message = format!("no model `{model}` in the package; it has {}", known.join(", "));
            return Ok(Err(error(Code::InvalidInput, message)));
        };
        let session = OpenSession { model: self.shared.models[index].1.clone(), index };
        Ok(self.table.push(session).map_err(|_| {
            let most = self.shared.limits.handles;
            error(Code::Limit, format!("an instance may hold {most} handles at once"))
        }))
    }

    fn inputs(&mut self, session: Resource<OpenSession>) -> wasmtime::Result<Vec<sessions::TensorSpec>> {
        Ok(specs(self.table.get(&session)?.model.inputs()))
    }

    fn outputs(&mut self, session: Resource<OpenSession>) -> wasmtime::Result<Vec<sessions::TensorSpec>> {
        Ok(specs(self.table.get(&session)?.model.outputs()))
    }

    fn optional_inputs(
        &mut self,
        session: Resource<OpenSession>,
    ) -> wasmtime::Result<Vec<sessions::TensorSpec>> {
        let model = &self.table.get(&session)?.model;
        let optional = model.inputs().iter().filter(|spec| spec.optional).chain(model.defaults());
        Ok(optional.map(tensor_spec).collect())
    }

    async fn run(
        &mut self,
        session: Resource<OpenSession>,
        inputs: Vec<(String, Resource<Held>)>,
        outputs: Vec<String>,
    ) -> Fallible<Vec<Tensors>> {
        let model = self.table.get(&session)?.model.clone();
        let mut given = Vec::with_capacity(inputs.len());
        for (name, tensor) in inputs {
            match self.table.get(&tensor)?.get() {
                Ok(tensor) => given.push((name, tensor.clone())),
                Err(expired) => return Ok(Err(expired.into())),
            }
        }
        let answer = match run(&model, given, outputs, self.deadline).await? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let mut tensors = Vec::with_capacity(answer.len());
        for (name, tensor) in answer {
            match self.admit(tensor) {
                Ok(tensor) => tensors.push(Tensors { name, tensor }),
                Err(error) => {
                    for Tensors { tensor, .. } in tensors {
                        drop(self.release(tensor)?);
                    }
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(tensors))
    }

    fn drop(&mut self, session: Resource<OpenSession>) -> wasmtime::Result<()> {
        self.table.delete(session)?;
        Ok(())
    }
}

/// Tensors under their names, as a model takes and gives them.
pub(super) type Named = Vec<(String, Tensor)>;

/// What a module gets of a run.
async fn run(model: &Model, inputs: Named, outputs: Vec<String>, deadline: Deadline) -> Fallible<Named> {
    given(match model.run_at_once(&inputs, &outputs, deadline, Timed::Here) {
        Some(answer) => answer,
        // Rare and large.
        None => Box::pin(model.run(inputs, outputs, deadline)).await,
    })
}

/// A run's answer as a module's; the deadline ends the call.
pub(super) fn given(answer: Result<Named, RunError>) -> Fallible<Named> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(RunError::Deadline) => Err(DeadlineMet.into()),
        Err(RunError::InvalidInput(why)) => Ok(Err(error(Code::InvalidInput, why))),
        Err(RunError::Model(why)) => Ok(Err(error(Code::Model, why))),
    }
}

fn specs(specs: &[TensorSpec]) -> Vec<sessions::TensorSpec> {
    specs.iter().map(tensor_spec).collect()
}

fn tensor_spec(spec: &TensorSpec) -> sessions::TensorSpec {
    let TensorSpec { name, datatype, shape, .. } = spec;
    sessions::TensorSpec { name: name.clone(), datatype: (*datatype).into(), shape: shape.clone() }
}

impl sequences::Host for State {
    fn current(&mut self) -> wasmtime::Result<sequences::Part> {
        let part = self.part.as_ref();
        Ok(sequences::Part {
            id: part.map(|part| part.id.to_string()),
            first: part.is_none_or(|part| part.first),
            last: part.is_none_or(|part| part.last),
        })
    }
}

impl config::Host for State {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.shared.settings.get(&key).cloned())
    }

    fn all(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(self.shared.settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl log::Host for State {
    fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => Level::Debug,
            log::Level::Info => Level::Info,
            log::Level::Warn => Level::Warn,
            log::Level::Error => Level::Error,
        };
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).write(level, &message);
        Ok(())
    }
}
