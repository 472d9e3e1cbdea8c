//! wasmtime, set up once for the process.
//!
//! One engine serves every package. Memory is reserved on demand, [`RESERVATION`] of addresses per
//! memory and not the 4 GiB that wasmtime would take, so that a Raspberry Pi's address space holds
//! thousands of instances; a memory that outgrows it moves. Epochs end guests, so every tick of
//! [`ticker`] lets the guest yield or stops it.

pub mod cache;
pub mod collect;
pub mod ticker;
pub mod watch;

use wasmtime::component::Component;
use wasmtime::{Config, Engine};

use self::cache::Cache;

/// Address space reserved for each linear memory: the manifest's default limit.
const RESERVATION: u64 = 64 << 20;
/// Stack of a guest.
const GUEST_STACK: usize = 512 << 10;
/// Stack on which guest and host functions called by it run.
const FIBER_STACK: usize = 2 << 20;

/// An engine for every component of the process.
pub fn new_engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .max_wasm_stack(GUEST_STACK)
        .async_stack_size(FIBER_STACK)
        .memory_reservation(RESERVATION)
        .memory_reservation_for_growth(RESERVATION / 4)
        .memory_guard_size(64 << 10)
        .guard_before_linear_memory(false)
        .memory_may_move(true)
        .wasm_memory64(false)
        .wasm_multi_memory(true)
        .wasm_relaxed_simd(false);
    Engine::new(&config)
}

/// What a component's bytes are not.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// Not even WebAssembly.
    #[error("it is not WebAssembly: it begins with {0:02x?}")]
    NotWasm(Vec<u8>),
    /// A core module.
    #[error(
        "it is a core module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// wasmtime refused it.
    #[error("wasmtime refuses it: {0:#}")]
    Invalid(wasmtime::Error),
}

/// Compiles `bytes`, or takes the compiled module out of `cache`.
pub fn compile(engine: &Engine, cache: Option<&Cache>, bytes: &[u8]) -> Result<Component, ComponentError> {
    match bytes.first_chunk::<8>() {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => return Err(ComponentError::CoreModule),
        Some([0, b'a', b's', b'm', ..]) => {}
        _ => return Err(ComponentError::NotWasm(bytes.iter().take(8).copied().collect())),
    }
    if let Some(component) = cache.and_then(|cache| cache.get(engine, bytes)) {
        return Ok(component);
    }
    let component = Component::from_binary(engine, bytes).map_err(ComponentError::Invalid)?;
    if let Some(cache) = cache {
        cache.put(engine, bytes, &component);
    }
    Ok(component)
}
