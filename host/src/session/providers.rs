//! Execution providers: what a model's operators run on.
//!
//! A manifest names them in the order in which they take operators, and the device says which it allows. One that
//! is asked for and not there is an error that says what is; no other takes its place. Operators that it does not
//! have go to the next of the list. Where the processor is not among them, ONNX Runtime refuses a model with an
//! operator that none of them takes.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use ort::ep;
use ort::session::builder::SessionBuilder;
use selvedge_package::manifest::ExecutionProvider;

/// Why a model does not run on what its manifest asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The device does not allow it.
    #[error(
        "it asks for the execution provider `{asked}`, and this device allows {allowed} (`--execution-providers` of \
         selvedge-host)"
    )]
    Forbidden {
        /// What the manifest names.
        asked: ExecutionProvider,
        /// What may be used.
        allowed: String,
    },
    /// The library does not have it.
    #[error("it asks for the execution provider `{asked}`, and this ONNX Runtime has {there}")]
    Missing {
        /// What the manifest names.
        asked: ExecutionProvider,
        /// What there is.
        there: String,
    },
    /// The library has it, and it does not work here.
    #[error("the execution provider `{asked}` cannot be used: {why}")]
    Broken {
        /// What the manifest names.
        asked: ExecutionProvider,
        /// What it said.
        why: String,
    },
}

/// ONNX Runtime's own names.
const NAMES: [(ExecutionProvider, &str); 6] = [
    (ExecutionProvider::Tensorrt, "TensorrtExecutionProvider"),
    (ExecutionProvider::Cuda, "CUDAExecutionProvider"),
    (ExecutionProvider::Openvino, "OpenVINOExecutionProvider"),
    (ExecutionProvider::Acl, "ACLExecutionProvider"),
    (ExecutionProvider::Xnnpack, "XnnpackExecutionProvider"),
    (ExecutionProvider::Cpu, "CPUExecutionProvider"),
];

/// Where a model runs.
#[derive(Debug, Clone, Copy)]
pub struct Providers<'a> {
    /// What the manifest asks for; nothing: the processor.
    pub asked: &'a [ExecutionProvider],
    /// What the device allows.
    pub allowed: &'a [ExecutionProvider],
}

impl Providers<'_> {
    /// The processor alone.
    pub const CPU: Self = Self { asked: &[], allowed: &[ExecutionProvider::Cpu] };

    /// Registers them, in their order.
    pub fn register(self, builder: SessionBuilder) -> Result<SessionBuilder, ProviderError> {
        // Without any there is the processor, as every ONNX Runtime has it.
        if self.asked.is_empty() || self.asked == [ExecutionProvider::Cpu] {
            return self.allow(ExecutionProvider::Cpu).map(|()| builder);
        }
        let there = there().map_err(|why| ProviderError::Broken { asked: self.asked[0], why })?;
        self.check(&there)?;
        let mut builder = builder;
        for &asked in self.asked {
            let broken = |error: ort::Error| {
                let why = error.message().lines().next().unwrap_or_default().chars().take(500).collect();
                ProviderError::Broken { asked, why }
            };
            let provider = match asked {
                ExecutionProvider::Cpu => continue,
                ExecutionProvider::Cuda => ep::CUDA::default().build(),
                ExecutionProvider::Tensorrt => ep::TensorRT::default().build(),
                ExecutionProvider::Openvino => ep::OpenVINO::default().build(),
                ExecutionProvider::Xnnpack => ep::XNNPACK::default().build(),
                ExecutionProvider::Acl => ep::ACL::default().build(),
            };
            builder = builder
                .with_execution_providers([provider.error_on_failure()])
                .map_err(|error| broken(error.into()))?;
        }
        if !self.asked.contains(&ExecutionProvider::Cpu) {
            let refused = |error: ort::Error<SessionBuilder>| {
                let why = error.message().to_owned();
                ProviderError::Broken { asked: self.asked[0], why }
            };
            builder = builder.with_config_entry("session.disable_cpu_ep_fallback", "1").map_err(refused)?;
        }
        Ok(builder)
    }

    fn check(self, there: &[ExecutionProvider]) -> Result<(), ProviderError> {
        for &asked in self.asked {
            self.allow(asked)?;
            if !there.contains(&asked) {
                return Err(ProviderError::Missing { asked, there: list(there) });
            }
        }
        Ok(())
    }

    fn allow(self, asked: ExecutionProvider) -> Result<(), ProviderError> {
        // Nothing said is the processor.
        let allowed = if self.allowed.is_empty() { &[ExecutionProvider::Cpu][..] } else { self.allowed };
        if allowed.contains(&asked) {
            return Ok(());
        }
        Err(ProviderError::Forbidden { asked, allowed: list(allowed) })
    }

    /// Where the model runs, in the words of `wasi:nn`: on a GPU where nothing else may take an operator.
    pub fn targets(self) -> &'static [&'static str] {
        let gpu = !self.asked.is_empty() && self.asked.iter().all(|one| is_gpu(*one));
        if gpu { &["gpu"] } else { &["cpu"] }
    }
}

