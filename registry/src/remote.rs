//! Asking a device and waiting for its answer, over MQTT: commands and remote inference.
//!
//! A bounded number of questions waits, for each device and in all. Each has an id that nobody can
//! guess; an answer counts when it comes from the device that was asked, under that id, and is of the
//! kind that was asked for. What comes late, twice or unasked is dropped. Nothing of this is kept: a
//! registry that stops forgets its questions, and devices drop them when their time is up.
//! Questions are sealed with the Director's targets key and name the nonce of the device's newest birth,
//! so that nobody else can ask, nor ask again what was recorded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use selvedge_package::DeviceId;
use selvedge_protocol::envelope::Body;
use selvedge_protocol::remote::{
    Ask, Command, CommandResult, InferAnswer, InferRequest, LONGEST_WAIT_MS, Outcome,
};
use selvedge_protocol::topic::Kind;
use tokio::sync::oneshot;

use crate::devices::outgoing::{Outgoing, ROOM, Unsent};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::trust::Trust;

/// A device that takes larger packets than [`DEVICE_PACKET`] says so by this word and the bytes.
const PACKET: &str = "packet:";
/// What every device takes, in bytes.
const DEVICE_PACKET: usize = 128 << 10;

/// How many questions may wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For one device: stops a slow one from taking every place.
    pub device: usize,
    /// In all: each holds a request of up to a packet.
    pub all: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { device: 8, all: 64 }
    }
}

/// Questions that wait for answers.
#[derive(Default)]
pub struct Remote {
    limits: Limits,
    outgoing: OnceLock<Arc<Outgoing>>,
    waiting: Mutex<Waiting>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Waiting {
    questions: BTreeMap<String, Question>,
    devices: BTreeMap<DeviceId, usize>,
}

struct Question {
    device: DeviceId,
    answer: oneshot::Sender<Answer>,
    kind: Kind,
}

/// What a device answered.
#[derive(Debug)]
pub enum Answer {
    /// To a command.
    Command(Outcome),
    /// To an inference request.
    Infer(InferAnswer),
}

/// What a question is sealed with.
pub struct Seal<'a> {
    /// Has the key.
    pub trust: &'a Trust,
    /// Of the device's newest birth.
    pub nonce: Vec<u8>,
}

/// A place among the questions; given back when it is dropped.
pub struct Place<'a> {
    remote: &'a Remote,
    device: DeviceId,
    id: String,
    answer: oneshot::Receiver<Answer>,
}

impl Remote {
    /// With other limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// From now on questions can be sent.
    pub fn open(&self, outgoing: Arc<Outgoing>) {
        // Set once, when the registry starts.
        let _ = self.outgoing.set(outgoing);
    }

    /// Bytes that one question can carry to a device which said this in its birth: a broker drops
    /// without a word what its receiver does not take.
    pub fn room(&self, capabilities: &[String]) -> usize {
        let said = capabilities.iter().find_map(|word| word.strip_prefix(PACKET)?.parse().ok());
        let packet: usize = said.unwrap_or(DEVICE_PACKET);
        self.outgoing.get().map_or(0, |outgoing| outgoing.sealed_room()).min(packet.saturating_sub(ROOM))
    }

    /// A place for one question to `device` that is answered on topics of `kind`. To be taken before
    /// a body is read, so that what waits is bounded.
    pub fn place(&self, device: &DeviceId, kind: Kind) -> Result<Place<'_>, Refusal> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| Error::Random)?;
        let id = hex::encode(id);
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = waiting.devices.values().sum();
        let mine = waiting.devices.get(device).copied().unwrap_or(0);
        if all >= self.limits.all || mine >= self.limits.device {
            return Err(Refusal::TooMany { device: mine, all });
        }
        waiting.devices.insert(device.clone(), mine + 1);
        let question = Question { device: device.clone(), answer: sender, kind };
        waiting.questions.insert(id.clone(), question);
        Ok(Place { remote: self, device: device.clone(), id, answer })
    }

    /// Whether anybody waits for an answer of this kind from the device.
    pub fn asked(&self, device: &DeviceId, kind: Kind) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.questions.values().any(|asked| asked.device == *device && asked.kind == kind)
    }

    /// A device answered. Whether somebody waits for that.
    pub fn answered(&self, device: &DeviceId, id: &str, kind: Kind, answer: Answer) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.questions.get(id).is_none_or(|asked| asked.device != *device || asked.kind != kind) {
            return false;
        }
        // The place is counted until it is dropped.
        waiting.questions.remove(id).is_some_and(|asked| asked.answer.send(answer).is_ok())
    }

    /// How many questions wait.
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.devices.values().sum()
    }
}

