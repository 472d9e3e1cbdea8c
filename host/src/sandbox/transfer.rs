//! Bytes between a tensor and a guest's memory, with one copy each way.
//!
//! What the bindings make of `list<u8>` is a vector: a second copy, and memory for it. These take the place of
//! three of their functions. Where they are called from, and what is wrong, is the same.

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, WasmList};

use super::held::Held;
use super::imports::{self, Error};
use super::state::State;
use crate::tensor::TensorError;

/// The interface that has them.
const TENSORS: &str = "selvedge:model/tensors@0.1.0";

type Fallible<T> = wasmtime::Result<Result<T, Error>>;

/// Puts them in the place of the bindings'.
pub fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut tensors = linker.instance(TENSORS)?;
    tensors.func_wrap(
        "[method]tensor.read",
        |store, (tensor, offset, length): (Resource<Held>, u64, u64)| {
            Ok((read(store.data(), &tensor, offset, length)?,))
        },
    )?;
    tensors.func_wrap(
        "[method]tensor.write",
        |store, (tensor, offset, data): (Resource<Held>, u64, WasmList<u8>)| {
            Ok((write(store, &tensor, offset, &data)?,))
        },
    )?;
    tensors.func_wrap(
        "[method]tensor.element",
        |store, (tensor, index, offset, length): (Resource<Held>, u64, u64, u64)| {
            Ok((element(store.data(), &tensor, index, offset, length)?,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// `length` bytes from `offset` of a tensor of fixed-size elements.
fn read(state: &State, tensor: &Resource<Held>, offset: u64, length: u64) -> Fallible<Bytes> {
    let held = state.table.get(tensor)?;
    Ok(held.get().map_err(Error::from).and_then(|tensor| Ok(tensor.view(offset, length)?)))
}

/// `length` bytes from `offset` of element `index`, cut at its end.
fn element(state: &State, tensor: &Resource<Held>, index: u64, offset: u64, length: u64) -> Fallible<Bytes> {
    let held = state.table.get(tensor)?;
    Ok(imports::strings(held, index).and_then(|(strings, index)| {
        let size = strings.get(index).map_or(0, <[u8]>::len);
        let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let outside = TensorError::Range { offset, length: 0, size: size as u64 };
        Ok(strings.view(index, place(offset), place(length)).ok_or(outside)?)
    }))
}

fn write(
    mut store: StoreContextMut<'_, State>,
    tensor: &Resource<Held>,
    offset: u64,
    data: &WasmList<u8>,
) -> Fallible<()> {
    // The guest's memory cannot be read while something else of its store is held.
    let mut lent = match store.data_mut().table.get_mut(tensor)?.lend() {
        Ok(lent) => lent,
        Err(expired) => return Ok(Err(expired.into())),
    };
    let written = lent.write(offset, data.as_le_slice(&store));
    store.data_mut().table.get_mut(tensor)?.give_back(lent);
    Ok(written.map_err(Error::from))
}
