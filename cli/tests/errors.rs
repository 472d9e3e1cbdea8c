//! The command as a shell sees it: exit codes, errors for people and for programs, closed pipes.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use selvedge_cli::supervisor::record::Record;

/// `selvedge` in an empty environment, with its default data below `home`.
fn selvedge(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.env_clear().env("HOME", home).stdin(Stdio::null()).current_dir(home);
    command
}

fn check(output: &Output, code: i32, says: &[&str]) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for text in says {
        assert!(said.contains(text), "`{text}` is not in: {said}");
    }
    said
}

/// A port on which nobody listens.
fn nobody() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn errors_end_in_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let dead = format!("http://127.0.0.1:{}", nobody());
    std::fs::write(home.path().join("token"), "s3cret-token").unwrap();
    for (line, code, says) in [
        (&["packages"][..], 2, &["no registry is known", "selvedge up"][..]),
        (&["packages", "--registry", &dead], 8, &["no token", "--token-file"]),
        (
            &["packages", "--registry", &dead, "--token-file", "token"],
            6,
            &[&dead, "does not answer", "selvedge up"],
        ),
        (&["packages", "--registry", &dead, "--token-file", "none"], 3, &["none", "check the path"]),
        (
            &["packages", "--registry", "http://10.0.0.1:1", "--token-file", "token"],
            2,
            &["plain text", "tunnel"],
        ),
        (&["package", "none.onnx"], 3, &["none.onnx"]),
        (&["package", "token"], 2, &["neither an .onnx file nor a directory"]),
        (&["package", "."], 3, &["selvedge.toml"]),
        (&["release", "none.pkg", "--keys", "none"], 3, &["there is no none.pkg", "selvedge package"]),
        (&["keys", "show", "none"], 3, &["selvedge keys init"]),
        (&["ask", "a", "--target-url", &dead, "--input", "{}"], 6, &["--target-url"]),
        (&["ask", "a", "--target-url", &dead, "--input", "{"], 4, &["not JSON"]),
        (&["ask", "a", "--input", "{}"], 2, &["--target-url"]),
        (&["up", "--programs", "none", "--data", "up"], 3, &["selvedge-registry", "side by side"]),
        (&["depploy"], 2, &["deploy"]),
    ] {
        let output = selvedge(home.path()).args(line).output().unwrap();
        let said = check(&output, code, says);
        assert!(!said.contains("s3cret"), "{said}");
        assert!(said.contains("help: ") || code == 2, "no advice in: {said}");
    }
}

#[test]
fn programs_get_errors_as_one_line_of_json() {
    let home = tempfile::tempdir().unwrap();
    let output = selvedge(home.path()).args(["packages", "--json"]).output().unwrap();
    let said = check(&output, 2, &[]);
    let error: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!((&error["reason"], &error["exit"]), (&"usage".into(), &2.into()));
    assert!(error["advice"].as_str().unwrap().contains("selvedge up"));
    assert!(output.stdout.is_empty());
    let output = selvedge(home.path()).args(["--json", "depploy"]).output().unwrap();
    let error: serde_json::Value = serde_json::from_str(check(&output, 2, &[]).trim()).unwrap();
    assert_eq!((&error["reason"], &error["exit"]), (&"usage".into(), &2.into()));
}

#[test]
fn a_stopped_up_is_said_to_be_unreachable() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join(".local/share/selvedge/up");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("token"), "x").unwrap();
    let registry = format!("http://127.0.0.1:{}", nobody());
    Record { registry: registry.clone(), token_file: data.join("token"), ..Record::default() }
        .write(&data)
        .unwrap();
    let output = selvedge(home.path()).arg("status").output().unwrap();
    check(&output, 6, &[&registry, "selvedge up"]);
}

#[test]
fn a_registry_that_is_away_is_told_once() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "x").unwrap();
    let dead = format!("http://127.0.0.1:{}", nobody());
    let line = ["status", "edge-1", "--wait-for", "a", "--timeout", "2", "--token-file", "token"];
    let output = selvedge(home.path()).args(line).args(["--registry", &dead]).output().unwrap();
    // What was waited for did not happen in time; why, is said beside it.
    let said = check(&output, 7, &[&dead, "waited 2 s in vain"]);
    assert_eq!(said.matches("asking again").count(), 1, "{said}");
}

#[test]
fn a_damaged_record_may_be_deleted() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join(".local/share/selvedge/up");
    std::fs::create_dir_all(&data).unwrap();
    for bad in [&b"{"[..], b"{\"format\":9}", b"\xff", &[b' '; 70_000]] {
        std::fs::write(data.join("up.json"), bad).unwrap();
        let output = selvedge(home.path()).arg("status").output().unwrap();
        check(&output, 4, &["up.json", "may be deleted"]);
    }
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let home = tempfile::tempdir().unwrap();
    for (line, code) in
        [(&["keys", "init", "k"][..], 0), (&["keys", "show", "k"], 0), (&["packages"], 2), (&["--help"], 0)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = selvedge(home.path());
        command.args(line).stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(code), "{line:?}");
    }
}

#[test]
fn what_cannot_be_written_is_no_success() {
    let home = tempfile::tempdir().unwrap();
    check(&selvedge(home.path()).args(["keys", "init", "k"]).output().unwrap(), 0, &[]);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for line in [&["keys", "show", "k"][..], &["keys", "show", "k", "--json"], &["--help"], &["--version"]] {
        let output = selvedge(home.path()).args(line).stdout(full()).output().unwrap();
        check(&output, 1, &["cannot write standard output", "disk is full"]);
    }
    let output = selvedge(home.path()).args(["packages"]).stdout(full()).stderr(full()).output().unwrap();
    check(&output, 2, &[]);
}

#[test]
fn keys_are_private_and_never_printed() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let output = selvedge(home.path()).args(["keys", "init", "k", "--json"]).output().unwrap();
    check(&output, 0, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["keys"].as_array().unwrap().len(), 8);
    let key = home.path().join("k/offline/image-targets.pem");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&key).unwrap();
    let line = secret.lines().find(|line| !line.starts_with('-')).unwrap();
    assert!(!text.contains(line));
    let again = selvedge(home.path()).args(["keys", "init", "k"]).output().unwrap();
    check(&again, 5, &["already", "another directory"]);
}
