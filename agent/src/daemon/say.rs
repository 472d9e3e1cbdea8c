//! What the agent says by itself: births, heartbeats, facts, and what the device runs.

use std::time::Duration;

use selvedge_package::trust::TrustState;
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{Accepted, Birth, COMMANDS, Heartbeat, INFER, ReportBody};
use selvedge_protocol::topic::Kind;

use super::Daemon;
use super::link::Due;
use crate::facts;
use crate::status::root_versions;
use crate::store::{Replaces, StoreError};

/// Largest block that the agent takes, in bytes.
const LARGEST_BLOCK: u32 = 65536;

impl Daemon {
    /// Whether the registry listens to more than an enrolment.
    pub(super) fn may_talk(&self) -> bool {
        self.link.is_connected() && (self.identity.enrolled || self.said_accepted)
    }

    /// Reports what the device runs, where that has changed.
    pub(super) fn report_state(&mut self, now: Duration) -> Result<(), StoreError> {
        self.reported_at = now;
        let state = self.activation.report(self.refused.clone(), self.fresh);
        if self.reported.as_ref() != Some(&state) {
            self.reporter.push(ReportBody::State(state.clone()), Replaces::State)?;
            self.reported = Some(state);
        }
        self.dirty = false;
        Ok(())
    }

    pub(super) fn report_facts(&mut self) -> Result<(), StoreError> {
        let facts = facts::gather(self.store.root(), self.activation.host());
        self.reporter.push(ReportBody::Facts(facts), Replaces::Facts)
    }

    pub(super) fn speak(&mut self, due: Due) {
        let generation = self.activation.state().generation;
        let desired = self.trust.as_ref().map_or(0, TrustState::sequence);
        if !self.identity.enrolled {
            let token = self.identity.token.clone();
            self.enrol(&token);
            if !self.said_accepted {
                return;
            }
        }
        match due {
            Due::Heartbeat => {
                self.link.say(Kind::Heartbeat, Body::Heartbeat(Heartbeat { generation, desired }))
            }
            Due::Introduction => {
                let (image_root, director_root) = self.trust.as_ref().map(root_versions).unwrap_or_default();
                let accepted = self.trust.as_ref().map(TrustState::accepted_versions);
                let (image, director) = accepted.unwrap_or_default();
                let birth = Birth {
                    agent: env!("CARGO_PKG_VERSION").to_owned(),
                    capabilities: vec![COMMANDS.to_owned(), INFER.to_owned()],
                    largest_block: LARGEST_BLOCK,
                    generation,
                    desired,
                    image_root,
                    director_root,
                    nonce: self.nonce.clone(),
                    accepted: Accepted { image, director },
                };
                self.link.say(Kind::Birth, Body::Birth(birth));
            }
        }
    }
}
