//! python-tuf's own repository simulator as an independent producer: the agent's trust code and store
//! follow what it publishes, and refuse what they must.
//!
//! It runs in the Python environment that `cargo xtask setup` makes, with the simulator out of the source
//! distribution of the same python-tuf; without them the test fails.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::Command;

use selvedge_tests::programs::{python, set_up};

/// Runs one scenario of `drive.py`, which fails with the reason.
fn check(scenario: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tuf_simulator/drive.py"))
        .args([Path::new(env!("CARGO_BIN_EXE_tuf_conformance")), folder.path()])
        .arg(scenario)
        .env("PYTHONPATH", set_up("setup/tuf-simulator"))
        .output()
        .expect("python-tuf is missing: run `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn refreshes_and_downloads() {
    check("refresh");
}

#[test]
fn follows_rotated_keys_and_drops_the_old_ones() {
    check("rotation");
}

#[test]
fn follows_delegations_and_hashed_bins() {
    check("delegations");
}

#[test]
fn no_role_goes_back() {
    check("rollback");
}

#[test]
fn nothing_expired_is_taken() {
    check("expiry");
}

#[test]
fn nothing_below_the_threshold_is_taken() {
    check("threshold");
}
