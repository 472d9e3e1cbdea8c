//! WASI 0.2 for guests: everything links, nothing is there unless the signed manifest asks for it.
//!
//! Without capabilities clocks stand at 1970, random numbers are the same every time, there are no
//! files, no arguments and no variables. The network does not even link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_package::manifest::Capability;
use wasmtime::component::{HasData, Linker, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, random};
use wasmtime_wasi::random::{Deterministic, WasiRandom};
use wasmtime_wasi::{FsPerms, HostMonotonicClock, HostWallClock, WasiCtx, WasiView as _};
use wasmtime_wasi_io::bindings::wasi::io;

use super::output::{Lines, Stream};
use super::state::State;
use crate::runtime::package::Shared;

struct Table;

impl HasData for Table {
    type Data<'a> = &'a mut ResourceTable;
}

/// Links WASI 0.2 without the network.
pub fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    io::error::add_to_linker::<_, Table>(linker, |state| state.ctx().table)?;
    io::poll::add_to_linker::<_, Table>(linker, |state| state.ctx().table)?;
    io::streams::add_to_linker::<_, Table>(linker, |state| state.ctx().table)?;
    clocks::wall_clock::add_to_linker::<_, WasiClocks>(linker, State::clocks)?;
    clocks::monotonic_clock::add_to_linker::<_, WasiClocks>(linker, State::clocks)?;
    random::random::add_to_linker::<_, WasiRandom>(linker, |state| state.ctx().ctx.random())?;
    random::insecure::add_to_linker::<_, WasiRandom>(linker, |state| state.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<_, WasiRandom>(linker, |state| state.ctx().ctx.random())?;
    filesystem::preopens::add_to_linker::<_, WasiFilesystem>(linker, State::filesystem)?;
    filesystem::types::add_to_linker::<_, WasiFilesystem>(linker, State::filesystem)?;
    cli::exit::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::environment::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::stdin::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::stdout::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::stderr::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::terminal_input::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::terminal_output::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::terminal_stdin::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::terminal_stdout::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    cli::terminal_stderr::add_to_linker::<_, WasiCli>(linker, State::cli)?;
    Ok(())
}

/// The surroundings of one instance.
pub fn context(shared: &Shared, lines: &Arc<Mutex<Lines>>) -> wasmtime::Result<WasiCtx> {
    let granted = |capability| shared.capabilities.contains(&capability);
    let mut builder = WasiCtx::builder();
    builder
        // Where it computes, and not on yet another thread for each call, but for its streams: see `Loaded::is_quick`.
        .allow_blocking_current_thread(true)
        .stdout(Stream(lines.clone()))
        .stderr(Stream(lines.clone()))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .max_random_size(1 << 20);
    if !granted(Capability::Clocks) {
        builder.wall_clock(Frozen).monotonic_clock(Frozen);
    }
    if !granted(Capability::Random) {
        builder
            .secure_random(Deterministic::new(SEED.to_vec()))
            .insecure_random(Deterministic::new(SEED.to_vec()))
            .insecure_random_seed(u128::from_le_bytes(SEED));
    }
    if granted(Capability::PackageFiles) {
        builder.preopened_dir(&shared.directory, "/package", FsPerms::ReadOnly)?;
    }
    if granted(Capability::Environment) {
        for (key, value) in &shared.settings {
            builder.env(key, value);
        }
    }
    Ok(builder.build())
}

/// What random numbers are made of for a module that did not ask for any.
const SEED: [u8; 16] = *b"selvedge random!";

/// A clock that stands still: at 1970, or at the start of time.
struct Frozen;

impl HostWallClock for Frozen {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for Frozen {
    fn resolution(&self) -> u64 {
        1_000_000_000
    }

    fn now(&self) -> u64 {
        0
    }
}
