//! Wrong use of keys and roots, without any registry: each ends with its row of the exit table and says
//! what to do. Nothing is written then.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(dir: &Path, line: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.env_clear().env("HOME", dir).stdin(Stdio::null()).current_dir(dir).args(line);
    command.output().unwrap()
}

fn done(dir: &Path, line: &[&str]) -> serde_json::Value {
    let output = run(dir, &[line, &["--json"]].concat());
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(dir: &Path, line: &[&str], code: i32, says: &str) {
    let output = run(dir, line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line:?}: {said}");
    assert!(said.contains(says), "{line:?}: `{says}` is not in: {said}");
}

const IMAGE: &str = "keys/roots/image.root.json";
const DIRECTOR: &str = "keys/roots/director.root.json";

#[test]
fn a_proposal_is_made_from_a_good_root_and_for_keys_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["keys", "init", "keys"]);
    done(dir, &["keys", "new", "a.pem"]);
    let rotate = |more: &[&str], code, says: &str| {
        let line = ["trust", "rotate", "--repository", "image", "--root", IMAGE, "--out", "next.json"];
        refused(dir, &[&line[..], more].concat(), code, says);
        assert!(!dir.join("next.json").exists());
    };
    rotate(&["--add-key", "root=none.pub"], 3, "none.pub");
    rotate(&["--add-key", "root=a.pem"], 9, "PRIVATE");
    rotate(&["--add-key", "mirrors=a.pub"], 2, "no role `mirrors`");
    rotate(&["--add-key", "a.pub"], 2, "root=");
    rotate(&["--remove-key", "root=0000000000"], 3, "begins with");
    rotate(&["--remove-key", "root="], 3, "at least 8 digits");
    rotate(&["--threshold", "root=2"], 2, "could never sign");
    rotate(&["--threshold", "root=0"], 2, "could never sign");
    rotate(&["--expires", "0d"], 2, "730d");
    refused(
        dir,
        &["trust", "rotate", "--repository", "director", "--root", IMAGE, "--out", "next.json"],
        2,
        "a root of the image repository",
    );
    let root = std::fs::read_to_string(dir.join(IMAGE)).unwrap();
    std::fs::write(dir.join("changed.json"), root.replace("\"version\":1", "\"version\":2")).unwrap();
    refused(
        dir,
        &["trust", "rotate", "--repository", "image", "--root", "changed.json", "--out", "next.json"],
        9,
        "not signed by enough",
    );
    std::fs::write(dir.join("next.json"), "x").unwrap();
    let twice = ["trust", "rotate", "--repository", "image", "--root", IMAGE, "--out", "next.json"];
    refused(dir, &twice, 5, "exists already");
}

#[test]
fn nobody_signs_what_does_not_follow_or_is_not_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["keys", "init", "keys"]);
    done(dir, &["keys", "new", "a.pem"]);
    let key = "keys/offline/image-root.pem";
    let next = ["trust", "rotate", "--repository", "image", "--root", IMAGE, "--add-key", "root=a.pub"];
    done(dir, &[&next[..], &["--out", "next.json"]].concat());
    let proposal = std::fs::read(dir.join("next.json")).unwrap();
    let sign = |more: &[&str], code, says: &str| {
        refused(dir, &[&["trust", "sign", "next.json"], more].concat(), code, says);
        assert_eq!(std::fs::read(dir.join("next.json")).unwrap(), proposal);
    };
    sign(&["--key", key], 2, "which one was not said");
    sign(&["--key", "none.pem", "--root", IMAGE], 3, "none.pem");
    sign(&["--key", key, "--root", DIRECTOR], 9, "of the image repository");
    sign(&["--key", key, "--root", "next.json"], 9, "after version 2 comes version 3");
    sign(&["--key", "keys/offline/director-root.pem", "--root", IMAGE], 9, "no say");
    done(dir, &["trust", "sign", "next.json", "--key", key, "--root", IMAGE, "--dry-run"]);
    assert_eq!(std::fs::read(dir.join("next.json")).unwrap(), proposal);
    // The new key alone is not enough: the old root speaks for the next one.
    done(dir, &["trust", "sign", "next.json", "--key", "a.pem", "--root", IMAGE]);
    refused(dir, &["trust", "check", "next.json", "--against", IMAGE], 9, "too few");
    let told = done(dir, &["trust", "sign", "next.json", "--key", key, "--root", IMAGE]);
    assert_eq!(told["files"][0]["complete"], true);
    done(dir, &["trust", "check", "next.json", "--against", IMAGE]);
    refused(dir, &["trust", "check", "next.json"], 9, "--against");
    // What people do not sign.
    std::fs::write(
        dir.join("t.json"),
        r#"{"signed":{"_type":"timestamp","version":1,"expires":"2040-01-01T00:00:00Z"},"signatures":[]}"#,
    )
    .unwrap();
    refused(dir, &["trust", "sign", "t.json", "--key", key, "--root", IMAGE], 9, "only roots and lists");
    for garbage in ["", "{}", "[[["] {
        std::fs::write(dir.join("t.json"), garbage).unwrap();
        refused(dir, &["trust", "sign", "t.json", "--key", key, "--root", IMAGE], 9, "not a signed");
    }
    // Expired: a day long, and judged by a clock that is far ahead is for `verify`; here a past one.
    let old = String::from_utf8(proposal).unwrap();
    let from = old.find("\"expires\":\"").unwrap() + 11;
    let expired = format!("{}2020{}", &old[..from], &old[from + 4..]);
    std::fs::write(dir.join("old.json"), expired).unwrap();
    refused(dir, &["trust", "sign", "old.json", "--key", key, "--root", IMAGE], 9, "expired");
    refused(dir, &["trust", "check", "old.json", "--against", IMAGE], 9, "expired");
}

