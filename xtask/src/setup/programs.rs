//! Programs of other people that tests and benches run: a real broker to be compared with, `openssl`,
//! `skopeo` and `systemd-analyze` to read what we wrote, `ip` for a link of a bench's own. Tests start their own instances and never touch a service of the machine.

use std::path::Path;

use anyhow::Result;

use super::apt;

/// The program's places, and Debian's package with it.
const WANTED: [(&[&str], &str); 6] = [
    (&["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"], "mosquitto"),
    (&["/usr/bin/mosquitto_pub", "/usr/local/bin/mosquitto_pub"], "mosquitto-clients"),
    (&["/usr/bin/openssl", "/usr/local/bin/openssl"], "openssl"),
    (&["/usr/bin/skopeo", "/usr/local/bin/skopeo"], "skopeo"),
    (&["/usr/bin/systemd-analyze", "/bin/systemd-analyze"], "systemd"),
    (&["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"], "iproute2"),
];

/// Makes sure that all are there.
pub fn install() -> Result<()> {
    let missing = |places: &[&str]| !places.iter().any(|place| Path::new(place).exists());
    let packages: Vec<&str> =
        WANTED.iter().filter(|(places, _)| missing(places)).map(|(_, package)| *package).collect();
    if packages.is_empty() { Ok(()) } else { apt::install(&packages) }
}
