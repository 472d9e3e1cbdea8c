//! The commands, a module each, and the table from the parsed command line to them.

pub mod ask;
pub mod completions;
pub mod deploy;
pub mod deployments;
pub mod explain;
pub mod export;
pub mod facts;
pub mod import;
pub mod keys;
pub mod logs;
pub mod names;
pub mod package;
pub mod packages;
pub mod push;
pub mod release;
pub mod rollback;
pub mod status;
pub mod target;
pub mod targets;
pub mod trust;
pub mod undeploy;
pub mod up;
pub mod verify;
pub mod watch;

use clap::{Parser, Subcommand};

use crate::client::Registry;
use crate::context::{Context, Global, process_env};
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Ending;

/// Package machine-learning models, push them to devices, watch them and ask them.
#[derive(Debug, Parser)]
#[command(name = "selvedge", version, arg_required_else_help = true)]
#[command(after_help = "A first model, from nothing:
  selvedge up                                        (in a terminal of its own)
  selvedge package model.onnx --out model.pkg
  selvedge release model.pkg --keys KEYS             (`selvedge up` says where they are)
  selvedge deploy model --target edge-1 --wait
  selvedge ask model --input '{\"x\": [[1, 2]]}'

Every command has examples: `selvedge COMMAND -h`. What a shell needs to complete names of commands
and options: `selvedge completions bash`.

Exit codes: 0 done, 1 unexpected, 2 usage, 3 not found, 4 refused, 5 conflict, 6 unreachable,\n7 timed out, 8 unauthorised, 9 untrusted, 130 interrupted (docs/exit-codes.md).")]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start broker, registry, agent and host on this machine, until Ctrl-C
    Up(up::Args),
    /// Make and show the keys that sign releases and assignments
    #[command(subcommand)]
    Keys(keys::Command),
    /// Roots, key rotation, signatures of several people
    #[command(subcommand)]
    Trust(trust::Command),
    /// Make a package from an ONNX file, or from a directory with selvedge.toml
    Package(package::Args),
    /// Sign a package and send it to the registry
    Release(release::Args),
    /// Put packages and what vouches for them into one file, for a USB stick or other tools
    Export(export::Args),
    /// Make a package directory of such a file, or of an OCI image layout
    Import(import::Args),
    /// Say what a device would say of a file: keys, dates, and what it would refuse
    Verify(verify::Args),
    /// Assign a release to a target, or to all that match a selector
    Deploy(deploy::Args),
    /// End deployments; what nothing else assigns is uninstalled
    Undeploy(undeploy::Args),
    /// Go back to an earlier release
    Rollback(rollback::Args),
    /// List deployments, or show one with its targets
    Deployments(deployments::Args),
    /// Watch how deployments go, a bar for each target
    Watch(watch::Args),
    /// Say why a target runs what it runs, and what lost
    Explain(explain::Args),
    /// List targets, or show one
    Targets(targets::Args),
    /// Enrol, label and remove targets
    #[command(subcommand)]
    Target(target::Command),
    /// List what is released
    Packages(packages::Args),
    /// Show what runs where; with --wait-for, wait until it does
    Status(status::Args),
    /// Show a target's labels and facts: what selectors go by
    Facts(facts::Args),
    /// Show the newest lines of a device's log
    Logs(logs::Args),
    /// Ask a model, over HTTP or through the broker
    Ask(ask::Args),
    /// Serve a package to a device through a broker, without a registry
    Push(push::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Print names for a shell's completions
    #[command(hide = true)]
    Names(names::Args),
}

/// What a command needs from outside.
pub struct Surroundings<'a> {
    /// Options that every command takes.
    pub global: &'a Global,
    /// Where results go.
    pub out: Output,
}

impl Surroundings<'_> {
    /// The registry that is meant.
    pub fn registry(&self) -> Result<Registry, Failure> {
        Registry::new(Context::discover(self.global, &process_env)?)
    }
}

/// Does what the command line says. Every command but `up` is dropped where it is by Ctrl-C; what
/// it made so far and did not finish is removed.
pub async fn run(cli: &Cli) -> Result<(), Failure> {
    let around = Surroundings { global: &cli.global, out: Output::new(cli.global.json) };
    let mut ending = Ending::watch()?;
    if let Command::Up(args) = &cli.command {
        return up::run(&around, args, &mut ending).await;
    }
    let work = async {
        match &cli.command {
            Command::Up(_) => Ok(()),
            Command::Keys(command) => keys::run(&around, command).await,
            Command::Trust(command) => trust::run(&around, command).await,
            Command::Package(args) => package::run(&around, args).await,
            Command::Release(args) => release::run(&around, args).await,
            Command::Export(args) => export::run(&around, args).await,
            Command::Import(args) => import::run(&around, args).await,
            Command::Verify(args) => verify::run(&around, args).await,
            Command::Deploy(args) => deploy::run(&around, args).await,
            Command::Targets(args) => targets::run(&around, args).await,
            Command::Target(command) => target::run(&around, command).await,
            Command::Packages(args) => packages::run(&around, args).await,
            Command::Status(args) => status::run(&around, args).await,
            Command::Ask(args) => ask::run(&around, args).await,
            Command::Undeploy(args) => undeploy::run(&around, args).await,
            Command::Rollback(args) => rollback::run(&around, args).await,
            Command::Deployments(args) => deployments::run(&around, args).await,
            Command::Watch(args) => watch::run(&around, args).await,
            Command::Explain(args) => explain::run(&around, args).await,
            Command::Facts(args) => facts::run(&around, args).await,
            Command::Logs(args) => logs::run(&around, args).await,
            Command::Push(args) => push::run(&around, args).await,
            Command::Completions(args) => completions::run(&around, args),
            Command::Names(args) => names::run(&around, args).await,
        }
    };
    tokio::select! {
        done = work => done,
        () = ending.came() => Err(match &cli.command {
            // Only looked on: nothing was broken off.
            Command::Watch(_) => Failure::Stopped,
            Command::Logs(args) if args.follow => Failure::Stopped,
            Command::Deploy(deploy::Args { wait: true, .. })
            | Command::Rollback(rollback::Args { wait: true, .. }) => {
                around.out.note("waiting no longer; what is assigned goes on, and `selvedge watch` shows how");
                Failure::Interrupted
            }
            _ => Failure::Interrupted,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_ends_with_its_row() {
        for line in [
            &["selvedge", "nonsense"][..],
            &["selvedge", "deploy"],
            &["selvedge", "deploy", "A!", "--target", "t"],
            &["selvedge", "targets", "../x"],
        ] {
            let error = Cli::try_parse_from(line).unwrap_err();
            assert_eq!(error.exit_code(), i32::from(crate::exit::Exit::Usage.code()), "{line:?}");
        }
    }
}
