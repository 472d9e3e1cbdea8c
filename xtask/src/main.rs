//! `cargo xtask`: set-up, guest modules, demo, tests, benches. It fetches nothing that is not pinned
//! and writes nothing outside of `target/` but the system packages that a missing tool chain needs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod arm64;
mod attacks;
mod bench;
mod beside;
mod children;
mod clock;
mod counts;
mod demo;
mod examples;
mod fuzz;
mod guests;
mod paths;
mod run;
mod setup;
mod test;
mod tidy;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Set-up, demo, tests, benches")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch what the programs and tests need into target/setup (pinned by version and sha256)
    Setup,
    /// Build the guest modules into target/modules
    Modules,
    /// Package, sign, push and ask the example on this machine, with every station real
    Demo {
        /// Leave everything running afterwards and say how to talk to it
        #[arg(long)]
        keep: bool,
        /// Take the programs as they were built
        #[arg(long, hide = true)]
        no_build: bool,
        /// Where the demo writes
        #[arg(long, hide = true)]
        folder: Option<PathBuf>,
    },
    /// Install what the tests need and run all of them, or a part: `stories`, `attacks`,
    /// `hostile`, `strangers`, `links`, `power-cut`, `swap`, `onnx-backend`, `memory-kill` (only by name: it needs root and a
    /// control group)
    Test {
        /// The part, and arguments for `cargo nextest run`
        #[arg(value_name = "PART | ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        nextest: Vec<String>,
    },
    /// Check the rules that neither the compiler nor clippy knows
    Tidy,
    /// Run a benchmark: tests/src/bin/bench_NAME.rs, in release
    Bench {
        /// Which one, such as `overhead`
        name: String,
        /// Arguments for it
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzz what reads bytes from outside: a target of tests/fuzz (`archive`, `bundle`, `chunk_index`,
    /// `envelope`, `manifest`, and of the host `oip_json`, `oip_binary`, `oip_grpc`, `control_socket`,
    /// `onnx_protobuf`), or `all`
    Fuzz {
        /// Which one, such as `bundle`
        name: String,
        /// For how long each
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        seconds: u64,
    },
    /// Cross-build agent and host for aarch64, answer the example under emulation, and try hostile guests and models and
    /// how the host shuts itself in on an emulated machine with a kernel of its own
    Arm64,
}

fn main() -> ExitCode {
    children::end_them_on_signals();
    let result = match Options::parse().command {
        Command::Setup => setup::all(),
        Command::Modules => guests::build().map(drop),
        Command::Demo { keep, no_build, folder } => {
            demo::run(demo::Afterwards::from_flag(keep), demo::Programs::from_flag(no_build), folder)
        }
        Command::Test { nextest } => test::run(&nextest),
        Command::Tidy => tidy::run(),
        Command::Bench { name, arguments } => bench::run(&name, &arguments),
        Command::Fuzz { name, seconds } => fuzz::run(&name, seconds),
        Command::Arm64 => arm64::run(),
    };
    match result {
        _ if children::interrupted() => {
            run::say("interrupted");
            ExitCode::from(130)
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
