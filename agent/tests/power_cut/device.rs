//! A device on the disk that loses power: the real acceptance, driver, transfers and reports, put
//! together as the daemon does it, with a registry and a host that the test plays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_agent::activate::{Activation, Outcome, Parts};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::fetch::Hardware;
use selvedge_agent::identity::{Identity, next_epoch};
use selvedge_agent::memory::Memory;
use selvedge_agent::report::Reporter;
use selvedge_agent::store::{Replaces, Store};
use selvedge_agent::supervise::{Fate, HostProgram, Probe};
use selvedge_agent::{clock, verify};
use selvedge_control::Client;
use selvedge_deployment::State;
use selvedge_package::Digest;
use selvedge_package::trust::{MetadataBundle, TrustState};
use selvedge_protocol::block::{answer, block_frame};
use selvedge_protocol::message::{DeviceState, ReportBody};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use crate::control_socket::serve;
use crate::disk::{CutDisk, Gate};
use crate::host::Host;
use crate::world::{DEVICE, Package};

pub const ROOT: &str = "/agent";
/// Longest wait for anything: it ends a test that hangs.
const HUNG: Duration = Duration::from_secs(60);

/// What is the same in every life of a device.
pub struct Surroundings {
    pub place: tempfile::TempDir,
    pub enrolment: Enrolment,
    pub known: Arc<Vec<Package>>,
    pub blobs: BTreeMap<Digest, Vec<u8>>,
    /// Releases that the host does not accept, and those that end it once they answer.
    pub refused: BTreeSet<Digest>,
    pub crashing: BTreeSet<Digest>,
}

/// What has been promised: written down by a call that returned.
#[derive(Debug, Clone, Default)]
pub struct Promised {
    pub enrolled: bool,
    pub sequence: u64,
    pub roots: u64,
    pub state: State,
}

pub type Failure = Box<dyn std::error::Error>;

/// One life of the agent, from its start to the next power cut.
pub struct Life<'a> {
    around: &'a Surroundings,
    /// Open only while the device waits for what is done beside its loop.
    gate: Gate,
    /// Outcomes that came meanwhile.
    later: VecDeque<Outcome>,
    pub disk: CutDisk,
    pub store: Store,
    pub trust: TrustState,
    pub activation: Activation,
    pub host: Arc<Mutex<Host>>,
    reporter: Reporter,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    reported: Option<DeviceState>,
    pub told: Vec<String>,
    pub promised: Promised,
}

impl<'a> Life<'a> {
    /// Starts as the agent does. `promised` is what is promised when this fails.
    pub fn start(around: &'a Surroundings, disk: &CutDisk, promised: &mut Promised) -> Result<Self, Failure> {
        let gate = disk.gate();
        let store = Store::open(Arc::new(disk.clone()), Path::new(ROOT))?;
        let mut established = Identity::establish(&store, Some(&around.enrolment))?;
        promised.enrolled = true;
        let trust = established.trust.take().ok_or("nothing is trusted")?;
        // A key is made anew in every life: its file is on no real disk, where it is looked for.
        let key = Arc::new(established.identity.key(&store)?);
        let epoch = next_epoch(store.database(), 0)?;
        let (sender, outcomes) = mpsc::unbounded_channel();
        let place = around.place.path();
        let host = Host::new(disk.clone(), Arc::clone(&around.known), around.refused.clone());
        let host = Arc::new(Mutex::new(host));
        let socket = place.join("control.sock");
        let _ = std::fs::remove_file(&socket);
        let played = Arc::clone(&host);
        let answer = move |at: &str, body: &[u8]| Some(played.lock().unwrap().answer(at, body));
        tokio::spawn(serve(UnixListener::bind(&socket)?, answer));
        let parts = Parts {
            store: store.clone(),
            hardware: Hardware { architecture: "x86_64", memory_mib: 1000 },
            client: Client::new(socket),
            probe: Probe {
                launcher: place.join("launcher"),
                host: HostProgram { binary: "host".into(), modules: None, onnxruntime: None },
                log: place.join("host.log"),
                patience: HUNG,
                memory: 1 << 30,
                sampled: Memory::default(),
            },
            memory: Memory::at(place.join("proc"), place.join("cgroup")),
            load: HUNG,
            refused_for: HUNG,
            traffic: Default::default(),
            floor: Default::default(),
            outcomes: sender,
        };
        let mut activation = Activation::resume(parts, 1)?;
        let device = DEVICE.parse()?;
        if let Some(desired) = trust.desired(&device)? {
            activation.desire(&trust, &desired)?;
        }
        let reporter = Reporter::new(store.clone(), device, key, epoch)?;
        let mut life = Self {
            around,
            gate,
            later: VecDeque::new(),
            disk: disk.clone(),
            store,
            trust,
            activation,
            host,
            reporter,
            outcomes,
            reported: None,
            told: Vec::new(),
            promised: Promised::default(),
        };
        life.act(|life| Ok(life.activation.pursue()?))?;
        Ok(life)
    }

    /// Does something, and notes what is promised thereby.
    fn act<T>(&mut self, what: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let result = what(self);
        if result.is_ok() && !self.disk.is_dead() {
            self.promised.state = self.activation.state().clone();
            self.promised.sequence = self.trust.sequence();
            self.promised.roots = self.trust.director_root_version()?;
            self.promised.enrolled = true;
        }
        if self.disk.is_dead() { Err("the power is gone".into()) } else { result }
    }

