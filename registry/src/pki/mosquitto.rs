//! A Mosquitto that knows its clients by their certificates: configuration and rules, as text.

use std::path::Path;

use super::server::Server;
use crate::durable::{self, Access};
use crate::error::Error;

/// Who may use which topic; `%u` is the common name of the certificate.
const RULES: &str = "\
# Written by `selvedge-registry pki mosquitto`.
# The registry, by its own certificate.
user registry
topic readwrite sv/v1/#

# A device, by the common name of its certificate: it speaks under its own name and hears what is for it.
pattern write sv/v1/d/%u/up/#
pattern read sv/v1/d/%u/dn/#
";

/// Writes `mosquitto.conf` and `acl` beside the files of `server` in `folder`.
pub(super) fn write(folder: &Path, server: &Server, address: &str, port: u16) -> Result<(), Error> {
    let acl = folder.join("acl");
    durable::write(&acl, RULES.as_bytes(), Access::All)?;
    let text = configuration(&acl, server, address, port);
    durable::write(&folder.join("mosquitto.conf"), text.as_bytes(), Access::All)
}

fn configuration(acl: &Path, server: &Server, address: &str, port: u16) -> String {
    let Server { certificate, key, ca, crl } = server;
    format!(
        "\
# Written by `selvedge-registry pki mosquitto`. One listener: TLS, nobody without a certificate.
allow_anonymous false
acl_file {acl}

listener {port} {address}
cafile {ca}
certfile {certificate}
keyfile {key}
# Replace this file when a device is revoked, then reload: `systemctl reload mosquitto`.
crlfile {crl}
require_certificate true
use_identity_as_username true
# A device cannot take another one's session by its name.
use_username_as_clientid true
tls_version tlsv1.2

# Small messages are not held back for 40 ms.
set_tcp_nodelay true
# Several blocks of 64 KiB, and a desired state.
max_packet_size 1048576
",
        acl = acl.display(),
        ca = ca.display(),
        certificate = certificate.display(),
        key = key.display(),
        crl = crl.display(),
    )
}
