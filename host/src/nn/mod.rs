//! `wasi:nn@0.2.0-rc-2024-10-28` over what a module sees anyway: the package's models, tensors behind handles,
//! the same limits and the same deadline.
//!
//! Its tensors are another type and the same memory: nothing is copied on the way to a model or back. A graph is a
//! model of the package; bytes are looked at only to tell which. What a guest does wrong is an error that it gets;
//! where this interface has no error to give (a tensor too many), the request ends with the limit's name.

mod failure;
mod graph;
mod inference;
mod tensor;

pub use self::failure::Failure;
pub use self::graph::Graph;
pub use self::inference::Context;
pub use self::tensor::NnTensor;

/// Generated from `wit/nn.wit` and `wit/deps/wasi-nn.wit`.
#[allow(missing_docs)]
pub mod bindings {
    wasmtime::component::bindgen!({
        path: "wit",
        world: "module-with-nn",
        imports: {
            "wasi:nn/inference.[method]graph-execution-context.compute": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "selvedge:model/errors": crate::sandbox::imports::bindings::selvedge::model::errors,
            "selvedge:model/tensors": crate::sandbox::imports::bindings::selvedge::model::tensors,
            "selvedge:model/sessions": crate::sandbox::imports::bindings::selvedge::model::sessions,
            "selvedge:model/sequences": crate::sandbox::imports::bindings::selvedge::model::sequences,
            "selvedge:model/config": crate::sandbox::imports::bindings::selvedge::model::config,
            "selvedge:model/log": crate::sandbox::imports::bindings::selvedge::model::log,
            "selvedge:model/whole": crate::sandbox::imports::bindings::selvedge::model::whole,
            "wasi:nn/tensor.tensor": super::tensor::Behind,
            "wasi:nn/graph.graph": super::Graph,
            "wasi:nn/inference.graph-execution-context": super::Context,
            "wasi:nn/errors.error": super::Failure,
        },
    });
}

use wasmtime::component::{HasSelf, Linker};

use self::bindings::selvedge::model::nn_tensors;
use self::bindings::wasi::nn as wasi;
use crate::sandbox::state::State;

/// Links it beside the module interface.
pub fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    fn same(state: &mut State) -> &mut State {
        state
    }
    wasi::tensor::add_to_linker::<_, HasSelf<_>>(linker, same)?;
    wasi::graph::add_to_linker::<_, HasSelf<_>>(linker, same)?;
    wasi::inference::add_to_linker::<_, HasSelf<_>>(linker, same)?;
    wasi::errors::add_to_linker::<_, HasSelf<_>>(linker, same)?;
    nn_tensors::add_to_linker::<_, HasSelf<_>>(linker, same)
}
