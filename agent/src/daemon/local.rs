//! What a person on the device asks the running agent: its status, what it trusts, to take a file.

use std::collections::BTreeSet;

use selvedge_package::DeviceId;
use selvedge_package::Digest;
use selvedge_package::trust::MetadataBundle;

use super::Daemon;
use crate::clock;
use crate::failure::chain;
use crate::import::{self, ImportError, Permit};
use crate::status::{Question, Status, Step, root_versions};
use crate::store::StoreError;
use crate::trust_show::Held;
use crate::verify::{self, Refused};

impl Daemon {
    /// Answers. Whoever asked may be gone.
    pub(super) fn local(&mut self, question: Question) -> Result<(), StoreError> {
        match question {
            Question::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Question::Trust(answer) => {
                let _ = answer.send(Box::new(self.held()));
            }
            Question::Import(step, answer) => {
                let done = match step {
                    Step::Judge(bundle, device) => self.judge(&bundle, device.as_ref()).map(Some),
                    Step::Keep(packages) => self.keep(&packages).map(|()| None),
                    Step::Accept(bundle) => self.accept_file(&bundle).map(|()| None),
                    Step::GiveUp(packages) => self.give_up(&packages).map(|()| None),
                };
                let _ = answer.send(done);
            }
        }
        Ok(())
    }

    fn status(&mut self) -> Status {
        let (image_root, director_root) = self.trust.as_ref().map(root_versions).unwrap_or_default();
        Status {
            device: self.identity.device.clone(),
            kind: self.identity.kind,
            agent: Some(std::process::id()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            broker: self.identity.broker.clone(),
            connected: self.link.is_connected(),
            enrolled: self.identity.enrolled,
            detached: self.identity.detached,
            public_key: hex::encode(self.reporter.public_key().0),
            certificate: self.certificate(),
            clock: clock::trusted(),
            image_root,
            director_root,
            reports_waiting: self.store.database().rows_waiting().unwrap_or(0),
            chunks: self.activation.chunks(),
            trouble: self.trouble(),
            host: self.activation.host().cloned(),
            state: self.activation.report(self.refused.clone(), self.fresh),
        }
    }

    /// What a person should know.
    fn trouble(&self) -> Vec<String> {
        let certificate = self.certificate_trouble(self.now().at);
        let full = self.disk.trouble().or_else(|| self.activation.short_of_room());
        let metering = self.activation.metering();
        let latched = self.latched.as_ref().map(|why| format!("nothing is accepted: {why}"));
        let trouble =
            [&self.offline, &self.hostless, &self.unenrolled, &certificate, &full, &latched, &metering];
        trouble.into_iter().flatten().cloned().collect()
    }

    /// The same in one line, for whoever started the agent.
    pub(super) fn summary(&self) -> String {
        let device = &self.identity.device;
        match self.trouble().first() {
            Some(trouble) => format!("{device}: {trouble}"),
            None => format!("{device}: connected to {}", self.identity.broker),
        }
    }

    fn judge(&mut self, bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<Permit, ImportError> {
        let latched = self.latched.as_deref();
        let judged = import::judge(&self.store, &self.identity, &mut self.trust, latched, bundle, device);
        judged.map_err(|error| self.latched_by(error))
    }

    /// A store that fails while a file is judged or accepted has failed in an acceptance, as with an offer:
    /// the person is told, and nothing is accepted after it.
    fn latched_by(&mut self, error: ImportError) -> ImportError {
        match error {
            ImportError::Store(error) => ImportError::Store(self.latch(error)),
            error => error,
        }
    }

    fn keep(&mut self, packages: &BTreeSet<Digest>) -> Result<(), ImportError> {
        Ok(self.activation.prefetch(packages)?)
    }

    /// Everything of a file for this device is stored: it is accepted as an offer is.
    fn accept_file(&mut self, bundle: &MetadataBundle) -> Result<(), ImportError> {
        // The store may have failed since the file was judged.
        if let Some(why) = &self.latched {
            return Err(ImportError::refused("store-fault", format!("nothing is accepted: {why}")));
        }
        let Some(held) = &mut self.trust else {
            return Err(ImportError::refused("detached", "this device trusts nobody"));
        };
        let clock = clock::synchronised(held.floor());
        let verdict = verify::bundle(&self.store, held, &self.identity.device, bundle, clock);
        let accepted = match verdict.offer {
            Ok(accepted) => accepted,
            Err(Refused::Store(error)) => return Err(self.latched_by(error.into())),
            Err(refused) => return Err(ImportError::refused(refused.reason(), chain(&refused))),
        };
        self.take_over(accepted)?;
        self.activation.look_again();
        Ok(self.activation.pursue()?)
    }

    fn give_up(&mut self, packages: &BTreeSet<Digest>) -> Result<(), ImportError> {
        self.activation.give_up_prefetched(|package| packages.contains(package))?;
        Ok(self.activation.clear_out()?)
    }

    fn held(&self) -> Held {
        Held {
            device: self.identity.device.clone(),
            detached: self.identity.detached,
            running: true,
            trust: self.trust.clone(),
            distrust: self.latched.clone(),
            floors: self.activation.state().floors.clone(),
            fresh: self.fresh,
            certificate: self.certificate(),
            prefetched: self.store.prefetched().map_or(0, |packages| packages.len()),
        }
    }
}
