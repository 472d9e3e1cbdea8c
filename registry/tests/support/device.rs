//! A device that speaks the protocol by hand, so that a test can also speak it badly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use selvedge_mqtt::{Client, ClientCredential, Handle, Inbox, Incoming, Options, Tls, TlsTime};
use selvedge_package::trust::{Accepted, MetadataBundle, TrustState, accept};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::Frame;
use selvedge_protocol::envelope::{Body, Envelope, from_cbor, to_cbor};
use selvedge_protocol::message::{
    Ack, Birth, ByteString, Clock, Enrol, Enrolled, Need, Refusal, Report, ReportBody, Rows, Want,
};
use selvedge_protocol::sealed::{self, SealError};
use selvedge_protocol::signed::{PrivateKey, PublicKey, Purpose, sign, verify};
use selvedge_protocol::topic::{Kind, Qos, Topic};
use serde_json::Value;

use super::PATIENCE;

/// The device.
pub struct Device {
    pub id: DeviceId,
    pub handle: Handle,
    pub inbox: Inbox,
    pub key: PrivateKey,
    pub token: String,
    pub state: TrustState,
    pub epoch: u64,
    /// What its births say that it can do.
    pub capabilities: Vec<String>,
    /// What its births say that it has accepted, instead of the truth.
    pub claims: selvedge_protocol::message::Accepted,
    pub desired: Option<u64>,
    sequence: u64,
}

impl Device {
    /// Connect with what an enrolment file says.
    pub async fn connect(enrolment: &Value) -> Self {
        let text = |part: &str| enrolment["credential"][part].as_str().map(|text| text.as_bytes().to_vec());
        let credential = text("certificate").zip(text("key"));
        let mut device = Self::begin(enrolment, credential);
        connected(&mut device.inbox).await;
        device
    }

