//! A host that the test plays on the disk that loses power: it opens nothing that is not whole, and
//! minds that whatever it is asked to open was written down durably before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use selvedge_agent::store::{Database, Key};
use selvedge_control::{HostStatus, Load, PackageRef, PackageState, PackageStatus, path};
use selvedge_deployment::{Stage, State, StateRecord};
use selvedge_package::Digest;
use serde_json::{Value, json};

use crate::device::ROOT;
use crate::disk::CutDisk;
use crate::world::Package;

pub struct Host {
    disk: CutDisk,
    pub packages: Vec<PackageStatus>,
    pub ready: bool,
    /// Releases that it does not accept.
    pub refused: BTreeSet<Digest>,
    /// What should never have happened.
    pub faults: Vec<String>,
    /// Loads so far.
    pub loads: usize,
    known: Arc<Vec<Package>>,
}

impl Host {
    pub fn new(disk: CutDisk, known: Arc<Vec<Package>>, refused: BTreeSet<Digest>) -> Self {
        let (packages, faults) = (Vec::new(), Vec::new());
        Self { disk, packages, ready: false, refused, faults, loads: 0, known }
    }

    /// What answers.
    pub fn serving(&self) -> Vec<Digest> {
        let serving = self.packages.iter().filter(|p| p.state == PackageState::Serving);
        serving.map(|p| p.package.digest).collect()
    }

    pub fn answer(&mut self, at: &str, body: &[u8]) -> (u16, Value) {
        match at {
            path::LOAD => {
                let load: Load = serde_json::from_slice(body).unwrap();
                self.loads += 1;
                let digest = load.package.digest;
                if let Err(fault) = self.is_in_order(&load) {
                    // After a power cut nobody is left to ask for anything.
                    if !self.disk.is_dead() {
                        self.faults.push(fault);
                    }
                    return (422, json!({ "error": "no", "reason": "internal" }));
                }
                if self.refused.contains(&digest) {
                    return (422, json!({ "error": "it is refused", "reason": "bad-model" }));
                }
                self.packages.retain(|p| p.state != PackageState::Staged || p.package != load.package);
                let package = load.package.clone();
                self.packages.push(PackageStatus::staged(package, String::new(), 1, &load.settings));
                let cases = json!([{ "case": "c", "ms": 1.0 }]);
                (200, json!({ "package": load.package, "cases": cases, "load_ms": 1.0 }))
            }
            path::STATUS => (200, self.status()),
            path::READY => {
                self.ready = true;
                (200, self.status())
            }
            _ => {
                let package: PackageRef = serde_json::from_slice(body).unwrap();
                if at == path::UNLOAD {
                    self.packages.retain(|p| p.package != package);
                } else {
                    let staged = |p: &PackageStatus| p.package == package && p.state == PackageState::Staged;
                    if self.packages.iter().any(staged) {
                        self.packages.retain(|p| p.package.name != package.name || staged(p));
                    }
                    for p in self.packages.iter_mut().filter(|p| p.package == package) {
                        p.state = PackageState::Serving;
                    }
                }
                (200, self.status())
            }
        }
    }

    /// Whether a load is of the committed release or of a trial whose attempt survives a power cut, and
    /// every file of it is there.
    fn is_in_order(&self, load: &Load) -> Result<(), String> {
        let digest = load.package.digest;
        let package = self.known.iter().find(|p| p.built.bundle.digest() == digest).ok_or("of nobody")?;
        for file in package.built.bundle.files() {
            let place = load.directory.join(file.path.as_str());
            let (seen, _) =
                self.disk.bytes(&place).ok_or_else(|| format!("{} is not there", place.display()))?;
            if Digest::of(&seen) != file.digest {
                return Err(format!("{} is not what it should be", place.display()));
            }
        }
        let (_, kept) = self.disk.bytes(&Path::new(ROOT).join("agent.redb")).ok_or("no database")?;
        let database = Database::from_bytes(&kept).map_err(|e| e.to_string())?;
        let state: Option<StateRecord> = database.read(Key::Deployment).map_err(|e| e.to_string())?;
        let state = state.map(State::from).unwrap_or_default();
        let slot = state.slots.get(&load.package.name).ok_or("its package is not written down")?;
        let committed = slot.committed.as_ref().is_some_and(|c| c.release.digest == digest);
        let tried = matches!(&slot.stage, Stage::Trial { release, attempt, .. }
            if release.digest == digest && *attempt > 0);
        (committed || tried).then_some(()).ok_or_else(|| format!("neither committed nor on trial: {slot:?}"))
    }

    pub fn status(&self) -> Value {
        let (version, onnxruntime, http) = ("1".to_owned(), "1".to_owned(), "127.0.0.1:1".to_owned());
        let packages = self.packages.clone();
        serde_json::to_value(HostStatus {
            pid: 1,
            version,
            onnxruntime,
            http,
            ready: self.ready,
            packages,
            confinement: None,
        })
        .unwrap()
    }
}
