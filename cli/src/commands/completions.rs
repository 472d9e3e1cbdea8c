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
  source <(selvedge completions bash)                (this shell only)

In bash names of targets, packages and deployments are completed too, from the registry that
`selvedge` talks to without options.")]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Names of targets, packages and deployments, asked from the registry when they are completed. The
/// generated script knows commands and options only.
const BASH_NAMES: &str = r#"
_selvedge_names() {
    local kind cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
    case "$prev" in
        --target | targets | status | facts | logs | explain | label | rm) kind=targets ;;
        packages | deploy | ask | --wait-for) kind=packages ;;
        deployments | undeploy | rollback | watch | --deployment) kind=deployed ;;
    esac
    if [[ -n "$kind" && "$cur" != -* ]]; then
        COMPREPLY=($(compgen -W "$("$1" names "$kind" 2>/dev/null)" -- "$cur"))
    else
        _selvedge "$@"
    fi
}
complete -F _selvedge_names -o bashdefault -o default selvedge
"#;

/// Prints them.
pub fn run(_: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "selvedge", &mut script);
    if args.shell == Shell::Bash {
        script.extend_from_slice(BASH_NAMES.as_bytes());
    }
    put_raw(&script);
    Ok(())
}
