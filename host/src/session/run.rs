//! One run of a session, through ONNX Runtime's C interface itself.
//!
//! ort's own `run` panics where an optional output is empty, copies every name at every run, and keeps the choice of
//! outputs with the options by which a run is stopped, so that it could not be another for every run.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr;

use ort::AsPointer as _;
use ort::session::{RunOptions, Session};
use ort::sys;
use smallvec::SmallVec;

use super::kinds::Outlet;
use super::lent::Handle;
use super::values::Value;

/// So many inputs, or outputs, need no memory of their own.
const FEW: usize = 4;

/// A list of inputs or outputs, on the stack where they are few.
pub type Few<T> = SmallVec<[T; FEW]>;

/// Gives `outputs`, in their order; `None` for an optional one that is empty. ONNX Runtime computes the others, too:
/// only its builds for training can do with a part of a graph.
///
/// A tensor that comes lies in the session's own memory: whoever keeps it keeps the session, too. Only an output that
/// is an input of the same name, or an optional one, may lie in memory that was lent for the run: `Model::open` has
/// those copied (`Outlet::copied`) before the run's inputs can go.
pub fn run(
    session: &mut Session,
    options: &RunOptions,
    inputs: &[(&Outlet, Value<'_>)],
    outputs: &[&Outlet],
) -> ort::Result<Few<Option<Handle>>> {
    let names = |outlet: &Outlet| -> *const c_char { outlet.symbol().as_ptr() };
    let taken = List::new(ptr::null(), inputs.iter().map(|(outlet, _)| names(outlet)));
    let values = List::new(ptr::null(), inputs.iter().map(|(_, value)| value.ptr()));
    let wanted = List::new(ptr::null(), outputs.iter().map(|outlet| names(outlet)));
    let mut given: List<*mut sys::OrtValue> =
        List::new(ptr::null_mut(), outputs.iter().map(|_| ptr::null_mut()));
    // SAFETY: session, options, names and values are alive, and nobody else uses this session meanwhile, which is
    // borrowed for it alone. The lists are as long as their lengths say. ONNX Runtime only reads names and values,
    // and makes a value for each null that it finds among what it is to give.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            options.ptr(),
            taken.as_slice().as_ptr(),
            values.as_slice().as_ptr(),
            values.as_slice().len(),
            wanted.as_slice().as_ptr(),
            wanted.as_slice().len(),
            given.as_mut_slice().as_mut_ptr(),
        )
    };
    // SAFETY: the status came from the call above, and is taken over here.
    let done = unsafe { ort::Error::result_from_status(status) };
    // Taken over whatever became of the run, so that none is lost.
    // SAFETY: the values came from the call above, each once, or are null.
    let mut given: Few<_> = given.as_slice().iter().map(|&value| unsafe { Handle::new(value) }).collect();
    done?;
    for value in &mut given {
        if let Some(handle) = value
            && !handle.is_filled()?
        {
            *value = None;
        }
    }
    Ok(given)
}

/// Addresses, on the stack where they are few: less of a detour for them than [`Few`].
enum List<T> {
    Few([T; FEW], usize),
    Many(Vec<T>),
}

impl<T: Copy> List<T> {
    fn new(empty: T, all: impl ExactSizeIterator<Item = T>) -> Self {
        if all.len() > FEW {
            return Self::Many(all.collect());
        }
        let (mut few, length) = ([empty; FEW], all.len());
        few.iter_mut().zip(all).for_each(|(place, one)| *place = one);
        Self::Few(few, length)
    }

    fn as_slice(&self) -> &[T] {
        match self {
            Self::Few(few, length) => &few[..*length],
            Self::Many(many) => many,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::Few(few, length) => &mut few[..*length],
            Self::Many(many) => many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_all_there() {
        for count in [0, 1, FEW, FEW + 1, 100] {
            let mut list = List::new(usize::MAX, 0..count);
            assert!(list.as_slice().iter().copied().eq(0..count));
            assert_eq!(list.as_mut_slice().len(), count);
        }
    }
}
