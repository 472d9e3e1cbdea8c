//! The driver, a host that the test plays, and packages whose blobs are all in the store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_agent::activate::{Activation, Outcome, Parts};
use selvedge_agent::budget;
use selvedge_agent::fetch::Hardware;
use selvedge_agent::memory::Memory;
use selvedge_agent::store::{RealDisk, Store};
use selvedge_agent::supervise::{Fate, HostProgram, Probe};
use selvedge_control::{Client, HostStatus, Load, PackageRef, PackageState, PackageStatus, path};
use selvedge_deployment::Slot;
use selvedge_package::bundle::{Builder, Built};
use selvedge_package::trust::{Assignment, Desired, TrustState};
use selvedge_package::{Digest, Manifest};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use crate::control_socket::{BREAK, serve};

pub const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(50);

/// What the played host has, and what it was asked.
#[derive(Default)]
pub struct Host {
    pub packages: Vec<PackageStatus>,
    pub ready: bool,
    pub asked: Vec<String>,
    /// Settings of the last load, and of what is served.
    pub loaded: BTreeMap<String, String>,
    pub served: BTreeMap<String, String>,
    /// Whether what it replaces is there for a while.
    pub drains: bool,
    /// What the next loads are answered, where it is not a success.
    pub refusals: Vec<Value>,
    /// A release that is never opened, and the answer.
    pub refuses: Option<(Digest, Value)>,
    /// How many of the next routes lead to what it does not know any more.
    pub forgets: usize,
    /// How often it was asked how it stands.
    pub looks: usize,
    /// How often it was started again.
    pub starts: u32,
    /// Whether loads are not answered at all.
    pub hangs: bool,
    /// A release at whose load it breaks off the exchange.
    pub breaks_at: Option<Digest>,
}

