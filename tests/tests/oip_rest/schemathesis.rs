//! schemathesis asks a real host for all that its OpenAPI document says, and for what it does not.

use std::process::Command;

use selvedge_tests::programs::python;

use crate::host::{Host, Package};

/// Cases for each path and method, of each kind.
const EXAMPLES: &str = "8";

#[tokio::test(flavor = "multi_thread")]
async fn the_host_answers_as_its_openapi_document_says() {
    let host = Host::start().await;
    host.put(&Package::identity("identity", 1).write()).await;
    let mut client = Command::new(python());
    client.args(["-m", "schemathesis.cli", "run"]).arg(format!("{}/v2/openapi.json", host.url));
    client.args(["--max-examples", EXAMPLES, "--seed", "7", "--generation-database", "none", "--no-color"]);
    // That any body of the right form is taken is for tests that know the model: names and shapes are its own.
    client.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"]);
    client.current_dir(host.directory.path());
    let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    // It asked, and the host is as it was.
    assert!(told.contains("passed"), "{told}");
    assert_eq!(host.get("/v2/health/ready").await.0, 200);
    // The document's own example is this model's: what an answer looks like was seen.
    let answered: u64 = host.status().await.packages.iter().map(|package| package.requests).sum();
    assert!(answered > 0, "{told}");
    let failures: u64 = host.status().await.packages.iter().map(|package| package.failures).sum();
    assert_eq!(failures, 0, "nothing that it sent is the package's fault");
}
