//! The errors that a guest gets. Each is behind a handle like everything else.

use wasmtime::component::Resource;

use super::bindings::wasi::nn::errors;
use crate::sandbox::state::{LimitMet, State};

pub use super::bindings::wasi::nn::errors::ErrorCode as Code;

/// Bytes of a message: handles are limited by number.
const TEXT: usize = 1 << 10;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// An error of a kind, and what was wrong in words.
    pub fn new(code: Code, message: impl std::fmt::Display) -> Self {
        let mut message = message.to_string();
        message.truncate(message.floor_char_boundary(TEXT));
        Self { code, message }
    }
}

/// What a guest asked for, or an error; both behind handles.
pub type Answer<T> = wasmtime::Result<Result<T, Resource<Failure>>>;

impl State {
    /// Puts a graph or context behind a handle.
    pub(super) fn hand_out<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<Resource<T>> {
        let most = self.shared.limits.handles;
        self.table
            .push(value)
            .map_err(|_| LimitMet(format!("an instance may hold {most} handles at once")).into())
    }

    /// Gives an error to the guest.
    pub(super) fn refuse<T>(&mut self, failure: Failure) -> Answer<T> {
        self.hand_out(failure).map(Err)
    }

    /// Gives what there is, or the error, to the guest.
    pub(super) fn answer<T: Send + 'static>(&mut self, made: Result<T, Failure>) -> Answer<Resource<T>> {
        match made {
            Ok(value) => self.hand_out(value).map(Ok),
            Err(failure) => self.refuse(failure),
        }
    }
}

impl errors::Host for State {}

impl errors::HostError for State {
    fn code(&mut self, failure: Resource<Failure>) -> wasmtime::Result<Code> {
        Ok(self.table.get(&failure)?.code)
    }

    fn data(&mut self, failure: Resource<Failure>) -> wasmtime::Result<String> {
        Ok(self.table.get(&failure)?.message.clone())
    }

    fn drop(&mut self, failure: Resource<Failure>) -> wasmtime::Result<()> {
        self.table.delete(failure)?;
        Ok(())
    }
}