impl Host {
    pub fn answer(&mut self, at: &str, body: &[u8]) -> (u16, Value) {
        let word = at.rsplit('/').next().unwrap().to_owned();
        match at {
            path::LOAD => {
                let load: Load = serde_json::from_slice(body).unwrap();
                self.asked.push(format!("{word} {}", load.package.name));
                if self.breaks_at == Some(load.package.digest) {
                    return (BREAK, Value::Null);
                }
                if !self.refusals.is_empty() {
                    return (422, self.refusals.remove(0));
                }
                if let Some((_, refusal)) = self.refuses.as_ref().filter(|(d, _)| *d == load.package.digest) {
                    return (422, refusal.clone());
                }
                assert!(load.directory.join("models/m.onnx").is_file(), "{:?}", load.directory);
                self.packages.retain(|p| p.state != PackageState::Staged || p.package != load.package);
                self.loaded = load.settings;
                let package = load.package.clone();
                self.packages.push(PackageStatus::staged(package, String::new(), 1, &self.loaded));
                (
                    200,
                    json!({ "package": load.package, "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 }),
                )
            }
            path::STATUS => {
                self.looks += 1;
                (200, self.status())
            }
            path::READY => {
                self.asked.push(word);
                self.ready = true;
                (200, self.status())
            }
            _ => {
                let package: PackageRef = serde_json::from_slice(body).unwrap();
                self.asked.push(format!("{word} {}", package.name));
                if at == path::ACTIVATE && self.forgets > 0 {
                    self.forgets -= 1;
                    self.packages.clear();
                    return (404, json!({ "error": "it is not loaded", "reason": "not-loaded" }));
                }
                if at == path::UNLOAD {
                    self.packages.retain(|p| p.package != package);
                } else {
                    let staged = |p: &PackageStatus| p.package == package && p.state == PackageState::Staged;
                    if self.packages.iter().any(staged) {
                        self.packages.retain(|p| self.drains || p.package.name != package.name || staged(p));
                        let of_it =
                            |p: &&mut PackageStatus| p.package.name == package.name && p.package != package;
                        for p in self.packages.iter_mut().filter(of_it) {
                            p.state = PackageState::Draining;
                        }
                        self.served.clone_from(&self.loaded);
                    }
                    for p in self.packages.iter_mut().filter(|p| p.package == package) {
                        p.state = PackageState::Serving;
                    }
                }
                (200, self.status())
            }
        }
    }

    pub fn status(&self) -> Value {
        let (version, onnxruntime, http) = ("1".to_owned(), "1".to_owned(), "127.0.0.1:1".to_owned());
        let packages = self.packages.clone();
        serde_json::to_value(HostStatus {
            pid: 1 + self.starts,
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

pub struct Bench {
    pub place: tempfile::TempDir,
    pub store: Store,
    pub trust: TrustState,
    pub host: Arc<Mutex<Host>>,
    pub activation: Activation,
    pub outcomes: mpsc::UnboundedReceiver<Outcome>,
    pub told: Vec<String>,
    /// How often something was asked of the registry.
    pub needs: usize,
}

impl Bench {
    pub async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let now = "2026-11-27T00:00:00Z".parse().unwrap();
        let roots = selvedge_signing::keyring::init(&place.path().join("keys"), now).unwrap();
        let trust = TrustState::enrol(&roots.image, &roots.director, now).unwrap();
        let store = Store::open(Arc::new(RealDisk), &place.path().join("data")).unwrap();
        let host = Arc::new(Mutex::new(Host::default()));
        let socket = place.path().join("control.sock");
        let played = Arc::clone(&host);
        tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), move |at, body| {
            let mut host = played.lock().unwrap();
            let answer = host.answer(at, body);
            (at != path::LOAD || !host.hangs).then_some(answer)
        }));
        set_probe(
            place.path(),
            &json!({ "package": { "package": { "name": "p", "digest": Digest::of(b"") },
                "cases": [{ "case": "c", "ms": 1.0 }], "load_ms": 1.0 } }),
        );
        let (activation, outcomes) = driver(place.path(), &store);
        Self { place, store, trust, host, activation, outcomes, told: Vec::new(), needs: 0 }
    }

    pub fn desire(&mut self, sequence: u64, packages: &[&Built]) {
        self.desire_with(sequence, packages.iter().map(|built| assignment(built)).collect());
    }

    pub fn desire_with(&mut self, sequence: u64, assignments: Vec<Assignment>) {
        let issued_at = "2026-11-27T00:00:00Z".parse().unwrap();
        let desired = Desired { sequence, issued_at, nonce: Vec::new(), assignments };
        self.activation.desire(&self.trust, &desired).unwrap();
        self.activation.pursue().unwrap();
    }

    /// Has a release installed, and waits until it is committed.
    pub async fn commit(&mut self, sequence: u64, built: &Built) {
        self.desire(sequence, &[built]);
        let digest = built.bundle.digest();
        self.until("commit", |b| b.slot().committed.is_some_and(|c| c.release.digest == digest)).await;
    }

    pub fn host_up(&mut self) {
        let status = serde_json::from_value(self.host.lock().unwrap().status()).unwrap();
        self.activation.host_up(status).unwrap();
    }

    pub fn slot(&self) -> Slot {
        self.activation.state().slots.values().next().cloned().unwrap_or_default()
    }

    pub async fn until(&mut self, what: &str, enough: impl Fn(&Self) -> bool) {
        let now = selvedge_agent::clock::since_boot;
        let start = now();
        loop {
            let errands = self.activation.errands();
            self.needs += errands.needs.len();
            self.told.extend(errands.told.into_iter().map(|told| told.kind.to_owned()));
            if enough(self) {
                return;
            }
            let pause =
                self.activation.wake_at().map(|at| at.saturating_sub(selvedge_agent::clock::since_boot()));
            tokio::select! {
                outcome = self.outcomes.recv() => self.activation.take(outcome.unwrap()).unwrap(),
                () = tokio::time::sleep(pause.unwrap_or(PATIENCE)) => self.activation.tick().unwrap(),
                // What the host is asked is no outcome.
                () = tokio::time::sleep(GLANCE) => {}
            }
            let asked = self.host.lock().unwrap().asked.clone();
            assert!(now() < start + PATIENCE, "no {what}: {:?}, asked {asked:?}", self.slot());
        }
    }

    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.host.lock().unwrap().asked)
    }

