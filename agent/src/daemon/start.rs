//! The agent's start: everything that the loop carries between, made from the directory and the
//! configuration. It writes nothing down that an earlier run did not leave whole.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use selvedge_mqtt::BrokerAddress;
use tokio::sync::mpsc;

use super::credentials::{Asking, tls_time};
use super::disk::DiskHealth;
use super::link::Link;
use super::{Daemon, DaemonError, Ground, Sources};
use crate::activate::{Activation, Parts, REFUSED_FOR, Told};
use crate::clock::Floor;
use crate::config::{Config, HttpSources};
use crate::credential::Machine;
use crate::enrolment::Enrolment;
use crate::failure::chain;
use crate::fetch::Hardware;
use crate::identity::{Established, Identity, next_epoch};
use crate::import::Taker;
use crate::memory::Memory;
use crate::remote::{Logs, Rate, Remote};
use crate::report::Reporter;
use crate::source::Authorities;
use crate::store::Store;
use crate::supervise::{HostProgram, Options, Probe, Supervisor, listen_privately};
use crate::{clock, facts, status};

/// Lines in a row about what comes from outside, and one more every so often.
const NOISE: (u32, Duration) = (20, Duration::from_secs(30));

impl Daemon {
    pub(super) async fn start(
        ground: &Ground,
        config: &Config,
        enrolment: Option<Enrolment>,
        logs: Logs,
    ) -> Result<(Self, Sources), DaemonError> {
        let system = |action| move |source| DaemonError::System { action, source };
        let store = Store::open(Arc::clone(&ground.disk), &config.data)?;
        let run = config.data.join("run");
        make_private(&run).map_err(system("make the run directory"))?;
        make_private(&config.data.join("host")).map_err(system("make the host's directory"))?;
        let Established { mut identity, trust, credentials, distrust, unshown } =
            Identity::establish(&store, enrolment.as_ref())?;
        if let Some(why) = &distrust {
            tracing::error!("nothing is accepted: {why}");
        }
        let key = Arc::new(identity.key(&store)?);
        let epoch = next_epoch(store.database(), clock::system_ms() / 1000)?;
        let broker: BrokerAddress = identity
            .broker
            .parse()
            .map_err(|source| DaemonError::Broker { address: identity.broker.clone(), source })?;

        let (questioned, questions) = mpsc::channel(4);
        let listener = listen_privately(&run.join("agent.sock"))?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(system("use agent.sock"))?;
        tokio::spawn(status::answer(listener, questioned, Taker::new(store.clone())));

        let host_program = HostProgram {
            binary: config.host_binary.clone(),
            modules: config.modules.clone(),
            onnxruntime: config.onnxruntime.clone(),
        };
        let options = Options {
            data: config.data.clone(),
            http: config.http,
            launcher: ground.launcher.clone(),
            host: host_program.clone(),
            outlives: config.host_outlives,
            control: config.host_control.clone(),
        };
        let (host_events, host) = mpsc::channel(16);
        let supervisor = Supervisor::start(options, host_events).await?;

        let floor = Floor::default();
        if let Some(trust) = &trust {
            floor.raise(trust.floor());
        }
        let memory_mib = facts::memory_mib().unwrap_or(u64::from(u32::MAX));
        let (outcome, outcomes) = mpsc::unbounded_channel();
        let parts = Parts {
            store: store.clone(),
            hardware: Hardware { architecture: std::env::consts::ARCH, memory_mib },
            client: supervisor.client().clone(),
            probe: Probe {
                launcher: ground.launcher.clone(),
                host: host_program,
                log: config.data.join("host.log"),
                patience: config.probe,
                memory: config.probe_memory.unwrap_or((memory_mib << 20) / 4 * 3),
                sampled: Memory::default(),
            },
            memory: Memory::default(),
            load: config.load,
            refused_for: REFUSED_FOR,
            traffic: config.traffic.clone(),
            floor: floor.clone(),
            outcomes: outcome,
        };
        let mut activation = Activation::resume(parts, rand::random())?;
        // Newest intent that was ever accepted, in case the agent was killed right after accepting.
        let mut fresh = None;
        if config.http_sources == HttpSources::Allow {
            let authorities = Authorities { file: config.http_ca.clone(), now: tls_time(&floor) };
            activation.allow_sources(authorities);
        }
        if let Some(trust) = &trust {
            match trust.desired(&identity.device) {
                Ok(Some(desired)) => {
                    activation.desire(trust, &desired)?;
                    // It was signed before this run had a nonce.
                    fresh = Some(false);
                }
                Ok(None) => {}
                Err(error) => tracing::error!("the accepted desired state cannot be read: {}", chain(&error)),
            }
        }
        let reporter = Reporter::new(store.clone(), identity.device.clone(), Arc::clone(&key), epoch)?;
        let link = Link::new(identity.device.clone(), key, epoch, config.heartbeat, config.keep_alive);
        let (carried, done) = mpsc::unbounded_channel();
        let remote = Remote::new(logs, config.data.join("host.log"), epoch, carried);
        let nonce: [u8; 16] = rand::random();
        let mut daemon = Self {
            store,
            identity,
            trust,
            floor,
            broker,
            credentials: Machine::start(credentials),
            asking: Asking::default(),
            started: clock::since_boot(),
            activation,
            reporter,
            link,
            remote,
            noise: Rate::new(NOISE.0, NOISE.1),
            nonce: nonce.to_vec(),
            said_accepted: false,
            refused: None,
            fresh,
            latched: distrust.clone(),
            distrust,
            offline: Some("not connected yet".to_owned()),
            hostless: Some("the host is starting".to_owned()),
            unenrolled: None,
            unshown,
            reported: None,
            reported_at: Duration::ZERO,
            refused_at: None,
            introduced_at: None,
            told: VecDeque::new(),
            facts: true,
            disk: DiskHealth::default(),
            dirty: true,
        };
        if let Err(error) = daemon.activation.pursue() {
            daemon.endure(error);
        }
        if let Some(why) = daemon.latched.clone() {
            daemon.told.push_back(Told { kind: "trust-fault", package: None, what: why });
        }
        let inbox = daemon.open_link();
        Ok((daemon, Sources { inbox, host, outcomes, questions, done, supervisor }))
    }
}

fn make_private(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
