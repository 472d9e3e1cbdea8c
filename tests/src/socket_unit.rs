//! What systemd does for the host's units, in a test: it holds the two sockets for as long as it lives,
//! starts the host when somebody connects, tells how it ended, and starts it again.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::programs::program;

/// Both units. Dropping it ends the host.
pub struct SocketUnit {
    /// The control socket.
    pub control: PathBuf,
    starts: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Unit {
    http: TcpListener,
    control: UnixListener,
    data: PathBuf,
    log: PathBuf,
}

impl SocketUnit {
    /// Listens on `address` and below `folder`, for a host of the agent whose data directory is `data`.
    pub fn start(address: &str, folder: &Path, data: &Path) -> Self {
        let control = folder.join("host.sock");
        let unit = Unit {
            http: TcpListener::bind(address).expect("the address is free"),
            control: UnixListener::bind(&control).expect("a socket can be made"),
            data: data.to_owned(),
            log: folder.join("host.log"),
        };
        let (stop, starts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, started) = (Arc::clone(&stop), Arc::clone(&starts));
        let thread = std::thread::spawn(move || unit.keep(&stopped, &started));
        Self { control, starts, stop, thread: Some(thread) }
    }

    /// How often the host was started.
    pub fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }
}

impl Drop for SocketUnit {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Unit {
    fn keep(&self, stop: &AtomicBool, starts: &AtomicUsize) {
        while !stop.load(Ordering::SeqCst) {
            if !self.somebody_connects() {
                continue;
            }
            starts.fetch_add(1, Ordering::SeqCst);
            let mut host = self.host();
            let ended = loop {
                match host.try_wait().expect("a child can be waited for") {
                    Some(ended) => break ended,
                    None if stop.load(Ordering::SeqCst) => {
                        let _ = host.kill();
                    }
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            self.tell(ended);
        }
    }

    fn somebody_connects(&self) -> bool {
        let mut listeners =
            [PollFd::new(&self.http, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut listeners, Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    /// As systemd does it: the sockets as LISTEN_FDS, with their names, by way of the agent's launcher.
    fn host(&self) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(&self.log).expect("a log");
        Command::new(program("selvedge-agent"))
            .args(["launch", "--listeners", "--"])
            .arg(program("selvedge-host"))
            .args(["serve", "--data"])
            .arg(self.data.join("host"))
            .arg("--packages-below")
            .arg(self.data.join("packages"))
            .stdin(Stdio::from(OwnedFd::from(self.http.try_clone().expect("a copy"))))
            .stdout(Stdio::from(OwnedFd::from(self.control.try_clone().expect("a copy"))))
            .stderr(log)
            .spawn()
            .expect("the host starts")
    }

    /// `ExecStopPost`, with what systemd puts into its environment.
    fn tell(&self, ended: ExitStatus) {
        let (result, code, status) = match (ended.code(), ended.signal()) {
            (Some(0), _) => ("success", "exited", "0".to_owned()),
            (Some(code), _) => ("exit-code", "exited", code.to_string()),
            (_, Some(6)) => ("core-dump", "dumped", "ABRT".to_owned()),
            (_, Some(9)) => ("signal", "killed", "KILL".to_owned()),
            (_, signal) => ("signal", "killed", format!("{signal:?}")),
        };
        let told = Command::new(program("selvedge-agent"))
            .args(["host-ended", "--data"])
            .arg(&self.data)
            .envs([("SERVICE_RESULT", result), ("EXIT_CODE", code), ("EXIT_STATUS", &status)])
            .status();
        assert!(told.is_ok_and(|status| status.success()), "the note cannot be left");
    }
}
