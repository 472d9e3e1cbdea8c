//! What a session makes of the device's signed word, and what people see meanwhile.

use std::time::Duration;

use serde_json::json;

use super::super::verdict::{Goal, Verdict, verdict};
use super::{GRACE, Session};
use crate::failure::Failure;
use crate::output::bytes;

impl Session<'_> {
    /// Whether the device serves what was pushed; an error where it will not.
    pub(in crate::push) fn judge(&mut self, now: Duration) -> Result<bool, Failure> {
        if self.told_at.is_none() {
            self.show("waiting for the broker", 0);
            return Ok(false);
        }
        let device = &self.parts.device;
        let named = format!("{} r{}", self.parts.goal.package, self.parts.goal.release);
        match verdict(&self.parts.goal, device.sequence, device.state.as_ref()) {
            Verdict::Running => return Ok(true),
            Verdict::Failed(why) => {
                return Err(Failure::refused(
                    format!("{} did not keep {named}: {why}", device.device),
                    "what ran before still runs; correct the package and push it with a larger release counter",
                ));
            }
            Verdict::Overruled(sequence) => {
                if !self.parts.take_over {
                    return Err(self.overruled(sequence));
                }
                self.show("it has not said yet what it has accepted", 0);
            }
            Verdict::Refused(why) if self.reported => {
                let waited = self.told_at.is_some_and(|at| now >= at + GRACE);
                if !self.above {
                    // Numbers that were used before with other contents: a lost or forked memory.
                    self.above = true;
                    self.step.note(&format!(
                        "{} refuses ({why}); signing above all that it may know",
                        device.device
                    ));
                    let claims = self.claims();
                    self.sign_and_publish(claims, true, now)?;
                } else if waited {
                    return Err(Failure::Untrusted {
                        what: format!("{} refuses what it was sent: {why}", device.device),
                        advice:
                            "what ran before still runs; check that it was enrolled with the roots of --keys"
                                .to_owned(),
                        source: None,
                    });
                }
            }
            Verdict::Refused(_) => self.show("it has not accepted that yet", 0),
            Verdict::Waiting(text, tenths) => {
                let (text, tenths) = self.in_words(text, tenths);
                self.show(&text, tenths);
            }
        }
        Ok(false)
    }

    /// Blocks that were sent tell more than a report of five seconds ago.
    fn in_words(&self, text: String, tenths: u64) -> (String, u64) {
        let (sent, size) = (self.blocks.sent, self.parts.goal.size);
        if !self.heard {
            return ("it was not heard yet".to_owned(), 0);
        }
        if self.parts.device.public_key.is_none() {
            return ("it has not enrolled yet".to_owned(), 0);
        }
        if sent > 0 && !matches!(text.as_str(), "staged" | "trial") && !text.starts_with("committed") {
            let tenths = sent.min(size).saturating_mul(10).checked_div(size).unwrap_or(0);
            return (format!("fetching, {} of {} sent", bytes(sent.min(size)), bytes(size)), tenths);
        }
        (text, tenths)
    }

    /// Without a terminal every byte would be a line: there it is one a stage and a tenth.
    fn show(&mut self, text: &str, tenths: u64) {
        text.clone_into(&mut self.text);
        let key = if self.parts.out.is_watched() {
            text.to_owned()
        } else {
            format!("{} {tenths}", text.split(',').next().unwrap_or_default())
        };
        if key != self.shown {
            self.shown = key;
            let Goal { package, release, .. } = &self.parts.goal;
            self.step.say(&format!("{}: {package} r{release}: {text}", self.parts.device.device));
        }
    }

    pub(super) fn tell_success(&self) {
        let Goal { package, version, release, digest, .. } = &self.parts.goal;
        let device = &self.parts.device;
        self.parts.out.value(&json!({
            "target": device.device, "package": package, "version": version, "release": release,
            "digest": digest, "sequence": device.sequence, "sent_bytes": self.blocks.sent, "state": device.state,
        }));
        self.parts.out.line(format!("{} serves {package} {version} (r{release})", device.device));
    }

    pub(super) fn overruled(&self, sequence: u64) -> Failure {
        Failure::Conflict {
            what: format!(
                "another Director directs {}: it has accepted sequence {sequence}, the last one from here is {}",
                self.parts.device.device, self.parts.device.sequence
            ),
            advice:
                "use the --repository of the earlier pushes; or say --take-over: what the other assigned is \
                     replaced, and it cannot direct the device any more"
                    .to_owned(),
        }
    }

    pub(super) fn late(&self) -> Failure {
        if let Some(sequence) = self.claimed.filter(|&claimed| claimed > self.parts.device.sequence) {
            return self.overruled(sequence);
        }
        let Goal { package, release, .. } = &self.parts.goal;
        Failure::TimedOut {
            what: format!("{package} r{release} on {} ({})", self.parts.device.device, self.text),
            allowed: self.parts.deadline.allowed(),
            advice: "run the command again: what has arrived is not sent again. Check that the device's agent runs and \
                     is connected to this broker"
                .to_owned(),
        }
    }
}
