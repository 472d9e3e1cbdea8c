//! The registry's own certificate authority: who may speak to the broker, and as whom.
//!
//! A certificate says one thing: "this connection is the device of that name". Trust in updates never
//! rests on it. The authority lies in `<data>/pki`: `ca.pem` and `ca.key`, `registry.pem` and
//! `registry.key` (the registry's own client certificate), `crl.pem` (what is revoked). `authority`
//! opens or makes it, `certificate` fills in certificates, `request` judges what a device asks for,
//! `revocation` signs the list, `mosquitto` writes a broker's set-up, `command` is the command line.

mod authority;
mod certificate;
mod command;
mod mosquitto;
mod request;
mod revocation;
mod server;

pub use authority::{Authority, Credential};
pub use certificate::{Issued, REGISTRY, reserved};
pub use command::Command;
pub use request::RequestError;
pub use revocation::Revoked;
pub use server::{LOOPBACK, Server};

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a device's certificate is good for, unless the registry is told otherwise.
pub const DEVICE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the certificate of an enrolment file is.
pub const BOOTSTRAP_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the authority of a registry with this data directory lies.
pub fn folder(data: &Path) -> PathBuf {
    data.join("pki")
}