fn is_gpu(provider: ExecutionProvider) -> bool {
    matches!(provider, ExecutionProvider::Cuda | ExecutionProvider::Tensorrt)
}

fn list(providers: &[ExecutionProvider]) -> String {
    let names: Vec<String> = providers.iter().map(|provider| format!("`{provider}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Those that the library was built with, of which a manifest can name one.
fn there() -> Result<Vec<ExecutionProvider>, String> {
    let (mut names, mut count): (*mut *mut c_char, c_int) = (std::ptr::null_mut(), 0);
    // SAFETY: ONNX Runtime writes the address of a list of its own and its length, or gives an error.
    let status = unsafe { (ort::api().GetAvailableProviders)(&raw mut names, &raw mut count) };
    // SAFETY: the status came from the call above, and is taken over here.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| error.message().to_owned())?;
    let mut found = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has so many texts, each of which ends with NUL, until it is released below.
        let name = unsafe { CStr::from_ptr(*names.add(at)) };
        found.extend(
            NAMES.iter().filter(|(_, known)| name.to_bytes() == known.as_bytes()).map(|(ours, _)| *ours),
        );
    }
    // SAFETY: the list came from the call above and is not used again.
    let status = unsafe { (ort::api().ReleaseAvailableProviders)(names, count) };
    // SAFETY: the status came from the call above, and is taken over here.
    unsafe { ort::Error::result_from_status(status) }.map_err(|error| error.message().to_owned())?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExecutionProvider::{Cpu, Cuda, Openvino, Tensorrt, Xnnpack};

    #[test]
    fn what_is_asked_for_has_to_be_allowed_and_there() {
        let check = |asked: &[_], allowed: &[_], there: &[_], says: &str| {
            let checked = Providers { asked, allowed }.check(there);
            let said = checked.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(says) && said.is_empty() == says.is_empty(), "{said}");
        };
        check(&[Cuda, Cpu], &[Cpu, Cuda], &[Cuda, Cpu], "");
        check(
            &[Cuda, Cpu],
            &[Cpu],
            &[Cuda, Cpu],
            "`cuda`, and this device allows `cpu` (`--execution-providers`",
        );
        check(
            &[Cuda, Cpu],
            &[Cpu, Cuda],
            &[Xnnpack, Cpu],
            "`cuda`, and this ONNX Runtime has `xnnpack`, `cpu`",
        );
        check(&[Tensorrt, Cuda], &[Tensorrt], &[Tensorrt, Cuda], "`cuda`, and this device allows `tensorrt`");
        check(&[Cuda], &[], &[Cuda], "this device allows `cpu`");
        check(&[Cpu], &[], &[Cpu], "");
        check(&[Cpu], &[Cuda], &[Cuda, Cpu], "`cpu`, and this device allows `cuda`");
    }

    #[test]
    fn a_target_is_where_operators_run() {
        let check = |asked: &[_], expected: &[&str]| {
            assert_eq!(Providers { asked, allowed: &[] }.targets(), expected);
        };
        check(&[], &["cpu"]);
        check(&[Cpu], &["cpu"]);
        check(&[Openvino], &["cpu"]);
        check(&[Cuda], &["gpu"]);
        check(&[Tensorrt, Cuda], &["gpu"]);
        // Either may run an operator that the first does not have.
        check(&[Cuda, Cpu], &["cpu"]);
        check(&[Tensorrt, Openvino], &["cpu"]);
    }
}
