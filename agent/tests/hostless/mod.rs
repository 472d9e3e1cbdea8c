//! The driver of a device whose host never comes.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use selvedge_agent::activate::{Activation, Outcome, Parts};
use selvedge_agent::fetch::Hardware;
use selvedge_agent::memory::Memory;
use selvedge_agent::store::Store;
use selvedge_agent::supervise::{HostProgram, Probe};
use selvedge_control::Client;
use tokio::sync::mpsc;

pub fn driver(store: &Store) -> (Activation, mpsc::UnboundedReceiver<Outcome>) {
    let (sender, outcomes) = mpsc::unbounded_channel();
    let parts = Parts {
        store: store.clone(),
        hardware: Hardware { architecture: "x86_64", memory_mib: 1000 },
        client: Client::new(store.root().join("control.sock")),
        probe: Probe {
            launcher: "/bin/false".into(),
            host: HostProgram { binary: "/bin/false".into(), modules: None, onnxruntime: None },
            log: store.root().join("host.log"),
            patience: Duration::from_secs(30),
            memory: 1 << 30,
            sampled: Memory::default(),
        },
        memory: Memory::default(),
        load: Duration::from_secs(30),
        refused_for: Duration::from_secs(480),
        traffic: Default::default(),
        floor: Default::default(),
        outcomes: sender,
    };
    (Activation::resume(parts, 1).unwrap(), outcomes)
}
