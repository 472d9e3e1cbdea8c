//! What comes in: from the broker, and through it from anyone.
//!
//! Nothing here is believed for being said. A desired state counts when it verifies, an
//! acknowledgement when the Director signed it; what cannot be read is logged and forgotten.

use std::time::Duration;

use selvedge_mqtt::{Inbox, Incoming, Reason};
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::line::one_line;
use selvedge_protocol::message::{Enrolled, Want};
use selvedge_protocol::sealed::{self, SealError};
use selvedge_protocol::signed::{PublicKey, Purpose};
use selvedge_protocol::topic::{Direction, Kind, Topic};

use super::Daemon;
use crate::budget::on_the_wire;
use crate::clock;
use crate::credential::Event;
use crate::failure::chain;
use crate::remote::Done;
use crate::status::root_versions;
use crate::store::StoreError;
use crate::verify::{self, Accepted, Refused};

/// Blocks that are taken one after the other, at most: others wait meanwhile.
const BLOCKS_AT_ONCE: usize = 32;
/// Longest line about what came from outside, in characters.
const LONGEST_LINE: usize = 500;
/// Shortest time between two reports of refusals: anyone who can publish can cause them.
const REFUSALS: Duration = Duration::from_secs(60);

impl Daemon {
    /// Takes what has come, and after a block the blocks that wait behind it, until they make something to be
    /// done: what the loop does after every message costs about as much as a block.
    pub(super) fn incoming_all(
        &mut self,
        incoming: Incoming,
        mut inbox: Option<&mut Inbox>,
    ) -> Result<(), StoreError> {
        let mut next = Some(incoming);
        for left in (0..BLOCKS_AT_ONCE).rev() {
            let Some(incoming) = next.take() else { break };
            let block = self.is_block(&incoming);
            self.incoming(incoming)?;
            if left > 0 && block && !self.activation.has_errands() {
                next = inbox.as_mut().and_then(|inbox| inbox.try_recv());
            }
        }
        Ok(())
    }

    fn is_block(&self, incoming: &Incoming) -> bool {
        let Incoming::Message { topic, .. } = incoming else { return false };
        Topic::parse(topic).is_ok_and(|topic| topic.kind == Kind::Block)
    }

    fn incoming(&mut self, incoming: Incoming) -> Result<(), StoreError> {
        match incoming {
            Incoming::Connected { maximum_packet, .. } => {
                tracing::info!(broker = %self.identity.broker, "connected");
                self.offline = None;
                self.link.connected();
                self.may_ask();
                self.reporter.connected(maximum_packet);
                self.remote.connected(maximum_packet);
                self.activation.connected(maximum_packet);
            }
            Incoming::Disconnected { why, reason, retry_in, .. } => {
                tracing::info!(%why, ?retry_in, "no connection to the broker");
                self.offline = Some(match reason {
                    Reason::Credential => format!(
                        "{why}; if it goes on, start the agent with a new enrolment file (`selvedge target enrol \
                         {} --again --out FILE`)",
                        self.identity.device
                    ),
                    Reason::Broker | Reason::Link => why,
                });
                self.link.disconnected();
                self.activation.disconnected();
                // A broker that is not believed says nothing about what it was not shown.
                if reason != Reason::Broker {
                    self.missed()?;
                }
            }
            Incoming::Refused { filter } => {
                let why = format!("the broker refuses the subscription to {filter}");
                tracing::error!("{why}");
                self.offline = Some(why);
            }
            Incoming::Dropped { topic, size } => {
                tracing::warn!(%topic, size, "a message is too large for the broker and was dropped");
            }
            Incoming::Message { topic, payload } => return self.message(&topic, &payload),
        }
        Ok(())
    }

