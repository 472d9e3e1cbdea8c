//! One run of a session, through ONNX Runtime's C interface itself.
//!
//! ort's own `run` panics where an optional output is empty, copies every name at every run, and keeps the choice of
//! outputs with the options by which a run is stopped, so that it could not be another for every run.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{self, NonNull};

use ort::AsPointer as _;
use ort::session::{RunOptions, Session, SessionInputValue};
use ort::sys;
use ort::value::DynValue;

/// Gives `outputs`, in their order; `None` for an optional one that is empty. ONNX Runtime computes the others, too:
/// only its builds for training can do with a part of a graph.
pub fn run(
    session: &mut Session,
    options: &RunOptions,
    inputs: &[(&CStr, SessionInputValue<'_>)],
    outputs: &[&CStr],
) -> ort::Result<Vec<Option<DynValue>>> {
    let names = |list: &[&CStr]| list.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
    let taken: Vec<*const c_char> = inputs.iter().map(|(name, _)| name.as_ptr()).collect();
    let values: Vec<*const sys::OrtValue> = inputs.iter().map(|(_, value)| value.ptr()).collect();
    let wanted = names(outputs);
    let mut given: Vec<*mut sys::OrtValue> = vec![ptr::null_mut(); outputs.len()];
    // SAFETY: session, options, names and values are alive, and nobody else uses this session meanwhile, which is
    // borrowed for it alone. The lists are as long as their lengths say. ONNX Runtime only reads names and values,
    // and makes a value for each null that it finds among what it is to give.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            options.ptr(),
            taken.as_ptr(),
            values.as_ptr(),
            values.len(),
            wanted.as_ptr(),
            wanted.len(),
            given.as_mut_ptr(),
        )
    };
    // SAFETY: the status came from the call above, and is taken over here.
    let done = unsafe { ort::Error::result_from_status(status) };
    // Taken over whatever became of the run, so that none is lost.
    let given: Vec<_> = given.into_iter().map(|value| take(value, session)).collect();
    done?;
    given.into_iter().collect()
}

/// Takes over a value that ONNX Runtime gave, if there is something in it.
fn take(value: *mut sys::OrtValue, session: &Session) -> ort::Result<Option<DynValue>> {
    let Some(value) = NonNull::new(value) else { return Ok(None) };
    let mut filled: c_int = 0;
    // SAFETY: the value is alive, and the answer is written to a place of its type.
    let status = unsafe { (ort::api().HasValue)(value.as_ptr(), &raw mut filled) };
    // SAFETY: the status came from the call above, and is taken over here.
    let asked = unsafe { ort::Error::result_from_status(status) };
    if asked.is_err() || filled == 0 {
        // SAFETY: nobody else knows of the value, which is not used again.
        unsafe { (ort::api().ReleaseValue)(value.as_ptr()) };
        return asked.map(|()| None);
    }
    // SAFETY: the value is alive and nobody else has this handle of it. A tensor of it lies in the session's own
    // memory, since ONNX Runtime brings outputs to the processor; whoever keeps it keeps the session, too. Only an
    // output that is an input of the same name, or an optional one, may lie in memory that was lent for the run:
    // `Model::open` has those copied (`Outlet::copied`) before the run's inputs can go.
    Ok(Some(unsafe { DynValue::from_ptr(value, Some(session.allocator())) }))
}
