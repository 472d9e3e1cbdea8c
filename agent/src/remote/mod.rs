//! Questions from far away: the device's log lines, and inference over MQTT.
//!
//! Anyone who can publish to the device can ask, so nothing here changes what the device runs, and
//! everything is bounded: how many questions are answered at a time, how many wait, how much of what
//! was answered is remembered, how long an answer is worth anything. A question that comes twice is
//! answered twice and done once. Nothing here waits: what takes time is a task.

mod infer;
mod logs;
mod memory;
mod rate;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::envelope::Body;
use selvedge_protocol::remote::{
    Ask, Command, CommandResult, InferAnswer, InferRequest, LONGEST_WAIT_MS, Outcome, is_id,
};
use tokio::sync::{Semaphore, mpsc};

use memory::{Memory, Seen};

pub use logs::{Logs, RingLayer};
pub use rate::Rate;

/// Inference requests that are with the host at the same time.
const AT_ONCE: usize = 4;
/// Inference requests that are with the host or wait for it: each holds a body of up to one packet.
const MOST: usize = 12;
/// Commands in a row, and one more every so often: each costs a look at the host's log.
const COMMANDS: (u32, Duration) = (8, Duration::from_millis(500));
/// Refusals of requests in a row, and one more every so often.
const REFUSALS: (u32, Duration) = (16, Duration::from_millis(250));
/// Bytes of a packet that are not the answer's body.
const ROOM: usize = 1024;
/// Least room for an answer, whatever the broker carries: an error fits.
const LEAST: usize = 2048;

/// An answer and how long it is worth anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// What to say.
    pub body: Body,
    /// For how long.
    pub lifetime: Duration,
}

/// A request that a task has carried to the host and back.
#[derive(Debug)]
pub struct Done {
    answer: InferAnswer,
    /// When it is too late, as time since boot.
    until: Duration,
}

/// Answers questions.
pub struct Remote {
    logs: Logs,
    host_log: PathBuf,
    epoch: u64,
    commands: Memory<CommandResult>,
    requests: Memory<InferAnswer>,
    command_rate: Rate,
    refusal_rate: Rate,
    running: usize,
    turns: Arc<Semaphore>,
    done: mpsc::UnboundedSender<Done>,
    /// Bytes of the largest answer.
    largest: usize,
}

impl Remote {
    /// Nothing was asked yet. Requests that are done come through `done`, at most [`MOST`] at a time.
    pub fn new(logs: Logs, host_log: PathBuf, epoch: u64, done: mpsc::UnboundedSender<Done>) -> Self {
        Self {
            logs,
            host_log,
            epoch,
            commands: Memory::default(),
            requests: Memory::default(),
            command_rate: Rate::new(COMMANDS.0, COMMANDS.1),
            refusal_rate: Rate::new(REFUSALS.0, REFUSALS.1),
            running: 0,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            done,
            largest: LEAST,
        }
    }

    /// There is a connection for packets of so many bytes.
    pub fn connected(&mut self, maximum_packet: u32) {
        self.largest = usize::try_from(maximum_packet).unwrap_or(usize::MAX).saturating_sub(ROOM).max(LEAST);
    }

    /// A command. `None`: it is not one, comes too late, or there are too many.
    pub fn command(&mut self, command: &Command, now: Duration) -> Option<Said> {
        let lifetime = lifetime(command.within_ms)?;
        if !is_id(&command.id) || !self.command_rate.allow(now) {
            return None;
        }
        let result = match self.commands.seen(&command.id) {
            Seen::Answered(result) => result,
            Seen::Forgotten | Seen::Running => return None,
            Seen::Never => {
                let Ask::Logs { after, lines } = command.ask;
                if let Err(error) = self.logs.read_host(&self.host_log) {
                    tracing::debug!(%error, "the host's log cannot be read");
                }
                let lines = self.logs.newest(after, lines, self.largest, self.epoch);
                let result = CommandResult { id: command.id.clone(), outcome: Outcome::Logs(lines) };
                let bytes = self.largest;
                self.commands.answered(&command.id, result.clone(), bytes);
                result
            }
        };
        Some(Said { body: Body::CommandResult(result), lifetime })
    }

    /// An inference request for the host at this address. What is not answered at once is answered
    /// by [`Remote::done`].
    pub fn infer(&mut self, request: InferRequest, host: Option<&str>, now: Duration) -> Option<Said> {
        let lifetime = lifetime(request.within_ms)?;
        if !is_id(&request.id) {
            return None;
        }
        match self.requests.seen(&request.id) {
            Seen::Answered(answer) => return self.say(answer, lifetime, now),
            Seen::Forgotten | Seen::Running => return None,
            Seen::Never => {}
        }
        if self.running >= MOST {
            let why = format!("the device answers {MOST} remote requests already; ask again later");
            return self.say(infer::refusal(&request.id, 503, &why), lifetime, now);
        }
        let Some(host) = host.map(str::to_owned) else {
            let why = "the device's host is not running at the moment; it is being started";
            return self.say(infer::refusal(&request.id, 503, why), lifetime, now);
        };
        self.running += 1;
        self.requests.running(&request.id);
        let (turns, done, largest) = (Arc::clone(&self.turns), self.done.clone(), self.largest);
        let until = now + lifetime;
        tokio::spawn(async move {
            let id = request.id.clone();
            let carried = async {
                let _turn = turns.acquire_owned().await;
                infer::carry(request, &host, largest).await
            };
            let answer = tokio::time::timeout(lifetime, carried).await.unwrap_or_else(|_| {
                infer::refusal(&id, 504, &format!("no answer within {} ms", lifetime.as_millis()))
            });
            let _ = done.send(Done { answer, until });
        });
        None
    }

    /// A request is done.
    pub fn done(&mut self, done: Done, now: Duration) -> Said {
        self.running = self.running.saturating_sub(1);
        let Done { answer, until } = done;
        let bytes = answer.body.len();
        self.requests.answered(&answer.id.clone(), answer.clone(), bytes);
        // That it was too late is still news for a moment.
        let lifetime = until.saturating_sub(now).max(Duration::from_secs(1));
        Said { body: Body::InferAnswer(answer), lifetime }
    }

    /// An answer that cost nothing: a flood of questions must not become a flood of these.
    fn say(&mut self, answer: InferAnswer, lifetime: Duration, now: Duration) -> Option<Said> {
        self.refusal_rate.allow(now).then_some(Said { body: Body::InferAnswer(answer), lifetime })
    }
}

/// How long an answer is worth anything; `None`: it is not even now.
fn lifetime(within_ms: u32) -> Option<Duration> {
    (within_ms > 0).then(|| Duration::from_millis(u64::from(within_ms.min(LONGEST_WAIT_MS))))
}

#[cfg(test)]
mod tests;
