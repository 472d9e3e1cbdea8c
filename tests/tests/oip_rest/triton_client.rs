//! Triton's own Python client against a real host.

use std::path::PathBuf;
use std::process::Command;

use selvedge_tests::programs::{root, set_up};

use crate::element_types;

/// Lines that the client prints: what it checked.
const CHECKED: usize = 22;

#[tokio::test(flavor = "multi_thread")]
async fn tritons_client_works_unchanged() {
    let host = element_types::host().await;
    let address = host.url.strip_prefix("http://").unwrap().to_owned();
    let python =
        std::env::var_os("SELVEDGE_PYTHON").map_or_else(|| set_up("setup/venv/bin/python"), PathBuf::from);
    let mut client = Command::new(python);
    client.arg(root().join("tests/tests/oip_rest/triton_client.py")).arg(address);
    let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(told.lines().count(), CHECKED, "{told}");
    let failures: u64 = host.status().await.packages.iter().map(|package| package.failures).sum();
    assert_eq!(failures, 0);
}