    /// The host is there.
    pub fn host_up(&mut self) -> Result<(), Failure> {
        let status = serde_json::from_value(self.host.lock().unwrap().status())?;
        self.act(|life| Ok(life.activation.host_up(status)?))
    }

    /// There is a connection.
    pub fn connected(&mut self) -> Result<(), Failure> {
        self.act(|life| {
            life.activation.connected(131_072);
            Ok(())
        })
    }

    /// An offer of the Director, taken as the daemon takes it.
    pub fn offer(&mut self, bundle: &MetadataBundle) -> Result<(), Failure> {
        self.act(|life| {
            let device = DEVICE.parse()?;
            let verdict = verify::bundle(&life.store, &mut life.trust, &device, bundle, None);
            let accepted = verdict.offer?;
            if accepted.state != life.trust {
                life.activation.desire(&accepted.state, &accepted.desired)?;
                life.trust = accepted.state;
            }
            Ok(life.activation.pursue()?)
        })
    }

    /// Writes down what is to be reported, and answers what is asked of the registry.
    fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let errands = self.act(|life| Ok(life.activation.errands()))?;
            let state = self.activation.report(None, None);
            if errands.is_empty() && self.reported.as_ref() == Some(&state) {
                return Ok(());
            }
            for told in errands.told {
                self.told.push(told.kind.to_owned());
                self.act(|life| Ok(life.reporter.event(told.kind, told.package.as_ref(), told.what)?))?;
            }
            if self.reported.as_ref() != Some(&state) {
                let body = ReportBody::State(state.clone());
                self.act(|life| Ok(life.reporter.push(body, Replaces::State)?))?;
                self.reported = Some(state);
            }
            for need in errands.needs {
                let blob = &self.around.blobs[&need.digest];
                for span in answer(&need, blob.len() as u64)? {
                    let bytes = &blob[span.offset as usize..][..span.length as usize];
                    let frame = block_frame(need.transfer, span.number, bytes)?;
                    self.act(|life| Ok(life.activation.frame(&frame)?))?;
                }
            }
        }
    }

    /// Goes on until that is so.
    pub async fn until(&mut self, what: &str, enough: impl Fn(&mut Self) -> bool) -> Result<(), Failure> {
        loop {
            self.settle()?;
            self.crash()?;
            if enough(self) {
                return Ok(());
            }
            let outcomes = self.next(what).await?;
            if self.disk.is_dead() {
                return Err("the power is gone".into());
            }
            if outcomes.is_empty() {
                self.act(|life| Ok(life.activation.tick()?))?;
            }
            for outcome in outcomes {
                self.act(|life| Ok(life.activation.take(outcome)?))?;
            }
        }
    }

    /// What came of something; nothing where time has passed. What is done beside the loop is waited for
    /// first and comes alone, so that the disk is used in the same order each time.
    async fn next(&mut self, what: &str) -> Result<Vec<Outcome>, Failure> {
        let mut beside = Vec::new();
        self.gate.open();
        for _ in 0..self.activation.storing() {
            loop {
                let outcome = tokio::time::timeout(HUNG, self.outcomes.recv()).await?;
                let outcome = outcome.ok_or("nobody says anything any more")?;
                if matches!(outcome, Outcome::Stored { .. } | Outcome::Opened { .. }) {
                    beside.push(outcome);
                    break;
                }
                self.later.push_back(outcome);
            }
        }
        self.gate.close();
        if !beside.is_empty() {
            return Ok(beside);
        }
        if let Some(outcome) = self.later.pop_front() {
            return Ok(vec![outcome]);
        }
        let pause = self.activation.wake_at().map(|at| at.saturating_sub(clock::since_boot()));
        tokio::select! {
            biased;
            outcome = self.outcomes.recv() => Ok(vec![outcome.ok_or("nobody says anything any more")?]),
            () = tokio::time::sleep(pause.unwrap_or(HUNG)) => match pause {
                Some(_) => Ok(Vec::new()),
                None => Err(format!("no {what}: {:?}", self.activation.state()).into()),
            },
        }
    }

    /// The host ends where it serves something that ends it, and is started again.
    fn crash(&mut self) -> Result<(), Failure> {
        let named: Vec<_> = {
            let mut host = self.host.lock().unwrap();
            let crashing = &self.around.crashing;
            let named = host.packages.iter().filter(|p| crashing.contains(&p.package.digest));
            let named: Vec<_> = named.filter(|p| host.serving().contains(&p.package.digest)).collect();
            let named: Vec<_> = named.into_iter().map(|p| p.package.clone()).collect();
            if named.is_empty() {
                return Ok(());
            }
            host.packages.clear();
            host.ready = false;
            named
        };
        self.act(|life| Ok(life.activation.host_down(&named, Fate::Faulted)?))?;
        self.host_up()?;
        self.settle()
    }

    /// The registry has acknowledged whatever was reported.
    pub fn acknowledged(&mut self) -> Result<(), Failure> {
        self.act(|life| {
            let rows = life.store.database().oldest_rows(usize::MAX)?;
            let rows: Vec<_> = rows.iter().map(|row| (row.epoch, row.sequence)).collect();
            life.store.database().write(|transaction| transaction.drop_rows(&rows))?;
            Ok(())
        })
    }
}
