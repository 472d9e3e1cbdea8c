//! The registry's side of the conversation, played by the test: it hears everything, answers what an
//! honest registry would, and can be told to be silent or to say anything else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use selvedge_mqtt::{Client, Handle, Inbox, Incoming, Options, PublishError, Tls};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::{answer, block_frame, refusal_frame};
use selvedge_protocol::envelope::{Body, Envelope, from_cbor, to_cbor};
use selvedge_protocol::message::{Ack, ByteString, Enrolled, Need, Refusal, Report, Rows};
use selvedge_protocol::sealed;
use selvedge_protocol::signed::{self, Purpose, SignedError};
use selvedge_protocol::topic::{Kind, Qos, Topic};
use selvedge_signing::Signer as _;
use selvedge_tests::wait;

use crate::forge::Key;

/// What an attacker's registry leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silence {
    /// Reports are not acknowledged.
    pub acks: bool,
    /// Enrolments are not answered.
    pub enrolments: bool,
    /// Requests for blocks are not answered.
    pub blocks: bool,
}

/// What is shared with the thread.
#[derive(Default)]
pub struct Shared {
    /// Every message of the device that is no request for blocks.
    pub heard: Vec<(Kind, Envelope)>,
    /// Reports that came, read without regard to their signature.
    pub reports: Vec<Report>,
    /// What may be pulled.
    pub blobs: HashMap<Digest, Vec<u8>>,
    /// What is left out.
    pub silence: Silence,
    /// Signs acknowledgements.
    pub key: Option<Key>,
    /// Whether there is a connection.
    connected: bool,
}

/// The registry.
pub struct Registry {
    pub device: DeviceId,
    pub shared: Arc<Mutex<Shared>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    sequence: u64,
}

