//! `selvedge`: parses, runs one command, prints the chain of an error once and ends with its code.

use std::process::ExitCode;

use clap::Parser as _;
use selvedge_cli::commands::{Cli, run};
use selvedge_cli::exit::Exit;
use selvedge_cli::failure::Failure;
use selvedge_cli::output::{self, Output, printable};
use selvedge_cli::paint::Tone;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Programs read what is wrong with a command line as they read any other error.
        Err(error) if error.use_stderr() && std::env::args_os().any(|word| word == "--json") => {
            let advice = "`selvedge --help` shows what there is";
            let failure = Failure::usage(error.to_string().trim_end(), advice);
            report(Output::new(true), &failure);
            return ExitCode::from(failure.exit().code());
        }
        Err(error) => {
            // Help and versions are output too.
            return match error.print() {
                Err(source) if source.kind() != std::io::ErrorKind::BrokenPipe && !error.use_stderr() => {
                    unwritten(Output::new(false), "standard output", source)
                }
                _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code())),
            };
        }
    };
    let out = Output::new(cli.global.json);
    let done = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let done = runtime.block_on(run(&cli));
            // A read of a pipe that never ends must not hold the program back.
            runtime.shutdown_background();
            done
        }
        Err(source) => Err(Failure::Internal { what: "cannot start", source: source.into() }),
    };
    match done {
        Ok(()) => match output::lost() {
            Some((name, source)) => unwritten(out, name, source),
            None => ExitCode::from(Exit::Done.code()),
        },
        // Whoever pressed Ctrl-C knows it.
        Err(failure @ Failure::Stopped) => ExitCode::from(failure.exit().code()),
        Err(failure) => {
            report(out, &failure);
            ExitCode::from(failure.exit().code())
        }
    }
}

/// What was asked for is done, but nobody could be told.
fn unwritten(out: Output, name: &str, source: std::io::Error) -> ExitCode {
    report(out, &Failure::File { doing: "write", path: name.into(), source });
    ExitCode::from(Exit::Unexpected.code())
}

fn report(out: Output, failure: &Failure) {
    let (exit, advice) = (failure.exit(), failure.advice());
    if out.is_json() {
        let mut error =
            serde_json::json!({"error": failure.chain(), "reason": exit.word(), "exit": exit.code()});
        if let Some(advice) = advice {
            error["advice"] = advice.into();
        }
        out.note(error.to_string());
        return;
    }
    let paint = out.paint_notes();
    out.painted_note(format!("{} {}", paint.on(Tone::Bad, "error:"), printable(&failure.chain())));
    if let Some(advice) = advice {
        out.note(format!("  help: {advice}"));
    }
}
