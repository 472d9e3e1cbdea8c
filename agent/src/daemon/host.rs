//! What became of the host: told to the activation and to the registry.

use super::Daemon;
use crate::store::StoreError;
use crate::supervise::HostEvent;

impl Daemon {
    pub(super) fn host(&mut self, event: HostEvent) -> Result<(), StoreError> {
        self.dirty = true;
        match event {
            HostEvent::Up { status, adopted } => {
                tracing::info!(pid = status.pid, http = %status.http, adopted, "the host answers");
                self.hostless = None;
                self.activation.host_up(status)?;
                self.report_facts()
            }
            HostEvent::Noticed(event) if event.fatal => {
                self.reporter.event("host-fatal", Some(&event.package.name), event.what)
            }
            HostEvent::Noticed(event) => {
                tracing::debug!(package = %event.package.name, what = %event.what, "the host says");
                self.activation.noticed()
            }
            HostEvent::Down { what, named, crashed } => {
                let why = format!("the host ended: {what}");
                // One that never comes up is reported once, not at every try.
                if self.hostless.as_ref() != Some(&why) {
                    self.reporter.event("host-died", None, why.clone())?;
                    self.hostless = Some(why);
                }
                self.activation.host_down(&named, crashed)
            }
            HostEvent::Replaced(why) => self.reporter.event("host-replaced", None, why),
            HostEvent::Trouble(why) => {
                if self.hostless.as_ref() != Some(&why) {
                    self.reporter.event("host-trouble", None, why.clone())?;
                    self.hostless = Some(why);
                }
                Ok(())
            }
        }
    }
}