impl Place<'_> {
    /// Ask for what a command does.
    pub async fn command(self, seal: Seal<'_>, ask: Ask, within: Duration) -> Result<Outcome, Refusal> {
        let (id, within_ms, nonce) = (self.id.clone(), milliseconds(within), seal.nonce.clone());
        let command = Command { id, within_ms, nonce, ask };
        match self.ask(seal, Kind::Command, Body::Command(command), within).await? {
            Answer::Command(outcome) => Ok(outcome),
            Answer::Infer(_) => Err(Refusal::BadAnswer { why: "it answered something else".to_owned() }),
        }
    }

    /// Ask for an inference; id, time and nonce of `request` are set here.
    pub async fn infer(
        self,
        seal: Seal<'_>,
        request: InferRequest,
        within: Duration,
    ) -> Result<InferAnswer, Refusal> {
        let (id, within_ms, nonce) = (self.id.clone(), milliseconds(within), seal.nonce.clone());
        let request = InferRequest { id, within_ms, nonce, ..request };
        match self.ask(seal, Kind::InferRequest, Body::InferRequest(request), within).await? {
            Answer::Infer(answer) => Ok(answer),
            Answer::Command(_) => Err(Refusal::BadAnswer { why: "it answered something else".to_owned() }),
        }
    }

    async fn ask(
        mut self,
        seal: Seal<'_>,
        kind: Kind,
        body: Body,
        within: Duration,
    ) -> Result<Answer, Refusal> {
        let outgoing = self.remote.outgoing.get().filter(|outgoing| outgoing.is_connected());
        let Some(outgoing) = outgoing else {
            return Err(Refusal::NoBroker);
        };
        let by_director = |question: &_| seal.trust.seal(&self.device, question);
        let sent = outgoing.send_sealed(&self.device, kind, body, Some(within), by_director);
        sent.map_err(|unsent| match unsent {
            Unsent::TooLarge(limit) => Refusal::TooLarge { limit: limit as u64 },
            Unsent::Failed(why) => {
                tracing::warn!(device = %self.device, "a question was not sent: {why}");
                Refusal::NoBroker
            }
        })?;
        match tokio::time::timeout(within, &mut self.answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(Refusal::Deadline { target: self.device.clone(), after: within }),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.remote.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.questions.remove(&self.id);
        if let Some(mine) = waiting.devices.get_mut(&self.device) {
            *mine = mine.saturating_sub(1);
            if *mine == 0 {
                waiting.devices.remove(&self.device);
            }
        }
    }
}

fn milliseconds(within: Duration) -> u32 {
    u32::try_from(within.as_millis()).unwrap_or(u32::MAX).min(LONGEST_WAIT_MS)
}

/// What a message from a device answers: its id, the kind of question, and the answer.
pub fn read(body: Body) -> Option<(String, Kind, Answer)> {
    match body {
        Body::CommandResult(CommandResult { id, outcome }) => {
            Some((id, Kind::Command, Answer::Command(outcome)))
        }
        Body::InferAnswer(answer) => Some((answer.id.clone(), Kind::InferRequest, Answer::Infer(answer))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Answer {
        Answer::Command(Outcome::Logs(selvedge_protocol::remote::LogLines::default()))
    }

    #[tokio::test]
    async fn only_the_device_that_was_asked_answers_and_once() {
        let (a, b): (DeviceId, DeviceId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let remote = Remote::default();
        let place = remote.place(&a, Kind::Command).unwrap();
        let id = place.id.clone();
        assert!(remote.asked(&a, Kind::Command) && !remote.asked(&b, Kind::Command));
        assert!(!remote.asked(&a, Kind::InferRequest));
        assert!(!remote.answered(&b, &id, Kind::Command, outcome()), "another device");
        assert!(!remote.answered(&a, "0", Kind::Command, outcome()), "another id");
        assert!(!remote.answered(&a, &id, Kind::InferRequest, outcome()), "another kind");
        assert!(remote.answered(&a, &id, Kind::Command, outcome()));
        assert!(!remote.answered(&a, &id, Kind::Command, outcome()), "twice");
        assert_eq!(remote.waiting(), 1);
        drop(place);
        assert_eq!(remote.waiting(), 0);
        let place = remote.place(&a, Kind::Command).unwrap();
        let id = place.id.clone();
        drop(place);
        assert!(!remote.answered(&a, &id, Kind::Command, outcome()), "too late");
    }

    #[test]
    fn questions_are_bounded_for_each_device_and_in_all() {
        let name = |number: usize| format!("d{number}").parse::<DeviceId>().unwrap();
        let remote = Remote::new(Limits { device: 2, all: 5 });
        let mut places = Vec::new();
        for number in [0, 0, 1, 1, 2] {
            places.push(remote.place(&name(number), Kind::Command).unwrap());
        }
        assert!(matches!(remote.place(&name(3), Kind::Command), Err(Refusal::TooMany { all: 5, .. })));
        places.pop();
        assert!(matches!(remote.place(&name(0), Kind::Command), Err(Refusal::TooMany { device: 2, .. })));
        // What is answered still holds its place until somebody has taken the answer.
        let id = places[0].id.clone();
        assert!(remote.answered(&name(0), &id, Kind::Command, outcome()));
        assert!(remote.place(&name(0), Kind::Command).is_err());
        places.clear();
        assert!(remote.place(&name(0), Kind::Command).is_ok());
    }
}
