//! ONNX Runtime's shared library: loaded once, and never unloaded.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;

use crate::failure::RuntimeError;

/// A process has one environment; the first library that loads is the one.
static LOADED: Mutex<Option<(Environment, String)>> = Mutex::new(None);

/// Loads the library and leaves it at that: no environment is made, which could start threads. For what has
/// to be done between the two.
pub fn preload(path: &Path) -> Result<(), RuntimeError> {
    // SAFETY: ONNX Runtime's initialisers run here as they would for ort, which loads the same file later.
    let library = unsafe { libloading::Library::new(path) };
    let library =
        library.map_err(|error| RuntimeError::OnnxRuntime { path: path.to_owned(), source: error.into() })?;
    // Never unloaded, as ort never does.
    std::mem::forget(library);
    Ok(())
}

/// The environment, and the version that the library says it has.
pub fn load(path: &Path) -> Result<(Environment, String), RuntimeError> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = &*loaded {
        return Ok(loaded.clone());
    }
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| RuntimeError::OnnxRuntime {
        path: path.to_owned(),
        source,
    };
    let builder = ort::init_from(path).map_err(|error| failed(error.into()))?;
    let environment =
        builder.with_name("selvedge").with_telemetry(false).build().map_err(|error| failed(error.into()))?;
    let version = version(path).map_err(|error| failed(error.into()))?;
    *loaded = Some((environment.clone(), version.clone()));
    Ok((environment, version))
}

/// ort checks the version and keeps it to itself, so the library, loaded by now, is asked again.
fn version(path: &Path) -> Result<String, libloading::Error> {
    // SAFETY: the library was loaded by ort a moment ago, so nothing of it runs that has not run, and
    // ort never unloads it.
    let library = unsafe { libloading::Library::new(path) }?;
    // SAFETY: every ONNX Runtime exports this function with this type; ort called it before.
    let base =
        unsafe { library.get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase\0") }?;
    // SAFETY: the function takes nothing and gives a pointer to a static table, or null.
    let Some(base) = (unsafe { base().as_ref() }) else {
        return Ok("unknown".to_owned());
    };
    // SAFETY: the table's function gives a static text that ends with NUL.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Ok(version.to_string_lossy().into_owned())
}
