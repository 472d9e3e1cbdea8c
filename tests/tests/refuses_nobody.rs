//! Agent and host, each killed, stopped and replaced while callers knock without pause: a caller may have
//! to wait, and none is refused. Once where the agent starts the host, once where systemd holds its sockets.

#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use selvedge_tests::knocking::{Knocking, Tally};
use selvedge_tests::packages::push_identity;
use selvedge_tests::process::{Process, runs, send};
use selvedge_tests::programs::program;
use selvedge_tests::socket_unit::SocketUnit;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;

/// A device under test, and who knocks at it.
struct Story {
    /// The sockets, where somebody else than the agent holds them.
    unit: Option<SocketUnit>,
    stack: Stack,
    knocking: Option<Knocking>,
}

#[test]
fn while_the_agent_starts_the_host() {
    let stack = Stack::start();
    push_identity(&stack, 0);
    stack.wait_committed("identity", 1);
    let mut story = Story::of(stack, None);
    story.agents();

    // The agent has not started this host: it holds its listeners all the same.
    story.host(Signal::KILL);
    story.agent(Signal::TERM, &program("selvedge-agent"), None);
    story.host(Signal::TERM);
    // Another program of the host: the one that runs is drained and replaced.
    let other = story.stack.dir.path().join("other-host");
    std::fs::copy(program("selvedge-host"), &other).unwrap();
    let before = story.host_id();
    story.agent(Signal::KILL, &program("selvedge-agent"), Some(&other));
    story.wait_for_another(before);
    story.nobody_was_refused("the agent starts the host");
}

#[test]
fn while_systemd_holds_the_sockets() {
    let stack = Stack::without_agent();
    let address = stack.inference().replace("http://", "");
    let data = stack.dir.path().join("agent");
    let unit = SocketUnit::start(&address, stack.dir.path(), &data);
    let mut story = Story::of(stack, Some(unit));
    let agent = program("selvedge-agent");
    story.start_agent(&agent, None, None);
    push_identity(&story.stack, 0);
    story.stack.wait_committed("identity", 1);
    story.agents();
    story.host(Signal::KILL);
    story.agent(Signal::TERM, &agent, None);
    story.host(Signal::TERM);
    story.host(Signal::ABORT);
    wait::until("the end of the host to be told as it was", || {
        let events = story.stack.target()["events"].to_string();
        if events.contains("signal ABRT") { Ok(()) } else { Err(events) }
    });
    let unit = story.unit.as_ref().unwrap();
    assert_eq!(unit.starts(), 4, "somebody else started the host");
    // `status` finds it without an agent, too.
    story.stack.agent().stop();
    let shown = Command::new(&agent).args(["status", "--json", "--data"]).arg(&data).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["host"]["pid"], story.host_id(), "{shown}");
    story.nobody_was_refused("systemd holds the sockets");
}

