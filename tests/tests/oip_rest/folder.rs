//! `serve --packages DIR`: what lies in a folder is served, without anybody who loads it.

use std::path::Path;

use selvedge_control::client::Client;
use selvedge_package::Digest;
use selvedge_tests::{process, wait};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{Host, LONG, Package, serve, tensor};

fn ones() -> Value {
    json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]})
}

/// Writes a package into a folder of its own below `packages`.
fn lay(packages: &Path, folder: &str, package: Package) {
    let written = package.write();
    let place = packages.join(folder);
    if place.exists() {
        std::fs::remove_dir_all(&place).unwrap();
    }
    std::fs::create_dir_all(&place).unwrap();
    for entry in std::fs::read_dir(written.directory.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), place.join(entry.file_name())).unwrap();
    }
}

/// The same, as `selvedge package` writes it: an OCI image layout.
fn lay_image(packages: &Path, folder: &str, package: Package) {
    let written = package.write();
    let blobs = packages.join(folder).join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    for entry in std::fs::read_dir(written.directory.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        std::fs::write(blobs.join(Digest::of(&bytes).hex()), bytes).unwrap();
    }
    let index = json!({"schemaVersion": 2, "manifests": [{"digest": written.package.digest}]});
    std::fs::write(packages.join(folder).join("index.json"), index.to_string()).unwrap();
    std::fs::write(packages.join(folder).join("oci-layout"), "{}").unwrap();
}

fn folder() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let packages = directory.path().join("packages");
    std::fs::create_dir(&packages).unwrap();
    (directory, packages)
}