    /// The same, showing the broker another certificate (chain and key as PEM); may never be connected.
    pub fn begin(enrolment: &Value, credential: Option<(Vec<u8>, Vec<u8>)>) -> Self {
        let text = |field: &str| enrolment[field].as_str().unwrap().to_owned();
        let id: DeviceId = text("device").parse().unwrap();
        let mut options = Options::new(text("broker").parse().unwrap(), id.to_string());
        options.subscriptions = vec![(Topic::subscription_device(&id), Qos::AtLeastOnce)];
        options.inbox.bytes = 16 << 20;
        options.tls = credential.map(|(chain, key)| Tls {
            ca: text("broker_ca").into_bytes(),
            name: None,
            client: Some(ClientCredential { chain, key }),
            now: Arc::new(|| TlsTime { at: SystemTime::now(), synchronised: true }),
        });
        let (handle, inbox) = Client::start(options).unwrap();
        let floor = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24);
        let (image, director) = (text("image_root"), text("director_root"));
        let state = TrustState::enrol(image.as_bytes(), director.as_bytes(), floor).unwrap();
        let key = PrivateKey::generate().unwrap().0;
        Self {
            id,
            handle,
            inbox,
            key,
            token: text("token"),
            state,
            epoch: 1,
            capabilities: Vec::new(),
            claims: selvedge_protocol::message::Accepted::default(),
            desired: None,
            sequence: 0,
        }
    }

    pub fn publish(&self, kind: Kind, payload: Vec<u8>) {
        let topic = Topic::new(self.id.clone(), kind).to_string();
        self.handle.publish(topic, kind.qos(), payload).unwrap();
    }

    pub fn send(&mut self, kind: Kind, body: Body) {
        self.sequence += 1;
        let (epoch, sequence) = (self.epoch, self.sequence);
        let envelope = Envelope { id: sequence, epoch, sequence, at_ms: 0, body };
        self.publish(kind, envelope.encode().unwrap());
    }

    /// As [`Device::send`], sealed by the device's key.
    pub fn send_sealed(&mut self, kind: Kind, purpose: Purpose, body: Body) {
        let body = self.sealed(purpose, body);
        self.send(kind, body);
    }

    /// A message sealed by the device's key.
    pub fn sealed(&self, purpose: Purpose, body: Body) -> Body {
        let inner = Envelope { id: self.sequence, epoch: self.epoch, sequence: 0, at_ms: 0, body };
        sealed::seal::<SealError>(purpose, &self.id, &inner, |bytes| Ok(self.key.raw(bytes))).unwrap()
    }

    /// The next question, which the Director must have sealed.
    pub async fn question(&mut self, kind: Kind) -> Body {
        let outer = Envelope::decode(&self.receive(kind).await).unwrap();
        let keys: Vec<PublicKey> = self.state.director_keys().unwrap().into_iter().map(PublicKey).collect();
        sealed::open(&keys, Purpose::Question, &self.id, &outer.body).unwrap().body
    }

    /// The next message on a topic; others are dropped.
    pub async fn receive(&mut self, kind: Kind) -> Vec<u8> {
        let wanted = Topic::new(self.id.clone(), kind).to_string();
        let found = async {
            loop {
                match self.inbox.recv().await.unwrap() {
                    Incoming::Message { topic, payload } if topic == wanted => return payload.to_vec(),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {wanted}"))
    }

    /// Whether nothing comes on a topic before the registry has answered something else that was
    /// asked later (a request for a blob that does not exist).
    pub async fn nothing_on(&mut self, kind: Kind) -> bool {
        self.ask(Digest::of(b"no such blob"), 4096, 0xffff_0000, 1, 1);
        loop {
            match tokio::time::timeout(PATIENCE, self.inbox.recv()).await.unwrap().unwrap() {
                Incoming::Message { topic, payload } => {
                    let topic = Topic::parse(&topic).unwrap();
                    if topic.kind == kind {
                        return false;
                    }
                    if topic.kind == Kind::Block
                        && let Ok(Frame::Refusal { transfer: 0xffff_0000, .. }) = Frame::decode(&payload)
                    {
                        return true;
                    }
                }
                _ => continue,
            }
        }
    }

    pub async fn enrol(&mut self) -> Enrolled {
        self.enrol_with(&[]).await
    }

    /// Enrol, asking for a certificate.
    pub async fn enrol_with(&mut self, csr: &[u8]) -> Enrolled {
        let public_key = self.key.public().0.to_vec();
        let enrol = Body::Enrol(Enrol::new(&self.id, &self.token, public_key, csr.to_vec()));
        self.send_sealed(Kind::Enrol, Purpose::Enrol, enrol);
        self.enrolled().await
    }

    /// The next message on a topic, if one comes in so many milliseconds.
    pub async fn within(&mut self, kind: Kind, milliseconds: u64) -> Option<Body> {
        let patience = Duration::from_millis(milliseconds);
        let payload = tokio::time::timeout(patience, self.receive(kind)).await.ok()?;
        Some(Envelope::decode(&payload).unwrap().body)
    }

    /// The next answer to an enrolment.
    pub async fn enrolled(&mut self) -> Enrolled {
        match Envelope::decode(&self.receive(Kind::Enrolled).await).unwrap().body {
            Body::Enrolled(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn birth(&mut self, nonce: &[u8], largest_block: u32) {
        let birth = Birth {
            agent: "0.1.0".to_owned(),
            capabilities: self.capabilities.clone(),
            largest_block,
            generation: 0,
            desired: self.desired.unwrap_or_else(|| self.state.sequence()),
            image_root: self.state.image_root_version().unwrap(),
            director_root: self.state.director_root_version().unwrap(),
            nonce: nonce.to_vec(),
            accepted: self.claims,
        };
        self.send(Kind::Birth, Body::Birth(birth));
    }

    pub async fn want(&mut self) -> Want {
        match Envelope::decode(&self.receive(Kind::Want).await).unwrap().body {
            Body::Want(want) => want,
            other => panic!("{other:?}"),
        }
    }

    /// The next desired state, which must come inline and be acceptable.
    pub async fn accepts(&mut self) -> Accepted {
        match self.want().await {
            Want::Inline(bytes) => self.accept(&bytes),
            other => panic!("{other:?}"),
        }
    }

    /// Accepts desired states until one has these packages and releases.
    pub async fn shall_run(&mut self, expected: &[(&str, u64)]) -> Accepted {
        let expected: Vec<(String, u64)> =
            expected.iter().map(|(name, release)| ((*name).to_owned(), *release)).collect();
        loop {
            let accepted = self.accepts().await;
            let found = accepted.desired.assignments.iter();
            let found: Vec<_> =
                found.map(|assignment| (assignment.package.to_string(), assignment.release)).collect();
            if found == expected {
                return accepted;
            }
        }
    }

    pub fn accept(&mut self, bytes: &[u8]) -> Accepted {
        let bundle: MetadataBundle = from_cbor(bytes).unwrap();
        let accepted = accept(&self.state, &bundle, &self.id, Some(jiff::Timestamp::now())).unwrap();
        self.state = accepted.state.clone();
        accepted
    }

    /// Ask for `count` blocks from `first` on.
    pub fn ask(&mut self, digest: Digest, block: u32, transfer: u32, first: u32, count: u32) {
        let mut missing = vec![0_u8; count.div_ceil(8) as usize];
        for bit in 0..count {
            missing[bit as usize / 8] |= 1 << (bit % 8);
        }
        self.send(Kind::Need, Body::Need(Need { transfer, digest, block, first, missing, count }));
    }

    /// Pull a whole blob, or be refused.
    pub async fn pull(&mut self, digest: Digest, size: u64, block: u32) -> Result<Vec<u8>, Refusal> {
        let blocks = u32::try_from(size.div_ceil(u64::from(block))).unwrap();
        let mut have: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        while (have.len() as u32) < blocks {
            let first = (0..blocks).find(|number| !have.contains_key(number)).unwrap();
            let count = (blocks - first).min(16);
            self.ask(digest, block, 7, first, count);
            let wanted = (first..first + count).filter(|number| !have.contains_key(number)).count();
            let mut got = 0;
            while got < wanted {
                let payload = self.receive(Kind::Block).await;
                match Frame::decode(&payload).unwrap() {
                    Frame::Block { transfer: 7, number, bytes } => {
                        got += 1;
                        have.insert(number, bytes.to_vec());
                    }
                    Frame::Refusal { transfer: 7, refusal: Refusal::Busy { retry_after_ms } } => {
                        tokio::time::sleep(Duration::from_millis(retry_after_ms.into())).await;
                        break;
                    }
                    Frame::Refusal { transfer: 7, refusal } => return Err(refusal),
                    // What an earlier question brought.
                    _ => {}
                }
            }
        }
        Ok(have.into_values().flatten().collect())
    }

    pub fn report(&self, epoch: u64, sequence: u64, body: ReportBody) -> ByteString {
        self.report_by(&self.key, epoch, sequence, body)
    }

    pub fn report_by(&self, key: &PrivateKey, epoch: u64, sequence: u64, body: ReportBody) -> ByteString {
        let report = Report { epoch, sequence, at_ms: 1_700_000_000_000, clock: Clock::Free, body };
        ByteString(sign(key, Purpose::Report, &self.id, to_cbor(&report).unwrap()).unwrap())
    }

    /// Any payload as a report.
    pub fn sign_report(&self, payload: &[u8]) -> ByteString {
        ByteString(sign(&self.key, Purpose::Report, &self.id, payload.to_vec()).unwrap())
    }

    pub fn send_rows(&mut self, rows: Vec<ByteString>) {
        self.send(Kind::State, Body::State(Rows { rows }));
    }

    /// The newest row of the next acknowledgement.
    pub async fn ack(&mut self, director_targets: &PublicKey) -> (u64, u64) {
        self.acknowledged(director_targets).await.into_iter().max().unwrap()
    }

    /// The rows of the next acknowledgement, signed by `director_targets`.
    pub async fn acknowledged(&mut self, director_targets: &PublicKey) -> Vec<(u64, u64)> {
        let payload = self.receive(Kind::Ack).await;
        let Body::Ack(signed) = Envelope::decode(&payload).unwrap().body else { panic!("no ack") };
        let payload = verify(director_targets, Purpose::Ack, &self.id, &signed.0).unwrap();
        let ack: Ack = from_cbor(&payload).unwrap();
        assert_eq!(ack.device, self.id);
        ack.rows
    }
}

/// Waits until a client is connected.
pub async fn connected(inbox: &mut Inbox) {
    let wait = async { while !matches!(inbox.recv().await.unwrap(), Incoming::Connected { .. }) {} };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}
