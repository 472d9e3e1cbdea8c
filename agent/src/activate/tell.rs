//! What the driver tells: the state of every package, and what is worth a line.

use selvedge_deployment::{Note, Slot};
use selvedge_package::{Digest, PackageName};
use selvedge_protocol::message::{DeviceState, Failure, PackageReport, Pending, ReleaseRef};

use super::Activation;

/// Something to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// A word for programs.
    pub kind: &'static str,
    /// The package that it is about.
    pub package: Option<PackageName>,
    /// For people.
    pub what: String,
}

/// What is known of a release beyond its digest.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    version: String,
    /// Every blob with its size, once the manifests have come.
    blobs: Vec<(Digest, u64)>,
}

impl Known {
    /// From the desired state, before any of it has come.
    pub(super) fn assigned(version: String) -> Self {
        Self { version, blobs: Vec::new() }
    }
}

impl Activation {
    /// Everything that the device runs or is about to run.
    ///
    /// `refused` is why the newest desired state was not accepted, `fresh` whether the accepted one was
    /// signed since the agent's start, as far as can be proved.
    pub fn report(&mut self, refused: Option<String>, fresh: Option<bool>) -> DeviceState {
        let slots: Vec<_> =
            self.state.slots.iter().map(|(name, slot)| (name.clone(), slot.clone())).collect();
        DeviceState {
            generation: self.state.generation,
            desired: self.state.desired,
            refused,
            fresh,
            packages: slots.into_iter().map(|(name, slot)| self.report_of(name, &slot)).collect(),
        }
    }

    fn report_of(&mut self, name: PackageName, slot: &Slot) -> PackageReport {
        let committed = slot.committed.as_ref().map(|committed| ReleaseRef {
            release: committed.release.release,
            version: self.version(&committed.release.digest),
            digest: committed.release.digest,
        });
        let pending = slot.stage.release().zip(slot.stage.word()).map(|(release, stage)| {
            let (bytes, total) = self.progress(&release.digest, release.length);
            Pending {
                release: ReleaseRef {
                    release: release.release,
                    version: self.version(&release.digest),
                    digest: release.digest,
                },
                stage: stage.to_owned(),
                bytes,
                total,
            }
        });
        let serving = committed.as_ref().is_some_and(|committed| self.host.serves(&name, &committed.digest));
        let failure = slot.failure.as_ref().map(|failure| Failure {
            release: failure.release,
            reason: failure.reason.clone(),
            what: failure.what.clone(),
        });
        PackageReport { name, committed, pending, serving, failure }
    }

    /// The version of a release; empty while it is not known.
    pub(super) fn version(&mut self, digest: &Digest) -> String {
        self.know(digest).version.clone()
    }

    /// Bytes here and bytes in all.
    fn progress(&mut self, digest: &Digest, length: u64) -> (u64, u64) {
        let blobs = self.know(digest).blobs.clone();
        let mut here = 0;
        let mut total = 0;
        for (blob, size) in blobs.iter().chain(&[(*digest, length)]) {
            total += size;
            if self.parts.store.has(blob).unwrap_or(false) {
                here += size;
            } else if let Some(under_way) = self.transfers.progress().find(|p| p.digest == *blob) {
                here += under_way.bytes;
            } else if self.storing.contains(blob) {
                // Whole, and on its way into its place.
                here += size;
            } else {
                here += size.saturating_sub(self.parts.store.still_to_write(blob, *size));
            }
        }
        (here, total)
    }

    fn know(&mut self, digest: &Digest) -> &Known {
        let known = self.known.entry(*digest).or_default();
        if known.blobs.is_empty()
            && let Ok(Some(Ok(bundle))) = self.parts.store.bundle(digest)
        {
            known.version = bundle.manifest().version.to_string();
            known.blobs = bundle.blobs().iter().map(|blob| (blob.digest, blob.size)).collect();
        }
        known
    }

    /// Turns what the state machine notes into a report.
    pub(super) fn note(&mut self, note: Note) {
        let (kind, package, what) = match note {
            Note::Committed(package, release) => {
                let version = self.version(&release.digest);
                self.probed.retain(|(digest, _), _| *digest != release.digest);
                ("committed", package, format!("release {} ({version}) answers", release.release))
            }
            Note::RolledBack(package, release) => {
                let failure = self.state.slots.get(&package).and_then(|slot| slot.failure.clone());
                let why = failure.map_or_else(String::new, |failure| failure.what);
                ("rolled-back", package, format!("release {} was given up: {why}", release.release))
            }
            Note::Removed(package) => ("removed", package, "it is not assigned any more".to_owned()),
            Note::BelowFloor(package, release, floor) => {
                let what = format!("release {} is below this device's floor {floor}", release.release);
                ("below-floor", package, what)
            }
            Note::Unfit(package, release, why) => (
                "wrong-hardware",
                package,
                format!("release {} cannot run on this device: {why}", release.release),
            ),
            Note::Repairing(package) => {
                ("corrupt-blob", package, "a stored file was damaged; it is fetched again".to_owned())
            }
            Note::StopsFirst(package, release) => {
                let what = format!(
                    "memory would not hold release {} beside the one that answers: that one is stopped first, \
                     and comes back if this one fails",
                    release.release
                );
                ("stops-first", package, what)
            }
            Note::GivesWay(package, before) => {
                let failure = self.state.slots.get(&package).and_then(|slot| slot.failure.clone());
                let what = format!(
                    "the host goes on refusing release {}: {}. Release {} is tried instead",
                    failure.as_ref().map_or(0, |failure| failure.release),
                    failure.map_or_else(String::new, |failure| failure.what),
                    before.release
                );
                ("gives-way", package, what)
            }
            Note::Quarantined(package) => {
                let failure = self.state.slots.get(&package).and_then(|slot| slot.failure.clone());
                let why = failure.map_or_else(String::new, |failure| failure.what);
                let what = format!(
                    "what answered is not served any more: {why}. It is tried again when it is assigned with \
                     other settings, or anew after something else"
                );
                ("quarantined", package, what)
            }
        };
        self.tell(kind, Some(&package), what);
    }

    /// Has something reported.
    pub(super) fn tell(&mut self, kind: &'static str, package: Option<&PackageName>, what: String) {
        self.errands.told.push(Told { kind, package: package.cloned(), what });
    }
}
