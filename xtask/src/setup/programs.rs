//! Programs of other people that the tests run: a real broker to be compared with, and `openssl` and
//! `skopeo` to read what we wrote. Tests start their own instances and never touch a service of the machine.

use std::path::Path;

use anyhow::Result;

use super::apt;

/// The program's places, and Debian's package with it.
const WANTED: [(&[&str], &str); 3] = [
    (&["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"], "mosquitto"),
    (&["/usr/bin/openssl", "/usr/local/bin/openssl"], "openssl"),
    (&["/usr/bin/skopeo", "/usr/local/bin/skopeo"], "skopeo"),
];

/// Makes sure that all are there.
pub fn install() -> Result<()> {
    let missing = |places: &[&str]| !places.iter().any(|place| Path::new(place).exists());
    let packages: Vec<&str> =
        WANTED.iter().filter(|(places, _)| missing(places)).map(|(_, package)| *package).collect();
    if packages.is_empty() { Ok(()) } else { apt::install(&packages) }
}
