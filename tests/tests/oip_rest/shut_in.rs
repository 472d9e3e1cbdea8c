//! The running host as the kernel sees it: every thread of it is shut in, and the server says so.

use std::collections::BTreeSet;
use std::process::Command;

use selvedge_control::client::Client;
use selvedge_tests::programs::{python, root};
use serde_json::json;

use crate::host::{Host, LONG, Package, serve, tensor};

/// A line of a thread's status.
fn line(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_thread_of_a_serving_host_is_shut_in_and_packages_elsewhere_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let packages = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let mut command = serve(&directory);
    command.args(["--listen", "127.0.0.1:0", "--control"]).arg(&socket);
    command.arg("--packages-below").arg(packages.path());
    let host = Host::watch(directory, Client::new(socket), &mut command).await;
    host.control.ready(LONG).await.unwrap();

    let (status, metadata) = host.get("/v2").await;
    assert_eq!(status, 200);
    let confinement = &metadata["confinement"];
    assert_eq!(
        (&confinement["landlock"], &confinement["seccomp"]),
        (&json!("on, packages readable"), &json!("on"))
    );

    let written = Package::identity("identity", 1).threads(4).write();
    let before = threads(&host).len();
    let error = host.refusal(&written).await;
    assert!(error.error.contains("ermission denied"), "{}", error.error);

    // The same package where it may lie. The host's data are written too: what it compiles.
    let inside = packages.path().join("one");
    std::fs::create_dir(&inside).unwrap();
    for file in std::fs::read_dir(written.directory.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), inside.join(file.file_name())).unwrap();
    }
    let mut load = written.load();
    load.directory = inside;
    assert!(host.control.load(&load, LONG).await.unwrap().accepted());
    host.control.activate(&written.package, LONG).await.unwrap();
    let ones = json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]});
    let (status, answer) = host.post("/v2/models/identity/infer", &ones).await;
    assert_eq!(status, 200, "{answer}");
    let compiled = std::fs::read_dir(host.directory.path().join("data/compiled")).unwrap().count();
    assert_eq!(compiled, 1);

    let threads = threads(&host);
    let names: Vec<&str> = threads.iter().map(|(name, _)| name.as_str()).collect();
    let count = |wanted: &str| names.iter().filter(|name| name.starts_with(wanted)).count();
    assert!(count("tokio") > 0 && count("ticker") == 1 && count("selvedge-host") == 1, "{names:?}");
    // ONNX Runtime's bear the name of the thread that opened the model.
    assert!(names.len() >= before + 3, "{before} before, then {names:?}");

    // The first request is not known to be quick. What computes gives way, the model's own threads included; the
    // filter lets it, and what serves stays where it was.
    let nices = |wanted: &str| -> BTreeSet<i64> {
        threads.iter().filter(|(name, _)| name.starts_with(wanted)).map(|(_, nice)| *nice).collect()
    };
    let own = nices("selvedge-host");
    assert_eq!((nices("tokio"), nices("ticker")), (own.clone(), own.clone()));
    assert!(count("compute") > 3, "{names:?}");
    assert_eq!(nices("compute"), own.iter().map(|nice| (nice + 5).min(19)).collect());
}

/// Names and niceness of the host's threads, all of which are shut in.
fn threads(host: &Host) -> Vec<(String, i64)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", host.id())).unwrap();
    let mut threads = Vec::new();
    for task in tasks.map(|task| task.unwrap().path()) {
        // One that has ended meanwhile is of no interest.
        let Ok(status) = std::fs::read_to_string(task.join("status")) else { continue };
        let name = line(&status, "Name");
        assert_eq!((&*line(&status, "Seccomp"), &*line(&status, "NoNewPrivs")), ("2", "1"), "{name}");
        let Ok(stat) = std::fs::read_to_string(task.join("stat")) else { continue };
        // The 19th field, after the name in parentheses, which is the second (proc(5)).
        let (_, after) = stat.rsplit_once(')').unwrap();
        threads.push((name, after.split_whitespace().nth(16).unwrap().parse().unwrap()));
    }
    threads
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_on_an_old_kernel_serves_and_says_that_it_is_not_shut_in() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let host = serve(&directory);
    let mut command = Command::new(python());
    command
        .arg(root().join("tests/tests/oip_rest/old_kernel.py"))
        .arg(host.get_program())
        .args(host.get_args())
        .env_remove("LISTEN_FDS")
        .args(["--listen", "127.0.0.1:0", "--control"])
        .arg(&socket);
    let host = Host::watch(directory, Client::new(socket), &mut command).await;
    host.control.ready(LONG).await.unwrap();
    let (_, metadata) = host.get("/v2").await;
    let confinement = &metadata["confinement"];
    for (what, why) in [("landlock", "off: "), ("seccomp", "off: Function not implemented")] {
        assert!(confinement[what].as_str().unwrap().starts_with(why), "{confinement}");
    }
    let said = host.status().await.confinement.unwrap();
    assert_eq!(
        (json!(said.landlock), json!(said.seccomp)),
        (confinement["landlock"].clone(), confinement["seccomp"].clone())
    );
    assert!(host.log().contains("not shut in as far as could be"), "{}", host.log());

    host.put(&Package::identity("identity", 1).write()).await;
    let ones = json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]});
    let (status, answer) = host.post("/v2/models/identity/infer", &ones).await;
    assert_eq!(status, 200, "{answer}");
}
