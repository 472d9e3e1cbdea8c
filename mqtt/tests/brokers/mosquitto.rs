//! Debian's Mosquitto on a free loopback port, with a directory of its own.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running broker; killed when dropped.
pub struct Mosquitto {
    child: Option<Child>,
    config: PathBuf,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Mosquitto {
    /// Starts one with all defaults, and these lines besides.
    pub async fn start(lines: &str) -> Self {
        loop {
            let directory = tempfile::tempdir().unwrap();
            let config = directory.path().join("mosquitto.conf");
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let mut file = std::fs::File::create(&config).unwrap();
            writeln!(file, "listener {port} 127.0.0.1\nallow_anonymous true\n{lines}").unwrap();
            let mut broker = Self { child: None, config, port, _directory: directory };
            // Another program may have taken the port in between.
            if broker.again().await {
                return broker;
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it; what it knew of sessions is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// Starts it again, and waits until it listens; `false` if it ended instead.
    pub async fn again(&mut self) -> bool {
        let program = ["/usr/sbin/mosquitto", "/usr/bin/mosquitto", "/usr/local/sbin/mosquitto"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .expect("mosquitto is installed (cargo xtask test does it)");
        let mut child = Command::new(program)
            .arg("-c")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let listens = super::soon("mosquitto to listen", async {
            loop {
                if child.try_wait().unwrap().is_some() {
                    return false;
                }
                let address = (Ipv4Addr::LOCALHOST, self.port);
                if tokio::net::TcpStream::connect(address).await.is_ok() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        self.child = Some(child);
        listens
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}
