//! Completions, examples and near misses of the command line itself; no registry is needed.

use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use selvedge_cli::commands::Cli;
use serde_json::json;

use crate::mock::{Mock, check, row};

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
fn bash_completes_names_that_the_registry_knows() {
    let mut mock = Mock::start();
    mock.says("GET", "/deployments", json!({"items": [row("3f9a000000000001", Some("edge-1"), None)]}));
    let script = r#"eval "$("$0" completions bash)"
        complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _selvedge_names "$0" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            echo "${COMPREPLY[*]}"; }
        complete_words "$0" logs ed
        complete_words "$0" deploy f
        complete_words "$0" deploy scale --target edge-2
        complete_words "$0" undeploy ''
        complete_words "$0" rollba
        complete_words "$0" logs --sou"#;
    let program = mock.selvedge(&[]);
    let run = |mock: &Mock| {
        let mut bash = mock.selvedge(&[]);
        let environment: Vec<_> =
            bash.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        bash = Command::new("bash");
        bash.arg("-c").arg(script).arg(program.get_program()).env_clear().envs(environment);
        String::from_utf8(bash.stdin(Stdio::null()).output().unwrap().stdout).unwrap()
    };
    let said = run(&mock);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        ["edge-1 edge-2", "file-type", "edge-2", "3f9a000000000001 file-type", "rollback", "--source"]
    );
    // Without a registry there are none, and nothing else is said.
    mock.stop();
    assert_eq!(run(&mock).lines().collect::<Vec<_>>(), ["", "", "", "", "rollback", "--source"]);
}

#[test]
fn help_has_examples() {
    let mock = Mock::start();
    let commands = Cli::command();
    let seen = commands.get_subcommands().filter(|command| !command.is_hide_set());
    for command in seen.map(clap::Command::get_name) {
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