#[test]
fn passphrases_come_from_files_and_the_environment_and_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("pass"), "correct horse battery\n").unwrap();
    std::fs::write(dir.join("wrong"), "correct horse baterry\n").unwrap();
    std::fs::write(dir.join("short"), "1234567\n").unwrap();
    // Nobody can be asked here.
    refused(dir, &["keys", "new", "a.pem", "--encrypt"], 9, "passphrase");
    refused(dir, &["keys", "new", "a.pem", "--encrypt", "--passphrase-file", "short"], 9, "at least 8");
    refused(dir, &["keys", "new", "a.pem", "--encrypt", "--passphrase-file", "none"], 9, "none");
    assert!(!dir.join("a.pem").exists() && !dir.join("a.pub").exists());
    let made = done(dir, &["keys", "new", "a.pem", "--encrypt", "--passphrase-file", "pass"]);
    refused(dir, &["keys", "new", "a.pem"], 5, "never overwritten");
    refused(dir, &["keys", "show", "a.pem"], 9, "passphrase");
    refused(dir, &["keys", "show", "a.pem", "--passphrase-file", "wrong"], 9, "is another one");
    let shown = done(dir, &["keys", "show", "a.pem", "--passphrase-file", "pass"]);
    assert_eq!(shown["key_id"], made["key_id"]);
    assert_eq!(done(dir, &["keys", "show", "a.pub"])["key_id"], made["key_id"]);
    // A ring with encrypted offline keys: shown and used with the passphrase alone.
    done(dir, &["keys", "init", "keys", "--encrypt", "--passphrase-file", "pass"]);
    refused(dir, &["keys", "show", "keys"], 9, "passphrase");
    assert_eq!(
        done(dir, &["keys", "show", "keys", "--passphrase-file", "pass"])["keys"].as_array().unwrap().len(),
        8
    );
    for (name, code) in [("a.pub", 2), ("b.pem", 0)] {
        let output = run(dir, &["keys", "new", name]);
        assert_eq!(output.status.code(), Some(code), "{name}");
    }
}

/// Who proposes a list has no say in it; what he slips in must not get the signatures of those who have.
#[test]
fn nobody_signs_the_say_over_releases_away_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["keys", "init", "keys"]);
    std::fs::create_dir(dir.join("p")).unwrap();
    let key = ["--key", "keys/offline/image-targets.pem", "--root", IMAGE];
    let propose = |more: serde_json::Value| {
        let mut signed = serde_json::json!({
            "_type": "targets", "spec_version": "1.0.31", "version": 1, "expires": "2040-01-01T00:00:00Z", "targets": {},
        });
        signed.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let file = serde_json::json!({ "signed": signed, "signatures": [] });
        std::fs::write(dir.join("p/targets.json"), file.to_string()).unwrap();
        file.to_string()
    };
    let key_of_his = done(dir, &["keys", "new", "mine.pem"]);
    let mine = key_of_his["key_id"].as_str().unwrap();
    let delegation = serde_json::json!({ "delegations": {
        "keys": { mine: { "keytype": "ed25519", "scheme": "ed25519", "keyval": { "public": key_of_his["public_key"] } } },
        "roles": [{ "name": "mine", "keyids": [mine], "threshold": 1, "terminating": true, "paths": ["*"] }],
    }});
    let text = propose(delegation);
    refused(dir, &[&["trust", "sign", "p"], &key[..]].concat(), 9, "give away the say");
    assert_eq!(std::fs::read_to_string(dir.join("p/targets.json")).unwrap(), text, "nothing is signed");
    // An entry is shown with everything that devices decide by.
    propose(serde_json::json!({ "targets": { "mul-1.0.0.pkg.json": {
        "length": 7, "hashes": { "sha256": "11".repeat(32) },
        "custom": { "package": "mul", "version": "1.0.0", "release": 9, "min-release": 9, "architectures": ["aarch64"] },
    }}}));
    let output = run(dir, &[&["trust", "sign", "p"], &key[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("release 9, min-release 9, architectures aarch64"),
        "{said}"
    );
}
