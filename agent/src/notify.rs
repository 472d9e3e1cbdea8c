//! Telling whoever started the agent how it does, as sd_notify(3) has it: a datagram to the socket in
//! `NOTIFY_SOCKET`. Where there is none, nothing is said.
//!
//! The watchdog is fed by the agent's one loop and by nothing else: a loop that hangs is seen, and
//! the agent is started again. The host goes on serving meanwhile.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use selvedge_protocol::line::one_line;

/// The variables that it goes by. They are for this process alone, never for its children.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
/// Longest line for people, in characters.
const LONGEST: usize = 200;

/// The one who started the agent, as far as it wants to be told anything.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Time between two signs of life: half of what is allowed.
    pace: Option<Duration>,
    beat_at: Duration,
    ready: bool,
    said: String,
}

impl Notify {
    /// As the environment says. A socket that cannot be used is a line of the log, and no more.
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let [socket, patience, process] = VARIABLES.map(variable);
        Self::new(socket.as_deref(), patience.as_deref(), process.as_deref(), std::process::id())
    }

    fn new(socket: Option<&str>, patience: Option<&str>, process: Option<&str>, own: u32) -> Self {
        let Some(name) = socket.filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        let opened = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A full queue must not hold the loop up: that would be the hang that is watched for.
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        let socket = opened.map_err(|error| tracing::warn!(%error, "NOTIFY_SOCKET cannot be used")).ok();
        let ours = process.is_none_or(|process| process == own.to_string());
        let patience = patience.filter(|_| ours).and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        let pace = patience.map(|usec: u64| Duration::from_micros(usec / 2).max(Duration::from_millis(1)));
        Self { pace: pace.filter(|_| socket.is_some()), socket, ..Self::default() }
    }

    /// The loop has come round, and this is how the agent does.
    pub fn beat(&mut self, now: Duration, status: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        let mut lines = Vec::new();
        if !self.ready {
            lines.push("READY=1".to_owned());
        }
        let status = one_line(&status(), LONGEST);
        if status != self.said {
            lines.push(format!("STATUS={status}"));
        }
        if let Some(pace) = self.pace
            && now >= self.beat_at
        {
            self.beat_at = now + pace;
            lines.push("WATCHDOG=1".to_owned());
        }
        // What did not get through is said again.
        if self.send(&lines) {
            self.ready = true;
            self.said = status;
        }
    }

    /// The start takes longer, and why; until so much later nothing is to be concluded.
    pub fn starting(&mut self, why: &str, patience: Duration) {
        let line = one_line(why, LONGEST);
        self.send(&[format!("STATUS={line}"), format!("EXTEND_TIMEOUT_USEC={}", patience.as_micros())]);
    }

    /// The agent ends as it was told to.
    pub fn stopping(&mut self) {
        self.send(&["STOPPING=1".to_owned(), "STATUS=ending".to_owned()]);
    }

    /// When [`Notify::beat`] is due.
    pub fn wake_at(&self) -> Option<Duration> {
        self.pace.map(|_| self.beat_at)
    }

    fn send(&self, lines: &[String]) -> bool {
        let Some((socket, address)) = self.socket.as_ref().filter(|_| !lines.is_empty()) else {
            return false;
        };
        let sent = socket.send_to_addr(lines.join("\n").as_bytes(), address);
        if let Err(error) = &sent {
            tracing::debug!(%error, "nobody takes what NOTIFY_SOCKET is told");
        }
        sent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 1024];
        let mut all = Vec::new();
        while let Ok(length) = socket.recv(&mut buffer) {
            all.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        all
    }

    fn tells(name: &str, socket: &UnixDatagram) {
        let mut notify = Notify::new(Some(name), Some("10000000"), Some("7"), 7);
        notify.starting("waiting", Duration::from_secs(2));
        notify.beat(Duration::from_secs(100), || "fine\nREADY=0".to_owned());
        notify.beat(Duration::from_secs(104), || "fine\nREADY=0".to_owned());
        assert_eq!(notify.wake_at(), Some(Duration::from_secs(105)));
        notify.beat(Duration::from_secs(105), || "worse".to_owned());
        notify.stopping();
        let expected = [
            "STATUS=waiting\nEXTEND_TIMEOUT_USEC=2000000",
            "READY=1\nSTATUS=fine\u{fffd}READY=0\nWATCHDOG=1",
            "STATUS=worse\nWATCHDOG=1",
            "STOPPING=1\nSTATUS=ending",
        ];
        assert_eq!(heard(socket), expected);
    }

    #[test]
    fn a_socket_with_a_path_and_an_abstract_one_are_told_the_same() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        tells(path.to_str().unwrap(), &UnixDatagram::bind(&path).unwrap());
        let name = format!("selvedge-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        tells(&format!("@{name}"), &UnixDatagram::bind_addr(&address).unwrap());
    }

    #[test]
    fn a_watchdog_for_another_process_is_not_fed_and_nobody_there_is_no_harm() {
        for (socket, patience, process) in [
            (Some("/nowhere/notify"), Some("10"), Some("8")),
            (Some("/nowhere/notify"), Some("0"), None),
            (Some("/nowhere/notify"), Some("x"), None),
            (Some("/nowhere/notify"), None, None),
            (Some(""), Some("10"), None),
            (None, Some("10"), None),
        ] {
            let mut notify = Notify::new(socket, patience, process, 7);
            assert_eq!(notify.wake_at(), None, "{socket:?} {patience:?} {process:?}");
            notify.beat(Duration::ZERO, String::new);
            notify.stopping();
        }
        let long = "x".repeat(200);
        Notify::new(Some(&long), Some("10"), None, 7).beat(Duration::ZERO, String::new);
    }

    #[test]
    fn a_queue_that_is_full_does_not_hold_the_loop_up() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let _nobody_reads = UnixDatagram::bind(&path).unwrap();
        let mut notify = Notify::new(path.to_str(), None, None, 7);
        for number in 0..10_000 {
            notify.beat(Duration::ZERO, || number.to_string());
        }
    }
}