    /// A message from outside: anything may be in it.
    fn message(&mut self, topic: &str, payload: &[u8]) -> Result<(), StoreError> {
        let topic_length = topic.len();
        self.link.carries();
        let kind = match Topic::parse(topic) {
            Ok(topic)
                if topic.device == self.identity.device && topic.kind.direction() == Direction::Down =>
            {
                topic.kind
            }
            _ => {
                tracing::debug!(topic, "not for us");
                return Ok(());
            }
        };
        if kind != Kind::Block {
            self.activation.received(on_the_wire(topic_length + payload.len()));
        }
        if kind == Kind::Block {
            return self.activation.frame(payload);
        }
        let envelope = match Envelope::decode(payload) {
            Ok(envelope) => envelope,
            Err(error) => {
                self.grumble(&format!("a message on {topic} is not read: {}", chain(&error)));
                return Ok(());
            }
        };
        match (kind, envelope.body) {
            (Kind::Want, Body::Want(want)) => match want {
                Want::Inline(bytes) => self.wanted(&bytes),
                Want::Pull { digest, size } => {
                    if let Err(error) = self.activation.pull(digest, size) {
                        self.refuse("too-large", &chain(&error))?;
                    }
                    Ok(())
                }
            },
            (Kind::Ack, Body::Ack(signed)) => {
                let Some(trust) = &self.trust else {
                    return Ok(());
                };
                match self.reporter.acknowledged(trust, &signed.0) {
                    Ok(acknowledged) => {
                        self.link.fleet(acknowledged.fleet);
                        if acknowledged.of_this_run && !self.identity.enrolled {
                            tracing::info!("the registry has acknowledged what this device's key signed");
                            self.identity.set_enrolled(&self.store, true)?;
                        }
                        self.heard()?;
                    }
                    Err(crate::report::AckError::Store(error)) => return Err(error),
                    Err(error) => self.grumble(&chain(&error)),
                }
                Ok(())
            }
            (Kind::Command | Kind::InferRequest, body) => {
                match self.question(&body) {
                    Ok(question) => self.ask(kind, question),
                    Err(why) => self.grumble(&why),
                }
                Ok(())
            }
            (Kind::Enrolled, Body::Enrolled(answer)) => self.enrolled(answer),
            (kind, body) => {
                tracing::debug!(?kind, ty = body.ty(), "nothing here takes this message");
                Ok(())
            }
        }
    }

    /// What is asked, where the Director has sealed it for this device.
    fn question(&self, body: &Body) -> Result<Body, String> {
        let trust = self.trust.as_ref().ok_or("a question to a device that trusts nobody")?;
        let keys = trust.director_keys().map_err(|error| chain(&error))?;
        let keys: Vec<PublicKey> = keys.into_iter().map(PublicKey).collect();
        match sealed::open(&keys, Purpose::Question, &self.identity.device, body) {
            Ok(inner) => Ok(inner.body),
            Err(error @ SealError::Open(_)) => Err(chain(&error)),
            Err(error) => Err(format!("a question that the Director did not seal: {}", chain(&error))),
        }
    }

    /// A question that the Director has sealed. It counts for this run of the agent alone: one that was
    /// recorded before its start names another nonce.
    fn ask(&mut self, kind: Kind, question: Body) {
        let now = clock::since_boot();
        let (said, answer) = match (kind, question) {
            _ if !self.may_talk() => return,
            (Kind::Command, Body::Command(command)) if command.nonce == self.nonce => {
                (self.remote.command(&command, now), Kind::CommandResult)
            }
            (Kind::InferRequest, Body::InferRequest(request)) if request.nonce == self.nonce => {
                let host = self.activation.host().map(|host| host.http.as_str());
                (self.remote.infer(request, host, now), Kind::InferAnswer)
            }
            (_, question) => {
                tracing::debug!(ty = question.ty(), "a question of another time, or none");
                return;
            }
        };
        if let Some(said) = said {
            self.link.answer(answer, said.body, said.lifetime);
        }
    }

    /// A remote request has been carried to the host and back.
    pub(super) fn answered(&mut self, done: Done) {
        let said = self.remote.done(done, clock::since_boot());
        self.link.answer(Kind::InferAnswer, said.body, said.lifetime);
    }

    /// A line of the log about what came from outside, unless there were too many of them.
    pub(super) fn grumble(&mut self, why: &str) {
        if !self.noise.allow(clock::since_boot()) {
            return;
        }
        let why = one_line(why, LONGEST_LINE);
        match self.noise.refused() {
            0 => tracing::warn!("{why}"),
            others => tracing::warn!(others, "{why}"),
        }
    }

    /// The registry has said something that only it can say.
    fn heard(&mut self) -> Result<(), StoreError> {
        // Until the key is known to be accepted, the device goes on introducing itself.
        if self.identity.enrolled {
            self.link.heard();
        }
        self.activation.heard();
        // Whatever was shown to the broker has worked.
        self.credential(Event::Proven)
    }

