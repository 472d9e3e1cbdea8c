//! A file for a device whose agent does not run: the same judgement, under the directory's lock. The next
//! start of the agent installs what was accepted.

use std::collections::BTreeSet;

use selvedge_deployment::{State, StateRecord, stored};
use selvedge_package::trust::{MetadataBundle, TrustState};
use selvedge_package::{DeviceId, Digest};

use super::{Gate, ImportError, Permit};
use crate::clock;
use crate::fetch::Hardware;
use crate::identity::{Established, Identity, IdentityError};
use crate::store::{Key, Store};
use crate::verify;

/// What the data directory holds.
pub(super) struct Offline {
    store: Store,
    identity: Identity,
    trust: Option<TrustState>,
    distrust: Option<String>,
    hardware: Hardware,
}

impl Offline {
    pub fn open(store: Store, hardware: Hardware) -> Result<Self, IdentityError> {
        let Established { identity, trust, distrust, .. } = Identity::establish(&store, None)?;
        Ok(Self { store, identity, trust, distrust, hardware })
    }

    fn state(&self) -> Result<State, ImportError> {
        let record: Option<StateRecord> = self.store.database().read(Key::Deployment)?;
        Ok(record.map(State::from).unwrap_or_default())
    }
}

impl Gate for Offline {
    fn judge(&mut self, bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<Permit, ImportError> {
        let distrust = self.distrust.as_deref();
        super::judge(&self.store, &self.identity, &mut self.trust, distrust, bundle, device)
    }

    fn keep(&mut self, packages: &BTreeSet<Digest>) -> Result<(), ImportError> {
        Ok(self.store.prefetch(packages)?)
    }

    fn accept(&mut self, bundle: &MetadataBundle) -> Result<(), ImportError> {
        let Some(trust) = &mut self.trust else {
            return Err(ImportError::refused("untrusting", "this device trusts nobody"));
        };
        let clock = clock::synchronised(trust.floor());
        let anew = trust.sequence() == 0;
        let accepted = verify::bundle(&self.store, trust, &self.identity.device, bundle, clock)
            .offer
            .map_err(|refused| ImportError::refused(refused.reason(), crate::failure::chain(&refused)))?;
        let event = verify::event(&accepted.desired, &self.hardware, anew);
        let next = selvedge_deployment::step(&self.state()?, event)
            .map_err(|illegal| ImportError::refused("rollback", illegal.to_string()))?;
        self.store.database().write(|transaction| {
            transaction.put(Key::Deployment, &StateRecord::from(next.state.clone()))?;
            transaction.put(Key::Trust, &accepted.state)
        })?;
        let assigned = stored(&next.state);
        self.store.retain_prefetched(|package| !assigned.contains(package))?;
        Ok(())
    }

    fn give_up(&mut self, packages: &BTreeSet<Digest>) {
        let tidy = || -> Result<(), ImportError> {
            self.store.retain_prefetched(|package| !packages.contains(package))?;
            let mut keep = stored(&self.state()?);
            keep.extend(self.store.prefetched()?);
            self.store.collect(&keep)?;
            Ok(())
        };
        if let Err(error) = tidy() {
            tracing::warn!("what was stored of the file is left for the agent's next start: {error}");
        }
    }
}
