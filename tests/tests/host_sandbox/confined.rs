//! The host shut in by the kernel: what native code that was taken over could try, from every kind of
//! thread that there is, and what has to go on working.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use selvedge_tests::counts;
use selvedge_tests::programs::program;
use serde_json::Value;

use crate::fixture::{Package, options};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn what_a_host_never_needs_is_refused_on_every_thread() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    for folder in ["readable", "writable"] {
        std::fs::create_dir(path(folder)).unwrap();
    }
    for file in ["readable/file", "secret"] {
        std::fs::write(path(file), "content").unwrap();
    }
    symlink(path("secret"), path("readable/link")).unwrap();
    copy(Package::identity().write().path(), &path("readable/package"));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options();
    let output = Command::new(program("try_confinement"))
        .arg(place.path())
        .arg(path("readable/package"))
        .arg(port.local_addr().unwrap().port().to_string())
        .env("SELVEDGE_ONNXRUNTIME", options.onnxruntime)
        .env("SELVEDGE_MODULES", options.modules)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["full"], &said["opened"]), (&true.into(), &"ok".into()), "{said:#}");
    for (thread, count) in [("tokio", 1), ("blocking", 1), ("onnxruntime", 2)] {
        let tries = said[thread].as_array().unwrap();
        assert_eq!(tries.len(), count, "{thread}");
        for (what, outcome) in tries.iter().flat_map(|tries| tries.as_object().unwrap()) {
            let expected = match what.as_str() {
                // As the kernel says it where a link would leave its place.
                "link a key in" => "CrossesDevices",
                may if may.starts_with("may ") => "ok",
                _ => "PermissionDenied",
            };
            assert_eq!(outcome, expected, "{thread}: {what}");
        }
        let tries = tries[0].as_object().unwrap();
        let refused = tries.keys().filter(|what| !what.starts_with("may ")).count();
        assert_eq!((refused, tries.len() - refused), (18, 7));
        counts::say(&format!("confinement on a thread of {thread}: {refused} tries refused, 7 needs served"));
    }
    assert_eq!(std::fs::read(path("readable/file")).unwrap(), b"content");
}