    fn enrolled(&mut self, answer: Enrolled) -> Result<(), StoreError> {
        match answer {
            Enrolled::Accepted | Enrolled::Certificate(_) => {
                self.unenrolled = None;
                match &answer {
                    Enrolled::Certificate(chain) => self.certified(chain)?,
                    _ => self.uncertified(),
                }
                if !self.identity.enrolled && !self.said_accepted {
                    tracing::info!("the registry has accepted this device's key");
                    self.said_accepted = true;
                    self.reporter.introduced();
                    self.link.introduce();
                }
            }
            // Anyone who can publish could say this of an enrolled device; it changes nothing then.
            Enrolled::Refused(why) => {
                let why = one_line(&why, 500);
                self.grumble(&format!("the registry refuses this device's key: {why}"));
                if !self.identity.enrolled {
                    self.unenrolled = Some(format!("the registry refuses this device's key: {why}"));
                }
            }
        }
        Ok(())
    }

    /// An offered desired state.
    pub(super) fn wanted(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if let Some(why) = &self.latched {
            let refused = Refused::Latched(why.clone());
            return self.refuse(refused.reason(), &chain(&refused));
        }
        let Some(held) = &mut self.trust else {
            return Ok(());
        };
        let device = &self.identity.device;
        let clock = clock::synchronised(held.floor());
        let verdict = verify::offer(&self.store, held, device, bytes, clock);
        if verdict.newer_roots {
            tracing::info!(roots = ?root_versions(held), "newer roots are trusted");
            self.dirty = true;
        }
        match verdict.offer {
            Ok(accepted) => {
                self.take_over(accepted)?;
                self.heard()?;
                self.activation.pursue()
            }
            Err(Refused::Store(error)) => Err(self.latch(error)),
            // There may be more roots where these came from: they are asked for at once. What cannot be
            // accepted under these may be under the newest.
            Err(refused) if verdict.newer_roots => {
                self.grumble(&chain(&refused));
                self.heard()?;
                self.link.introduce();
                Ok(())
            }
            Err(refused) if refused.is_late() => {
                // Messages come twice and late: an older state is no news about the newest.
                self.grumble(&chain(&refused));
                self.heard()?;
                self.introduce_again();
                Ok(())
            }
            Err(refused) => {
                self.introduce_again();
                self.refuse(refused.reason(), &chain(&refused))
            }
        }
    }

    /// Takes over what was accepted.
    pub(super) fn take_over(&mut self, accepted: Accepted) -> Result<(), StoreError> {
        let Accepted { state: trust, desired } = accepted;
        self.refused = None;
        self.dirty = true;
        if Some(&trust) != self.trust.as_ref() {
            self.activation.desire(&trust, &desired).map_err(|error| self.latch(error))?;
            self.floor.raise(trust.floor());
            self.trust = Some(trust);
            self.fresh = Some(desired.nonce == self.nonce);
            if self.fresh == Some(false) {
                tracing::info!(sequence = desired.sequence, "accepted without proof of freshness");
            }
            if !self.identity.enrolled {
                // Whoever signed it can register the key now, and waits for it.
                self.link.introduce();
            }
        }
        Ok(())
    }

    /// After a store that failed in the middle of an acceptance nothing is accepted until it has proved
    /// itself and what is really there was read. A full disk is no such failure: nothing was written then.
    pub(super) fn latch(&mut self, error: StoreError) -> StoreError {
        if !error.is_full() {
            let why = chain(&error);
            tracing::error!("nothing is accepted until the disk works again: {why}");
            self.latched = Some(why.clone());
            self.breaks(why);
        }
        error
    }

    /// Has the device say what it has accepted, since somebody does not seem to know: at most once a
    /// minute, whatever is offered.
    fn introduce_again(&mut self) {
        let now = clock::since_boot();
        if self.introduced_at.is_none_or(|at| now >= at + REFUSALS) {
            self.introduced_at = Some(now);
            self.link.introduce();
        }
    }

    /// Reports a refusal: once however often the same is offered, and one a minute whatever is.
    fn refuse(&mut self, reason: &str, why: &str) -> Result<(), StoreError> {
        let why = one_line(&format!("{reason}: {why}"), 1000);
        let now = clock::since_boot();
        let rests = self.refused_at.is_some_and(|at| now < at + REFUSALS);
        if self.refused.as_ref() == Some(&why) || rests {
            tracing::debug!(%why, "refused again");
            return Ok(());
        }
        self.reporter.refusal(why.clone())?;
        self.refused = Some(why);
        self.refused_at = Some(now);
        self.dirty = true;
        Ok(())
    }
}