#[test]
fn systemd_is_told_when_the_agent_runs_and_that_its_loop_turns() {
    let stack = Stack::without_agent();
    let path = stack.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut story = Story { stack, unit: None, knocking: None };
    story.start_agent(&program("selvedge-agent"), None, Some(&path));
    let mut heard = Vec::new();
    socket.set_read_timeout(Some(wait::HUNG)).unwrap();
    let hear = |heard: &mut Vec<String>| {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).expect("systemd is told");
        heard.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
    };
    let count = |heard: &[String], line: &str| heard.iter().filter(|heard| *heard == line).count();
    while count(&heard, "WATCHDOG=1") < 5
        || !heard.iter().any(|line| line.contains(": connected to mqtts://"))
    {
        hear(&mut heard);
    }
    assert_eq!(heard[0], "READY=1");
    assert!(story.stack.agent().stop().success());
    while count(&heard, "STOPPING=1") == 0 {
        hear(&mut heard);
    }
    assert_eq!(count(&heard, "READY=1"), 1);
    // Its host is not told of that socket.
    let host = story.stack.host_id().unwrap();
    let environment = std::fs::read(format!("/proc/{host}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
}

impl Story {
    fn of(stack: Stack, unit: Option<SocketUnit>) -> Self {
        let knocking = Some(Knocking::start(&stack.inference().replace("http://", "")));
        Self { stack, unit, knocking }
    }

    /// The agent is killed, stopped, and upgraded: a new program at another path.
    fn agents(&mut self) {
        let (agent, other) = (program("selvedge-agent"), self.stack.dir.path().join("other-agent"));
        std::fs::copy(&agent, &other).unwrap();
        let (host, before) = (self.host_id(), self.tally());
        for (signal, program) in [(Signal::KILL, &agent), (Signal::TERM, &other), (Signal::KILL, &agent)] {
            self.agent(signal, program, None);
            assert_eq!(self.host_id(), host, "the host goes on");
        }
        let after = self.tally();
        assert_eq!((after.broken, after.refused), (before.broken, before.refused), "nobody even notices");
    }

    /// The agent ends so, and another one begins.
    fn agent(&mut self, signal: Signal, program: &Path, host: Option<&Path>) {
        let agent = self.stack.agent();
        match signal {
            Signal::KILL => agent.kill(),
            _ => assert!(agent.stop().success()),
        }
        self.some_more();
        self.start_agent(program, host, None);
        let agent = self.stack.agent().id();
        wait::until("the agent to have its host", || match self.stack.agent_status() {
            status if status["agent"] == agent && !status["host"].is_null() => Ok(()),
            other => Err(other),
        });
        self.some_more();
    }

    fn start_agent(&mut self, program: &Path, host: Option<&Path>, notify: Option<&PathBuf>) {
        let mut command = Command::new(program);
        command.args(["run", "--data", &self.stack.path("agent")]);
        command.args(["--enrolment", &self.stack.path("enrolment.json"), "--host-binary"]);
        command.arg(host.map_or_else(|| self::program("selvedge-host"), Path::to_owned));
        match &self.unit {
            Some(unit) => command.arg("--host-control").arg(&unit.control),
            None => command.args(["--http", &self.stack.inference().replace("http://", "")]),
        };
        if let Some(path) = notify {
            command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "200000");
        }
        let log = self.stack.dir.path().join("agent.log");
        self.stack.agent = Some(Process::start("agent", &mut command, &log));
    }

    /// The host ends so, and what is committed answers again.
    fn host(&mut self, signal: Signal) {
        let (before, tally) = (self.host_id(), self.tally());
        send(before, signal);
        wait::until("the host to end", || if runs(before) { Err(before) } else { Ok(()) });
        self.wait_for_another(before);
        if signal == Signal::TERM {
            assert_eq!(self.tally().broken, tally.broken, "what was on its way was answered");
        }
    }

    fn wait_for_another(&mut self, before: u32) {
        let other = || self.stack.host_status().map(|status| status.pid);
        wait::until("another host", || match other() {
            Ok(id) if id != before => Ok(()),
            other => Err(format!("{other:?}")),
        });
        self.stack.wait_ready("identity", "1.0.0");
        self.some_more();
    }

    fn host_id(&self) -> u32 {
        wait::until("the host", || self.stack.host_status().map_err(|error| error.to_string())).pid
    }

    fn tally(&self) -> Tally {
        self.knocking.as_ref().unwrap().tally()
    }

    /// Until some more have knocked and been answered.
    fn some_more(&self) {
        let Some(knocking) = &self.knocking else { return };
        let before = knocking.tally();
        wait::until("more answers", || match knocking.tally() {
            now if now.answered > before.answered + 20 => Ok(()),
            now => Err(now),
        });
    }

    fn nobody_was_refused(mut self, name: &str) {
        let tally = self.knocking.take().unwrap().stop();
        println!("{name}: {tally:?}");
        assert_eq!(tally.refused, 0, "{tally:?}");
        assert_eq!(tally.answered + tally.broken, tally.knocks, "{tally:?}");
        // A host that is killed takes those with it whom it was answering: one or two at this pace.
        assert!(tally.broken * 20 < tally.knocks, "{tally:?}");
    }
}
