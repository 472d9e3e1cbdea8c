//! `selvedge completions`: what a shell needs to complete the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::commands::{Cli, Surroundings};
use crate::failure::Failure;
use crate::output::put_raw;

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge completions bash > ~/.local/share/bash-completion/completions/selvedge
  selvedge completions zsh > ~/.zfunc/_selvedge      (with ~/.zfunc in fpath)
  selvedge completions fish > ~/.config/fish/completions/selvedge.fish
  source <(selvedge completions bash)                (this shell only)")]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Prints them.
pub fn run(_: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "selvedge", &mut script);
    put_raw(&script);
    Ok(())
}
