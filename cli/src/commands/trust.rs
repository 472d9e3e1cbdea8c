//! `selvedge trust`: which keys speak for what. Roots of version 1, the next ones, signatures of
//! several people on machines of their own, and handing in what is signed.

mod check;
mod init;
mod list;
mod plan;
mod publish;
mod renew;
mod rotate;
mod show;
mod sign;

pub use publish::texts;

use crate::commands::Surroundings;
use crate::failure::Failure;

/// Roots, key rotation, signatures of several people.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  selvedge trust init keys --root-key a.pub --root-key b.pub --root-key c.pub --targets-key a.pub
  selvedge trust sign keys/roots --key a.pem         (each person, with an own key)
  selvedge trust check keys/roots
  selvedge trust rotate --repository image --root keys/roots/image.root.json \\
      --remove-key root=KEYID --add-key root=d.pub --out next.json
  selvedge trust sign next.json --root keys/roots/image.root.json --key a.pem
  selvedge trust publish next.json --keys keys
  selvedge trust renew --keys keys

docs/keys.md has the whole way, step by step.")]
pub enum Command {
    /// Make the roots of a new registry from people's public keys, and the registry's own keys
    Init(init::Args),
    /// Make the next root: other keys, another threshold, another end
    Rotate(rotate::Args),
    /// Show what a file says and add your signature
    Sign(sign::Args),
    /// Say who has signed a file, who is missing, and whether it would be accepted
    Check(check::Args),
    /// Hand in roots, or lists of releases that were signed again
    Publish(publish::Args),
    /// Show the roots and lists of a registry, or one file
    Show(show::Args),
    /// Sign the lists of releases again, before they expire or for other keys
    Renew(renew::Args),
}

/// Runs one of them.
pub async fn run(around: &Surroundings<'_>, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Init(args) => init::run(around, args),
        Command::Rotate(args) => rotate::run(around, args),
        Command::Sign(args) => sign::run(around, args),
        Command::Check(args) => check::run(around, args),
        Command::Publish(args) => publish::run(around, args).await,
        Command::Show(args) => show::run(around, args).await,
        Command::Renew(args) => renew::run(around, args).await,
    }
}
