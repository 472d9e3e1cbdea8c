//! Completions, examples and near misses of the command line itself; no registry is needed.

use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use selvedge_cli::commands::Cli;

use crate::mock::{Mock, check};

#[test]
fn every_shell_gets_completions() {
    let mock = Mock::start();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script =
            mock.check(&["completions", shell], 0, &["selvedge", "undeploy", "explain", "completions"]);
        assert!(script.len() > 1000, "{shell}");
    }
    mock.check(&["completions", "cmd.exe"], 2, &["bash"]);
    // What bash is given, bash can read.
    let script = mock.selvedge(&["completions", "bash"]).output().unwrap();
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), script.stdout).unwrap();
    let bash = Command::new("bash").arg("-n").arg(path.path()).stdin(Stdio::null()).output().unwrap();
    assert!(bash.status.success(), "{}", String::from_utf8_lossy(&bash.stderr));
}

#[test]
fn help_has_examples() {
    let mock = Mock::start();
    let commands = Cli::command();
    for command in commands.get_subcommands().map(clap::Command::get_name) {
        mock.check(&[command, "-h"], 0, &["Examples:", &format!("selvedge {command}")]);
    }
}

#[test]
fn misspelt_commands_and_files_name_the_nearest() {
    let mock = Mock::start();
    for (line, says) in [
        (&["undploy", "x"][..], "'undeploy'"),
        (&["rolback", "x"], "'rollback'"),
        (&["watch", "--timout", "1"], "'--timeout'"),
    ] {
        mock.check(line, 2, &[says]);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.onnx"), "").unwrap();
    let output = mock.selvedge(&["package", "modle.onnx"]).current_dir(dir.path()).output().unwrap();
    check(&output, 3, &["did you mean `model.onnx`"]);
    let output =
        mock.selvedge(&["release", "modell.onnx", "--keys", "k"]).current_dir(dir.path()).output().unwrap();
    check(&output, 3, &["did you mean `model.onnx`"]);
}
