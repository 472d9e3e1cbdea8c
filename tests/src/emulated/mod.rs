//! A slow, long and lossy link: two network namespaces, TUN devices in them, and `link.py` in between.
//!
//! Whoever uses it runs in a network namespace of his own ([`enter`]), so that nothing of the machine's
//! network is touched; the device is in a second one. Needs Linux with TUN, `unshare`, `nsenter` and
//! `ip`, and root or unprivileged user namespaces: where one is missing it says so and fails.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::programs::root;
use crate::wait;

/// Address of this side.
pub const HERE: &str = "10.77.0.1";
/// Address of the device's side.
pub const THERE: &str = "10.77.0.2";

/// Set in a program that [`enter`] started again.
const INSIDE: &str = "SELVEDGE_IN_A_NAMESPACE";

/// What the link is like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Bytes a second, each way.
    pub rate: u32,
    /// Time that a packet takes, each way.
    pub delay: Duration,
    /// Share of packets that is lost, each way.
    pub loss: f64,
    /// Bytes that may wait for their turn, each way.
    pub queue: u32,
    /// Which packets are lost.
    pub seed: u64,
}

/// A running link. Dropping it ends it and the device's namespace.
pub struct Emulated {
    namespace: Child,
    link: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Packets and bytes that passed, with the headers of IP, and what was lost counted as passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets to the device.
    pub packets_down: u64,
    /// Bytes to the device.
    pub bytes_down: u64,
    /// Packets from the device.
    pub packets_up: u64,
    /// Bytes from the device.
    pub bytes_up: u64,
}

/// Makes sure that this program runs in a network namespace of its own: it is started again in one,
/// with the same arguments. Returns only where it does already.
///
/// # Panics
/// Where no namespace can be made.
pub fn enter() {
    if std::env::var_os(INSIDE).is_some() {
        run(&mut words(&["ip", "link", "set", "lo", "up"]));
        return;
    }
    // Root needs no user namespace, and not every machine has them.
    let kinds = [&["unshare", "-n"][..], &["unshare", "-Urn"][..]];
    let works = |kind: &&&[&str]| {
        let mut command = words(kind);
        command.arg("true").stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let kind = kinds.iter().find(works).expect(
        "no network namespace can be made here: it needs `unshare` and root (a container: \
         --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun) or unprivileged user namespaces",
    );
    let own = std::env::current_exe().expect("a running program has an executable");
    let error = words(kind).arg(own).args(std::env::args_os().skip(1)).env(INSIDE, "1").exec();
    panic!("cannot start again in a namespace: {error}");
}

impl Emulated {
    /// Starts it; to be called within a namespace ([`enter`]).
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn start(shape: &Shape) -> Self {
        let mut holder = words(&["unshare", "-n", "cat"]);
        let namespace = holder.stdin(Stdio::piped()).spawn().expect("`unshare` starts");
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
        let (own, id) = (of("self").expect("this process has a namespace"), namespace.id().to_string());
        wait::until("the device's namespace", || match of(&id) {
            Ok(other) if other != own => Ok(()),
            other => Err(other),
        });
        run(&mut words(&["nsenter", "-t", &id, "-n", "ip", "link", "set", "lo", "up"]));
        let numbers = [
            f64::from(shape.rate),
            shape.delay.as_secs_f64(),
            shape.loss,
            f64::from(shape.queue),
            shape.seed as f64,
        ];
        let mut link = Command::new("python3")
            .arg(root().join("tests/src/emulated/link.py"))
            .arg(&id)
            .args(numbers.map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let input = link.stdin.take();
        let output = BufReader::new(link.stdout.take().expect("its output is a pipe"));
        let mut emulated = Self { namespace, link, input, output };
        assert_eq!(emulated.answer(), "ready", "the link cannot be made: is /dev/net/tun there?");
        emulated
    }

    /// What starts a program on the device's side.
    pub fn within(&self) -> Vec<String> {
        ["nsenter", "-t", &self.namespace.id().to_string(), "-n"].map(str::to_owned).to_vec()
    }

    /// Nothing passes any more, and nobody is told.
    pub fn cut(&mut self) {
        self.say("cut");
    }

    /// It passes again.
    pub fn mend(&mut self) {
        self.say("mend");
    }

    /// From the next packet on it loses those of this seed.
    pub fn lose_anew(&mut self, seed: u64) {
        self.say(&format!("seed {seed}"));
    }

    /// What passed so far.
    pub fn passed(&mut self) -> Passed {
        self.say("count");
        let answer = self.answer();
        let mut numbers = answer.split(' ').map(|word| word.parse().expect("the link counts in numbers"));
        let mut next = || numbers.next().expect("the link gives four numbers");
        Passed { packets_down: next(), bytes_down: next(), packets_up: next(), bytes_up: next() }
    }

    fn say(&mut self, word: &str) {
        let input = self.input.as_mut().expect("it is open until the end");
        // In one write: half a word would mean nothing to it.
        input.write_all(format!("{word}\n").as_bytes()).expect("the link still runs");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the link's output can be read");
        line.trim_end().to_owned()
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.output.read_to_string(&mut String::new());
        let _ = self.link.wait();
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

fn words(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