impl Registry {
    /// Connects to the broker at this URL.
    pub fn start(broker: &str, tls: Option<Tls>, device: &DeviceId, key: Key) -> Self {
        let shared = Arc::new(Mutex::new(Shared { key: Some(key), ..Shared::default() }));
        let mut options = Options::new(broker.parse().unwrap(), "registry");
        options.tls = tls;
        options.subscriptions = vec![(Topic::subscription_registry(), Qos::AtLeastOnce)];
        let (given, taken) = std::sync::mpsc::channel();
        let (theirs, about) = (Arc::clone(&shared), device.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let (handle, inbox) = Client::start(options).unwrap();
                given.send(handle.clone()).unwrap();
                listen(handle, inbox, &about, &theirs).await;
            });
        });
        let handle = taken.recv().unwrap();
        Self { device: device.clone(), shared, handle, thread: Some(thread), sequence: 0 }
    }

    /// Says something to the device.
    pub fn say(&mut self, kind: Kind, body: Body) {
        self.sequence += 1;
        let envelope = Envelope { id: self.sequence, epoch: 1, sequence: self.sequence, at_ms: 0, body };
        self.publish(kind, envelope.encode().unwrap());
    }

    /// Publishes bytes to the device.
    pub fn publish(&self, kind: Kind, payload: Vec<u8>) {
        let topic = Topic::new(self.device.clone(), kind).to_string();
        wait::until("room in the queue to the broker", || {
            match self.handle.publish(topic.clone(), kind.qos(), payload.clone()) {
                Ok(()) => Ok(()),
                Err(PublishError::Full(messages)) => Err(messages),
                Err(error) => panic!("{error}"),
            }
        });
    }

    /// Waits until it is heard by the broker.
    pub fn wait_connected(&self) {
        wait::until("the registry to be connected", || match self.shared.lock().unwrap().connected {
            true => Ok(()),
            false => Err(()),
        });
    }

    /// Messages of this kind so far.
    pub fn heard(&self, kind: Kind) -> Vec<Envelope> {
        let shared = self.shared.lock().unwrap();
        shared.heard.iter().filter(|(heard, _)| *heard == kind).map(|(_, said)| said.clone()).collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.handle.close();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn listen(handle: Handle, mut inbox: Inbox, device: &DeviceId, shared: &Mutex<Shared>) {
    while let Some(incoming) = inbox.recv().await {
        let (topic, payload) = match incoming {
            Incoming::Message { topic, payload } => (topic, payload),
            Incoming::Connected { .. } => {
                shared.lock().unwrap().connected = true;
                continue;
            }
            Incoming::Disconnected { .. } => {
                shared.lock().unwrap().connected = false;
                continue;
            }
            _ => continue,
        };
        let (Ok(topic), Ok(envelope)) = (Topic::parse(&topic), Envelope::decode(&payload)) else { continue };
        if topic.device != *device {
            continue;
        }
        let mut shared = shared.lock().unwrap();
        match &envelope.body {
            Body::Need(need) if !shared.silence.blocks => serve(&handle, device, need, &shared.blobs),
            Body::Need(_) => continue,
            Body::State(rows) => reported(&handle, device, rows, &mut shared),
            Body::Enrol(_) | Body::Signed(_) if topic.kind == Kind::Enrol && !shared.silence.enrolments => {
                tell(&handle, device, Kind::Enrolled, Body::Enrolled(Enrolled::Accepted));
            }
            _ => {}
        }
        if topic.kind != Kind::Need {
            shared.heard.push((topic.kind, envelope));
        }
    }
}

fn tell(handle: &Handle, device: &DeviceId, kind: Kind, body: Body) {
    let envelope = Envelope { id: 0, epoch: 0, sequence: 0, at_ms: 0, body };
    let topic = Topic::new(device.clone(), kind).to_string();
    let _ = handle.publish(topic, kind.qos(), envelope.encode().unwrap());
}

/// Sends the blocks that are asked for.
fn serve(handle: &Handle, device: &DeviceId, need: &Need, blobs: &HashMap<Digest, Vec<u8>>) {
    let topic = Topic::new(device.clone(), Kind::Block).to_string();
    let send = |payload: Vec<u8>| drop(handle.publish(topic.clone(), Kind::Block.qos(), payload));
    let Some(blob) = blobs.get(&need.digest) else {
        return send(refusal_frame(need.transfer, &Refusal::Unknown).unwrap());
    };
    for span in answer(need, blob.len() as u64).into_iter().flatten() {
        let start = usize::try_from(span.offset).unwrap();
        let bytes = &blob[start..start + span.length as usize];
        send(block_frame(need.transfer, span.number, bytes).unwrap());
    }
}

/// Keeps reports, and acknowledges them.
fn reported(handle: &Handle, device: &DeviceId, rows: &Rows, shared: &mut Shared) {
    let read = |row: &ByteString| from_cbor::<Report>(&signed::payload(&row.0).ok()?).ok();
    let reports: Vec<Report> = rows.rows.iter().filter_map(read).collect();
    let rows = reports.iter().map(|report| (report.epoch, report.sequence)).collect();
    shared.reports.extend(reports);
    if let (Some(key), false) = (&shared.key, shared.silence.acks) {
        let ack = ack(key, device, rows);
        tell(handle, device, Kind::Ack, Body::Ack(ByteString(ack)));
    }
}

/// An acknowledgement that this key signs.
pub fn ack(key: &Key, device: &DeviceId, rows: Vec<(u64, u64)>) -> Vec<u8> {
    let payload = to_cbor(&Ack { device: device.clone(), rows, fleet: 0 }).unwrap();
    signed::sign_with::<SignedError>(Purpose::Ack, device, payload, |bytes| {
        key.sign(bytes).map_err(|_| SignedError::Key)
    })
    .unwrap()
}

/// A message that this key seals for the device.
pub fn sealed(key: &Key, purpose: Purpose, device: &DeviceId, body: Body) -> Body {
    let inner = Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body };
    sealed::seal::<sealed::SealError>(purpose, device, &inner, |bytes| {
        key.sign(bytes).map_err(|_| SignedError::Key.into())
    })
    .unwrap()
}
