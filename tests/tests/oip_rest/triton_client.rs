//! Triton's own Python client against a real host.

use std::process::Command;

use selvedge_tests::programs::{python, root};

use crate::element_types;

/// Runs a client written in Python; what it printed.
pub async fn said_by(script: &str, arguments: Vec<String>) -> String {
    let mut client = Command::new(python());
    client.arg(root().join("tests/tests/oip_rest").join(script)).args(arguments);
    let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    told.into_owned()
}

/// The same; it has to print so many lines, each of what it checked.
async fn runs(script: &str, arguments: Vec<String>, checked: usize) {
    let told = said_by(script, arguments).await;
    assert_eq!(told.lines().count(), checked, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tritons_client_works_unchanged() {
    let host = element_types::host().await;
    let address = host.url.strip_prefix("http://").unwrap().to_owned();
    runs("triton_client.py", vec![address], 22).await;
    let failures: u64 = host.status().await.packages.iter().map(|package| package.failures).sum();
    assert_eq!(failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tritons_client_for_grpc_works_unchanged() {
    let host = element_types::host().await;
    let address = host.url.strip_prefix("http://").unwrap().to_owned();
    let control = host.directory.path().join("control.sock").display().to_string();
    runs("triton_grpc.py", vec![address, control], 26).await;
    let failures: u64 = host.status().await.packages.iter().map(|package| package.failures).sum();
    assert_eq!(failures, 0);
}