/// Starts a host over `packages`, with a control socket, and waits until it is ready.
pub async fn start(directory: TempDir, packages: &Path) -> Host {
    let socket = directory.path().join("control.sock");
    let mut command = serve(&directory);
    command.args(["--listen", "127.0.0.1:0", "--packages"]).arg(packages).arg("--control").arg(&socket);
    let host = Host::watch(directory, Client::new(socket), &mut command).await;
    while !host.status().await.ready {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_there_is_served_and_its_repository_is_on_the_control_socket() {
    let (directory, packages) = folder();
    lay(&packages, "one", Package::identity("first", 1));
    lay_image(&packages, "two", Package::identity("second", 1));
    let host = start(directory, &packages).await;
    for name in ["first", "second"] {
        assert_eq!(host.post(&format!("/v2/models/{name}/infer"), ones()).await.0, 200);
    }
    assert_eq!(host.get("/v2/health/ready").await, (200, json!({"ready": true})));
    let confinement = host.status().await.confinement.expect("the host says how far it is shut in");
    assert!(
        confinement.landlock.starts_with("on") || confinement.landlock.starts_with("off"),
        "{confinement:?}"
    );
    // A newer release takes the old one's place, and one that is new is served.
    lay(&packages, "one", Package::identity("first", 2));
    // It is laid out by a host that is shut in.
    lay_image(&packages, "three", Package::identity("third", 1));
    std::fs::create_dir(packages.join("empty")).unwrap();
    let index =
        async || -> Value { host.control.post("/v2/repository/index", &json!({}), LONG).await.unwrap() };
    let states = |index: &Value, name: &str| -> Vec<(String, String)> {
        let text = |model: &Value, field: &str| model[field].as_str().unwrap().to_owned();
        let of = index.as_array().unwrap().iter().filter(|model| model["name"] == name);
        of.map(|model| (text(model, "version"), text(model, "state"))).collect()
    };
    let pair = |version: &str, state: &str| (version.to_owned(), state.to_owned());
    let before = index().await;
    assert_eq!(states(&before, "first"), [pair("1.0.0", "READY"), pair("2.0.0", "UNAVAILABLE")]);
    assert_eq!(states(&before, "third"), [pair("1.0.0", "UNAVAILABLE")]);
    assert_eq!(states(&before, "empty"), [pair("", "UNAVAILABLE")]);
    for name in ["first", "third"] {
        let path = format!("/v2/repository/models/{name}/load");
        let _: Value = host.control.post(&path, &json!({}), LONG).await.unwrap();
        assert_eq!(host.post(&format!("/v2/models/{name}/infer"), ones()).await.0, 200);
    }
    assert_eq!(host.get("/v2/models/first").await.1["versions"][0], "2.0.0");
    let _: Value = host.control.post("/v2/repository/models/third/unload", &json!({}), LONG).await.unwrap();
    assert_eq!(host.get("/v2/models/third").await.0, 404);
    let ready: Value =
        host.control.post("/v2/repository/index", &json!({"ready": true}), LONG).await.unwrap();
    assert!(states(&ready, "third").is_empty() && states(&ready, "second").len() == 1, "{ready}");
    let refused = async |path: &str, body: Value| {
        let answer: Result<Value, _> = host.control.post(path, &body, LONG).await;
        format!("{:?}", answer.unwrap_err())
    };
    let told = refused("/v2/repository/models/nobody/load", json!({})).await;
    assert!(told.contains("no package `nobody`") && told.contains("first, third, second"), "{told}");
    assert!(refused("/v2/repository/models/empty/load", json!({})).await.contains("neither `package.json`"));
    assert!(refused("/v2/repository/models/nobody/unload", json!({})).await.contains("no model `nobody`"));
    let told = refused("/v2/repository/models/first/load", json!({"parameters": {"config": "{}"}})).await;
    assert!(told.contains("takes no parameters (`config`)"), "{told}");
}

#[test]
fn what_is_refused_is_named_and_nothing_is_served() {
    let (directory, packages) = folder();
    lay(&packages, "good", Package::identity("good", 1));
    lay(&packages, "changed", Package::identity("changed", 1));
    std::fs::write(packages.join("changed/case.json"), "{}").unwrap();
    let wrong = json!({"name": "golden",
        "inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 1, 1, 1, 1, 1]))],
        "outputs": [tensor(("y", "FP32"), &[2, 3], json!([1, 1, 1, 1, 1.5, 1]))]});
    lay(&packages, "wrong", Package::identity("wrong", 1).file("case.json", wrong.to_string()));
    std::fs::create_dir(packages.join("empty")).unwrap();
    let mut command = serve(&directory);
    let output = command.args(["--listen", "127.0.0.1:0", "--packages"]).arg(&packages).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for says in [
        "3 of 4 packages in",
        "`changed`: ",
        "`empty`: it is no package",
        "`wrong`: its case `golden` failed: output `y`, element 4",
    ] {
        assert!(text.contains(says), "no `{says}` in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_control_socket_nor_a_data_directory_is_needed() {
    let (directory, packages) = folder();
    lay(&packages, "one", Package::identity("first", 1));
    let bare = serve(&directory);
    let mut arguments: Vec<_> = bare.get_args().map(ToOwned::to_owned).collect();
    let data = arguments.iter().position(|argument| argument == "--data").unwrap();
    arguments.drain(data..data + 2);
    let log = directory.path().join("log");
    let mut child = std::process::Command::new(bare.get_program())
        .args(arguments)
        .args(["--listen", "127.0.0.1:0", "--packages"])
        .arg(&packages)
        .env("TMPDIR", directory.path())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let address = wait::until("the host to serve", || {
        let text = std::fs::read_to_string(&log).unwrap();
        let ready = text.contains("everything that is to be served is");
        let address = text.split("http=").nth(1).and_then(|rest| rest.split_whitespace().next());
        address.filter(|_| ready).map(str::to_owned).ok_or(text)
    });
    let url = format!("http://{address}/v2/models/first/infer");
    let status = reqwest::Client::new().post(url).body(ones().to_string()).send().await.unwrap().status();
    process::send(child.id(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(status, 200);
    // Shut in as it is, it may empty its directory and not take it away.
    let made = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    for made in made.filter(|path| path.to_string_lossy().contains("selvedge-host-")) {
        assert_eq!(std::fs::read_dir(&made).unwrap().count(), 0, "{}", made.display());
    }
}
