//! What a guest may use, each field named after the attack that it stops.
//!
//! Part comes from the signed manifest, part is fixed for every package. The memory of ONNX Runtime
//! itself cannot be had per package in service; the throw-away probe runs under limits of the system.

use selvedge_package::manifest::Module;
use wasmtime::ResourceLimiter;

/// Limits of one instance and of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory, all memories together: a memory balloon.
    pub memory: usize,
    /// Elements of all tables together: a table balloon.
    pub table_elements: usize,
    /// Core instances inside of one component: a component of thousands.
    pub instances: usize,
    /// Memories and tables inside of one component.
    pub memories: usize,
    /// Open handles of tensors and sessions: millions of handles.
    pub handles: usize,
    /// Open handles of WASI: files are descriptors of the host, and without any nobody could connect.
    pub wasi_handles: usize,
    /// Bytes of a request's inputs, and of its outputs: a huge tensor, a huge answer.
    pub tensors: usize,
    /// Bytes of all tensors that an instance holds at once, inputs and outputs included.
    pub held_tensors: usize,
    /// Tensors of one answer.
    pub outputs: usize,
    /// Bytes of log lines of one request: a log flood.
    pub log_bytes: usize,
    /// Log lines of one request.
    pub log_lines: usize,
    /// Bytes of one log line, and of an error's message.
    pub text: usize,
}

impl Limits {
    /// The limits of a package.
    pub fn of(module: &Module) -> Self {
        let mib = |count: u32| usize::try_from(u64::from(count) << 20).unwrap_or(usize::MAX);
        let tensors = mib(module.tensor_mib);
        Self {
            memory: mib(module.memory_mib),
            table_elements: 100_000,
            instances: 64,
            memories: 32,
            handles: 10_000,
            wasi_handles: (WASI_HANDLES / instances(module)).clamp(16, 64),
            tensors,
            held_tensors: tensors.saturating_mul(2),
            outputs: 1000,
            log_bytes: 64 << 10,
            log_lines: 200,
            text: 4 << 10,
        }
    }
}

/// Instances that a package may have at once: those that answer, and one for each sequence.
pub fn instances(module: &Module) -> usize {
    let sequences = module.sequences.as_ref().map_or(0, |sequences| sequences.most);
    module.concurrency.max(1).saturating_add(sequences) as usize
}

/// Handles of WASI of all instances of a package together, where each has at least 16.
const WASI_HANDLES: usize = 1024;
/// Bytes of a component's file: a compilation without end.
pub const COMPONENT_BYTES: u64 = 64 << 20;
/// Bytes of a model's ONNX file, external data not counted: what protobuf allows.
pub const MODEL_BYTES: u64 = 2 << 30;
/// Bytes of a file that an acceptance case is or names.
pub const CASE_FILE_BYTES: u64 = 64 << 20;

/// Enforces memory and tables while a guest runs, and remembers what it refused.
#[derive(Debug)]
pub struct Limiter {
    limits: Limits,
    memory: usize,
    tables: usize,
    refused: Option<String>,
}

impl Limiter {
    /// A limiter for one store.
    pub fn new(limits: Limits) -> Self {
        Self { limits, memory: 0, tables: 0, refused: None }
    }

    /// What was refused since the last call, for people.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory.saturating_add(desired.saturating_sub(current));
        if total > self.limits.memory {
            self.refused = Some(format!(
                "the module asked for {} MiB of memory and may have {} MiB",
                total.div_ceil(1 << 20),
                self.limits.memory >> 20
            ));
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.tables.saturating_add(desired.saturating_sub(current));
        if total > self.limits.table_elements {
            self.refused = Some(format!(
                "the module asked for tables of {total} elements and may have {}",
                self.limits.table_elements
            ));
            return Ok(false);
        }
        self.tables = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.limits.instances
    }

    fn tables(&self) -> usize {
        self.limits.memories
    }

    fn memories(&self) -> usize {
        self.limits.memories
    }
}