    /// The host has ended and was started anew.
    pub fn restart_host(&mut self) {
        {
            let mut host = self.host.lock().unwrap();
            host.packages.clear();
            host.ready = false;
        }
        self.activation.host_down(&[], Fate::Orderly).unwrap();
        self.host_up();
    }

    pub fn serves(&self) -> bool {
        self.host.lock().unwrap().packages.iter().any(|p| p.state == PackageState::Serving)
    }
}

pub fn driver(place: &Path, store: &Store) -> (Activation, mpsc::UnboundedReceiver<Outcome>) {
    driver_with(place, store, budget::Settings::default())
}

pub fn driver_with(
    place: &Path,
    store: &Store,
    traffic: budget::Settings,
) -> (Activation, mpsc::UnboundedReceiver<Outcome>) {
    let (sender, outcomes) = mpsc::unbounded_channel();
    let parts = Parts {
        store: store.clone(),
        hardware: Hardware { architecture: "x86_64", memory_mib: 1000 },
        client: Client::new(place.join("control.sock")),
        probe: Probe {
            launcher: env!("CARGO_BIN_EXE_selvedge-agent").into(),
            host: HostProgram { binary: place.join("host"), modules: None, onnxruntime: None },
            log: place.join("host.log"),
            patience: PATIENCE,
            memory: 1 << 30,
            sampled: Memory::default(),
        },
        memory: Memory::at(place.join("proc"), place.join("cgroup")),
        load: PATIENCE,
        refused_for: Duration::ZERO,
        traffic,
        floor: Default::default(),
        outcomes: sender,
    };
    (Activation::resume(parts, 1).unwrap(), outcomes)
}

/// Makes a host program whose probe says this.
pub fn set_probe(place: &Path, result: &Value) {
    set_program(place, &format!("cat <<'END'\n{result}\nEND"));
}

/// Says how much memory there is.
pub fn set_memory(place: &Path, kib: u64) {
    std::fs::create_dir_all(place.join("proc")).unwrap();
    std::fs::write(place.join("proc/meminfo"), format!("MemAvailable: {kib} kB\n")).unwrap();
}

/// Says how often the kernel has killed for want of memory.
pub fn set_kills(place: &Path, kills: u64) {
    std::fs::create_dir_all(place.join("proc")).unwrap();
    std::fs::write(place.join("proc/vmstat"), format!("nr_free_pages 1\noom_kill {kills}\n")).unwrap();
}

pub fn set_program(place: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = place.join("host");
    let new: PathBuf = place.join("host.new");
    std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// A package of that version whose blobs are all in the store.
pub fn package(store: &Store, release: u64, requires: Value) -> Built {
    package_with(store, release, json!({ "requires": requires }))
}

/// The same with more in its manifest.
pub fn package_with(store: &Store, release: u64, more: Value) -> Built {
    let mut manifest = json!({
        "format": 1, "name": "p", "version": format!("{release}.0.0"), "release": release,
        "models": [{ "name": "m", "file": "models/m.onnx" }],
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [1] }],
        "acceptance": { "cases": ["c.json"] },
    });
    manifest.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let manifest: Manifest = serde_json::from_value(manifest).unwrap();
    let model = format!("model {release}").into_bytes();
    let mut builder = Builder::new(manifest);
    builder.bytes("models/m.onnx".parse().unwrap(), &model).unwrap();
    builder.bytes("c.json".parse().unwrap(), b"{}").unwrap();
    let built = builder.build().unwrap();
    for bytes in
        [&built.manifest, &model, &b"{}".to_vec()].into_iter().chain(built.blobs.iter().map(|b| &b.1))
    {
        store.put_blob(bytes).unwrap();
    }
    built
}

pub fn assignment(built: &Built) -> Assignment {
    let manifest = built.bundle.manifest();
    Assignment {
        package: manifest.name.clone(),
        version: manifest.version.clone(),
        target: String::new(),
        digest: built.bundle.digest(),
        length: built.bundle.length(),
        release: manifest.release,
        min_release: 0,
        architectures: Vec::new(),
        settings: BTreeMap::new(),
    }
}
