//! The brokers that a stack can run over: the embedded one, and Debian's Mosquitto.

use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::programs::program;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    /// `selvedge-registry broker`.
    Embedded,
    /// Debian's Mosquitto with `listener` and `allow_anonymous true`, and these lines besides.
    Mosquitto(&'static str),
}

impl Broker {
    /// Starts it on `address`, which was free a moment ago, with its files below `folder`.
    pub fn start(self, address: &str, folder: &Path) -> Process {
        let log = folder.join("broker.log");
        match self {
            Self::Embedded => {
                let mut command = Command::new(program("selvedge-registry"));
                command.args(["broker", "--listen", address, "--data"]).arg(folder.join("broker"));
                Process::start("broker", &mut command, &log)
            }
            Self::Mosquitto(more) => {
                let (host, port) = address.rsplit_once(':').expect("an address has a port");
                let config = folder.join("mosquitto.conf");
                let text = format!("listener {port} {host}\nallow_anonymous true\n{more}\n");
                std::fs::write(&config, text).expect("a configuration can be written");
                let mut command = Command::new(mosquitto());
                Process::start("mosquitto", command.arg("-c").arg(&config), &log)
            }
        }
    }
}

/// Debian puts it where a person's `PATH` does not look.
fn mosquitto() -> &'static str {
    ["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("mosquitto is installed: run `cargo xtask test`, which does it")
}
