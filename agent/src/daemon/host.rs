//! What became of the host: told to the activation and to the registry.

use selvedge_package::PackageName;

use super::Daemon;
use crate::activate::Told;
use crate::store::StoreError;
use crate::supervise::HostEvent;

impl Daemon {
    pub(super) fn host(&mut self, event: HostEvent) -> Result<(), StoreError> {
        self.dirty = true;
        match event {
            HostEvent::Up { status, adopted } => {
                tracing::info!(pid = status.pid, http = %status.http, adopted, "the host answers");
                self.hostless = None;
                self.facts = true;
                self.activation.host_up(status)
            }
            HostEvent::Noticed(event) if event.fatal => {
                self.happened("host-fatal", Some(event.package.name), event.what);
                Ok(())
            }
            HostEvent::Noticed(event) => {
                tracing::debug!(package = %event.package.name, what = %event.what, "the host says");
                self.activation.noticed()
            }
            HostEvent::Down { what, named, fate } => {
                self.hostless("host-died", format!("the host ended: {what}"));
                self.activation.host_down(&named, fate)
            }
            HostEvent::Replaced(why) => {
                self.happened("host-replaced", None, why);
                Ok(())
            }
            HostEvent::Trouble(why) => {
                self.hostless("host-trouble", why);
                Ok(())
            }
        }
    }

    /// There is no host. One that never comes up is reported once, not at every try.
    fn hostless(&mut self, kind: &'static str, why: String) {
        if self.hostless.as_ref() != Some(&why) {
            self.happened(kind, None, why.clone());
            self.hostless = Some(why);
        }
    }

    /// It is reported when the disk takes it: what follows from it waits for no disk.
    fn happened(&mut self, kind: &'static str, package: Option<PackageName>, what: String) {
        self.told.push_back(Told { kind, package, what });
    }
}
