//! How many files the modules of this process may hold open together.
//!
//! A file of a module is a descriptor of the host, of which there is a bounded number: without any left nobody
//! could connect. So a package that may open files takes what all of its instances may hold when it is opened, out
//! of a quarter of what the process has, and is refused where that is not there.

use std::sync::{Arc, OnceLock};

use selvedge_package::manifest::{Capability, Module};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{Limits, instances};

/// Descriptors where the system does not say how many there may be.
const UNKNOWN: u64 = 1 << 16;

/// What modules may hold, at most.
const MOST: u64 = 1 << 14;

/// The files of a package, free again when this is dropped.
#[derive(Debug)]
pub struct Files {
    _permit: OwnedSemaphorePermit,
}

impl Files {
    /// Those of all instances of a package, out of those of this process. `Ok(None)`: it may open none.
    pub fn of(module: &Module) -> Result<Option<Self>, String> {
        static ALL: OnceLock<(Arc<Semaphore>, usize)> = OnceLock::new();
        let (all, most) = ALL.get_or_init(|| {
            let current = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let most = (current.unwrap_or(UNKNOWN) / 4).min(MOST) as usize;
            (Arc::new(Semaphore::new(most)), most)
        });
        Self::out_of(all, *most, module)
    }

    fn out_of(all: &Arc<Semaphore>, most: usize, module: &Module) -> Result<Option<Self>, String> {
        if !module.capabilities.contains(&Capability::PackageFiles) {
            return Ok(None);
        }
        let wanted = Limits::of(module).wasi_handles.saturating_mul(instances(module));
        let permit = u32::try_from(wanted).ok().and_then(|wanted| {
            // None at all where there are not as many.
            Arc::clone(all).try_acquire_many_owned(wanted).ok()
        });
        let left = all.available_permits();
        permit.map(|permit| Some(Self { _permit: permit })).ok_or_else(|| {
            format!(
                "its instances may hold {wanted} files together (`capabilities` has `package-files`, and \
                 `concurrency` and `sequences` make {} instances); all modules of this host may hold {most}, and \
                 {left} of those are left: lower `concurrency` or `sequences.most`, unload a package, or raise the \
                 host's limit of descriptors",
                instances(module)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_files_until_there_are_none_and_give_them_back() {
        let module = |capabilities: &[Capability], concurrency| Module {
            capabilities: capabilities.to_vec(),
            concurrency,
            ..Module::default()
        };
        let all = Arc::new(Semaphore::new(200));
        let of = |module: &Module| Files::out_of(&all, 200, module);
        let (opens, none) = (module(&[Capability::PackageFiles], 2), module(&[Capability::Clocks], 256));
        assert!(of(&none).unwrap().is_none());
        let one = of(&opens).unwrap();
        assert_eq!((one.is_some(), all.available_permits()), (true, 72));
        let refused = of(&opens).unwrap_err();
        assert!(
            refused.contains("128 files together") && refused.contains("72 of those are left"),
            "{refused}"
        );
        assert!(of(&none).unwrap().is_none());
        drop(one);
        assert!(of(&opens).unwrap().is_some());
        // An instance that is a sequence's has its files beside those that answer.
        let sequences = serde_json::from_value(serde_json::json!({"most": 1})).unwrap();
        let keeps = Module { sequences: Some(sequences), ..module(&[Capability::PackageFiles], 1) };
        let kept = of(&keeps).unwrap();
        assert_eq!((kept.is_some(), all.available_permits()), (true, 72));
    }
}
