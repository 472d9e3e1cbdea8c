//! A whole conversation without a broker: a device that verifies as the real one does, and others
//! who say in its name whatever they like.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_mqtt::Incoming;
use selvedge_package::draft::Draft;
use selvedge_package::trust::{MetadataBundle, TrustError, TrustState, accept};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::block::Frame;
use selvedge_protocol::envelope::{Body, Envelope, from_cbor, to_cbor};
use selvedge_protocol::message::{
    Accepted, Ack, Birth, ByteString, Clock, DeviceState, Enrol, Enrolled, Need, PackageReport, Refusal,
    ReleaseRef, Report, ReportBody, Rows, Want,
};
use selvedge_protocol::sealed::{SealError, seal};
use selvedge_protocol::signed::{PrivateKey, PublicKey, Purpose, sign, verify};
use selvedge_protocol::topic::{Kind, Topic};

use super::director::LEAP;
use super::repository::{Device as Memory, Image};
use super::session::Parts;
use super::*;
use crate::ceremony::passphrase::PassphraseArgs;
use crate::exit::Exit;
use crate::output::Output;
use crate::packaging::authoring::{Content, Sources};
use crate::packaging::layout::write;

const NAME: &str = "edge-1";
const TOKEN: &str = "the token";

/// Keys, a package, and the memory of pushes: what outlives a push.
struct Place {
    dir: tempfile::TempDir,
    ring: Ring,
    layout: Layout,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        crate::commands::keys::init(&keys).unwrap();
        let manifest = Draft::from_toml(
            "name='a'\nversion='1.0.0'\nrelease=1\nmodels=[{name='m',file='m.onnx'}]\n\
             inputs=[{name='x',datatype='FP32',shape=[1]}]\noutputs=[{name='y',datatype='FP32',shape=[1]}]\n\
             acceptance={cases=['c.json']}",
        )
        .unwrap()
        .finish()
        .unwrap();
        let content = |bytes: Vec<u8>| Content::Bytes(bytes);
        let files = [("m.onnx", content(vec![7; 3 << 20])), ("c.json", content(b"{}".to_vec()))];
        let files = files.into_iter().map(|(path, content)| (path.parse().unwrap(), content)).collect();
        let layout = write(&dir.path().join("pkg"), Sources { manifest, files }, |_| {}).await.unwrap();
        let place = Self { ring: Ring::load(&keys, &PassphraseArgs::default()).unwrap(), layout, dir };
        let repository = place.repository("push").await;
        let mut memory = Memory::new(name());
        memory.token = Some(Digest::of(TOKEN.as_bytes()));
        repository.keep_device(&memory).unwrap();
        place
    }

    async fn repository(&self, folder: &str) -> Repository {
        Repository::open(&self.dir.path().join(folder)).await.unwrap()
    }

    /// A session as `run` makes it, and what it publishes.
    fn push<'a>(&'a self, repository: &'a Repository, take_over: bool) -> (Session<'a>, Published) {
        let memory = repository.device(&name()).unwrap().unwrap();
        let mut image = repository.image().unwrap();
        self.ring.take_roots(&mut image).unwrap();
        let start = Start::of(&image, &memory).unwrap();
        release::release(&mut image, &self.ring, self.layout.bundle(), clock::now()).unwrap();
        let assignments = assignments(&memory, self.layout.bundle(), BTreeMap::new(), false);
        let manifest = self.layout.manifest();
        let goal = Goal {
            package: manifest.name.clone(),
            version: manifest.version.to_string(),
            release: manifest.release,
            digest: self.layout.bundle().digest(),
            size: self.layout.bundle().size(),
        };
        let parts = Parts {
            out: Output::new(true),
            repository,
            ring: &self.ring,
            image,
            device: memory,
            start,
            goal,
            assignments,
            layout: &self.layout,
            take_over,
            always: false,
            deadline: Deadline::after(Duration::from_secs(60)),
        };
        let published = Published::default();
        let sink = published.0.clone();
        let (dir, device) = (repository.dir().to_owned(), name());
        let publish = move |topic: String, _, payload: Vec<u8>| {
            let topic = Topic::parse(&topic).unwrap();
            assert_eq!(topic.device, device, "only this device is spoken to");
            if topic.kind == Kind::Want {
                durable(&dir, &payload);
            }
            sink.lock().unwrap().push((topic.kind, payload));
            Ok(())
        };
        (Session::new(parts, Box::new(publish)), published)
    }
}

/// Before a desired state is published, its numbers are on the disk.
fn durable(dir: &Path, payload: &[u8]) {
    let Body::Want(Want::Inline(bytes)) = Envelope::decode(payload).unwrap().body else { return };
    let bundle: MetadataBundle = from_cbor(&bytes).unwrap();
    let memory: Memory =
        serde_json::from_slice(&std::fs::read(dir.join("devices/edge-1.json")).unwrap()).unwrap();
    assert_eq!(memory.signed.unwrap().timestamp.as_bytes(), bundle.director.timestamp);
    let image: Image = serde_json::from_slice(&std::fs::read(dir.join("repository.json")).unwrap()).unwrap();
    assert_eq!(image.timestamp.unwrap().as_bytes(), bundle.image.timestamp);
}

type Messages = Vec<(Kind, Vec<u8>)>;

#[derive(Default)]
struct Published(Arc<Mutex<Messages>>);

impl Published {
    fn take(&self, kind: Kind) -> Vec<Vec<u8>> {
        let mut all = self.0.lock().unwrap();
        let (taken, left) = std::mem::take(&mut *all).into_iter().partition(|(held, _)| *held == kind);
        *all = left;
        taken.into_iter().map(|(_, payload)| payload).collect()
    }

    /// The newest desired state.
    fn want(&self) -> Option<Vec<u8>> {
        let payload = self.take(Kind::Want).pop()?;
        match Envelope::decode(&payload).unwrap().body {
            Body::Want(Want::Inline(bytes)) => Some(bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// A device that believes what the real one believes.
struct Device {
    key: PrivateKey,
    trust: TrustState,
    sequence: u64,
}

impl Device {
    fn new(place: &Place) -> Self {
        let roots = ring::newest(&place.dir.path().join("keys")).unwrap();
        let trust = TrustState::enrol(&roots.image, &roots.director, clock::now()).unwrap();
        Self { key: PrivateKey::generate().unwrap().0, trust, sequence: 0 }
    }

    fn accept(&mut self, bytes: &[u8]) -> Result<u64, TrustError> {
        let bundle: MetadataBundle = from_cbor(bytes).unwrap();
        let accepted = accept(&self.trust, &bundle, &name(), Some(clock::now()))?;
        self.trust = accepted.state;
        Ok(accepted.desired.sequence)
    }

    fn birth(&self) -> Birth {
        let (image, director) = self.trust.accepted_versions();
        birth(self.trust.sequence(), Accepted { image, director })
    }

    fn enrol(&self) -> Body {
        self.sealed(TOKEN, self.key.public().0.to_vec())
    }

    fn sealed(&self, token: &str, public_key: Vec<u8>) -> Body {
        let body = Body::Enrol(Enrol::new(&name(), token, public_key, Vec::new()));
        let inner = Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body };
        seal::<SealError>(Purpose::Enrol, &name(), &inner, |bytes| Ok(self.key.raw(bytes))).unwrap()
    }

    fn row(&mut self, body: ReportBody) -> ByteString {
        self.sequence += 1;
        let report = Report { epoch: 1, sequence: self.sequence, at_ms: 0, clock: Clock::Free, body };
        ByteString(sign(&self.key, Purpose::Report, &name(), to_cbor(&report).unwrap()).unwrap())
    }

    /// Reports that it runs the package, or what it refuses.
    fn state(&mut self, place: &Place, refused: Option<&str>) -> Body {
        let bundle = place.layout.bundle();
        let manifest = bundle.manifest();
        let packages = vec![PackageReport {
            name: manifest.name.clone(),
            committed: Some(ReleaseRef {
                release: manifest.release,
                version: manifest.version.to_string(),
                digest: bundle.digest(),
            }),
            pending: None,
            serving: true,
            failure: None,
        }];
        let desired = self.trust.sequence();
        let refused = refused.map(str::to_owned);
        let row = self.row(ReportBody::State(DeviceState {
            generation: 1,
            desired,
            refused,
            packages,
            fresh: None,
        }));
        Body::State(Rows { rows: vec![row] })
    }
}

fn name() -> DeviceId {
    NAME.parse().unwrap()
}

fn birth(desired: u64, accepted: Accepted) -> Birth {
    Birth {
        agent: "0".to_owned(),
        capabilities: Vec::new(),
        largest_block: 65_536,
        generation: 0,
        desired,
        image_root: 1,
        director_root: 1,
        nonce: b"nonce".to_vec(),
        accepted,
    }
}

fn raw(session: &mut Session<'_>, topic: &str, payload: &[u8]) -> Result<(), Failure> {
    session.incoming(Incoming::Message { topic: topic.to_owned(), payload: payload.to_vec().into() })
}

fn say(session: &mut Session<'_>, kind: Kind, body: Body) -> Result<(), Failure> {
    let envelope = Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body };
    raw(session, &Topic::new(name(), kind).to_string(), &envelope.encode().unwrap())
}

fn connect(session: &mut Session<'_>) {
    session.incoming(Incoming::Connected { session_present: false, maximum_packet: 131_072 }).unwrap();
}

fn ask(session: &mut Session<'_>, digest: Digest, count: u32) {
    let mut missing = vec![0; (count as usize).div_ceil(8)];
    for bit in 0..count as usize {
        missing[bit / 8] |= 1 << (bit % 8);
    }
    let need = Need { transfer: 3, digest, block: 16_384, first: 0, missing, count };
    say(session, Kind::Need, Body::Need(need)).unwrap();
}

/// Enrols the device, lets it accept and report that it runs the package.
fn runs(place: &Place, device: &mut Device, repository: &Repository, take_over: bool) -> u64 {
    let (mut session, published) = place.push(repository, take_over);
    connect(&mut session);
    say(&mut session, Kind::Enrol, device.enrol()).unwrap();
    say(&mut session, Kind::Birth, Body::Birth(device.birth())).unwrap();
    let sequence = device.accept(&published.want().unwrap()).unwrap();
    let state = device.state(place, None);
    say(&mut session, Kind::State, state).unwrap();
    assert!(session.judge(Duration::ZERO).unwrap());
    sequence
}

fn numbers(repository: &Repository) -> (u64, u64, [u64; 3]) {
    let memory = repository.device(&name()).unwrap().unwrap();
    (memory.sequence, memory.version, release::versions(&repository.image().unwrap()).unwrap())
}

#[tokio::test]
async fn a_device_enrols_accepts_pulls_and_reports() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    let (mut session, published) = place.push(&repository, false);
    assert!(!session.judge(Duration::ZERO).unwrap());
    connect(&mut session);
    // It may be there and enrolled all the while, so it is told at once.
    assert_eq!(device.accept(&published.want().unwrap()).unwrap(), 1);

    // Before its key is known it gets no blob of the package.
    let config = place.layout.bundle().oci().config.digest;
    ask(&mut session, config, 1);
    let refused = published.take(Kind::Block);
    assert!(matches!(
        Frame::decode(&refused[0]).unwrap(),
        Frame::Refusal { transfer: 3, refusal: Refusal::Unknown }
    ));
    // Not sealed, or by another key than the one that is shown: dropped, whatever the token.
    let own = device.key.public().0.to_vec();
    let open = Enrol::new(&name(), TOKEN, own.clone(), Vec::new());
    say(&mut session, Kind::Enrol, Body::Enrol(open)).unwrap();
    let other = Device::new(&place);
    say(&mut session, Kind::Enrol, other.sealed(TOKEN, own.clone())).unwrap();
    assert!(published.take(Kind::Enrolled).is_empty());
    say(&mut session, Kind::Enrol, device.sealed("x", own)).unwrap();
    say(&mut session, Kind::Enrol, device.enrol()).unwrap();
    let answers: Vec<Body> =
        published.take(Kind::Enrolled).iter().map(|bytes| Envelope::decode(bytes).unwrap().body).collect();
    assert!(matches!(answers[0], Body::Enrolled(Enrolled::Refused(_))));
    assert_eq!(answers[1], Body::Enrolled(Enrolled::Accepted));
    ask(&mut session, config, 1);
    let frames = published.take(Kind::Block);
    let Frame::Block { bytes, .. } = Frame::decode(&frames[0]).unwrap() else { panic!("a block") };
    assert_eq!(Digest::of(bytes), config);
    // What is not of the package does not exist for it.
    ask(&mut session, Digest::of(b"/etc/passwd"), 1);
    assert!(matches!(Frame::decode(&published.take(Kind::Block)[0]).unwrap(), Frame::Refusal { .. }));

    // The nonce of its birth is echoed; the sequence stays, since nothing else has changed.
    say(&mut session, Kind::Birth, Body::Birth(device.birth())).unwrap();
    assert_eq!(device.accept(&published.want().unwrap()).unwrap(), 1);
    let state = device.state(&place, None);
    say(&mut session, Kind::State, state).unwrap();
    let Body::Ack(ack) = Envelope::decode(&published.take(Kind::Ack)[0]).unwrap().body else {
        panic!("an ack")
    };
    let director = device.trust.director_keys().unwrap()[0];
    let ack: Ack = from_cbor(&verify(&PublicKey(director), Purpose::Ack, &name(), &ack.0).unwrap()).unwrap();
    assert_eq!(ack.rows, [(1, 1)]);
    assert!(session.judge(Duration::ZERO).unwrap());
}

#[tokio::test]
async fn a_second_push_goes_on_where_the_first_ended() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    assert_eq!(runs(&place, &mut device, &repository, false), 1);
    let before = numbers(&repository);
    // What it reported last holds until it says otherwise.
    let (mut session, _) = place.push(&repository, false);
    assert!(!session.judge(Duration::ZERO).unwrap(), "it must have been told first");
    connect(&mut session);
    assert!(session.judge(Duration::ZERO).unwrap());
    drop(session);
    assert_eq!(runs(&place, &mut device, &repository, false), 1);
    let after = numbers(&repository);
    assert!(after.0 == before.0 && after.1 >= before.1 && after.2 == before.2, "{before:?} {after:?}");
}

#[tokio::test]
async fn forged_births_do_not_use_the_numbers_up() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    runs(&place, &mut device, &repository, false);
    let before = numbers(&repository);
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    for number in [u64::MAX, u64::MAX - 1, i64::MAX as u64, LEAP * 2] {
        for accepted in [
            Accepted { image: [number; 3], director: [0; 3] },
            Accepted { image: [0; 3], director: [number; 3] },
        ] {
            say(&mut session, Kind::Birth, Body::Birth(birth(1, accepted))).unwrap();
        }
        say(&mut session, Kind::Birth, Body::Birth(birth(number, Accepted::default()))).unwrap();
    }
    let after = numbers(&repository);
    assert_eq!(after.0, before.0);
    assert!(after.1 < before.1 + 20 && after.2[0] < before.2[0] + 20, "{before:?} {after:?}");
    // What is within belief is followed, but never further than that, however often it is claimed.
    for step in 0..50 {
        let claimed = LEAP - 50 + step;
        let accepted = Accepted { image: [claimed; 3], director: [claimed; 3] };
        session.parts.deadline = Deadline::after(Duration::from_secs(60));
        say(&mut session, Kind::Birth, Body::Birth(birth(1, accepted))).unwrap();
        let (_, version, image) = numbers(&repository);
        let accepted = Accepted { image, director: [version; 3] };
        say(&mut session, Kind::Birth, Body::Birth(birth(1, accepted))).unwrap();
    }
    let after = numbers(&repository);
    assert!(after.1 < before.1 + LEAP + 100 && after.2[0] < before.2[0] + LEAP + 100, "{before:?} {after:?}");
    // And the device itself takes what was signed last.
    let last = published.want();
    assert!(last.is_none_or(|bytes| device.accept(&bytes).is_ok()));
}

#[tokio::test]
async fn a_claim_of_another_director_is_told_and_not_followed() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    runs(&place, &mut device, &repository, false);
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    // Anyone can say so: the push goes on, and the true device is still told.
    say(&mut session, Kind::Birth, Body::Birth(birth(77, Accepted::default()))).unwrap();
    assert_eq!(numbers(&repository).0, 1);
    assert_eq!(device.accept(&published.want().unwrap()).unwrap(), 1);
    // Signed by the device, it is true.
    let row = device.row(ReportBody::State(DeviceState { desired: 77, ..DeviceState::default() }));
    say(&mut session, Kind::State, Body::State(Rows { rows: vec![row] })).unwrap();
    assert_eq!(session.judge(Duration::ZERO).unwrap_err().exit(), Exit::Conflict);
}

#[tokio::test]
async fn a_device_is_taken_over_from_another_director() {
    let place = Place::new().await;
    let mut device = Device::new(&place);
    // The other one has the same keys, and has used the same numbers and more.
    let other = place.repository("push").await;
    for nonce in 0..8u8 {
        let (mut session, published) = place.push(&other, false);
        connect(&mut session);
        say(&mut session, Kind::Enrol, device.enrol()).unwrap();
        let mut birth = device.birth();
        birth.nonce = vec![nonce];
        say(&mut session, Kind::Birth, Body::Birth(birth)).unwrap();
        device.accept(&published.want().unwrap()).unwrap();
    }
    let held = device.trust.accepted_versions();
    let own = place.repository("own").await;
    let mut memory = Memory::new(name());
    memory.public_key = Some(selvedge_signing::PublicKey::from_bytes(device.key.public().0));
    own.keep_device(&memory).unwrap();
    assert!(runs(&place, &mut device, &own, true) >= 2);
    let taken = device.trust.accepted_versions();
    assert!(taken.0.iter().zip(held.0).all(|(now, then)| *now > then), "{held:?} {taken:?}");
    assert!(taken.1.iter().zip(held.1).all(|(now, then)| *now > then), "{held:?} {taken:?}");
}

#[tokio::test]
async fn a_memory_that_went_back_is_caught_up_with() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    let device_file = repository.device_path(&name());
    let image_file = repository.dir().join("repository.json");
    runs(&place, &mut device, &repository, false);
    let old = (std::fs::read(&device_file).unwrap(), std::fs::read(&image_file).unwrap());
    // Another nonce makes another signature under the next number, which is then forgotten.
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    let mut other = device.birth();
    other.nonce = b"another".to_vec();
    say(&mut session, Kind::Birth, Body::Birth(other)).unwrap();
    device.accept(&published.want().unwrap()).unwrap();
    drop(session);
    std::fs::write(&device_file, &old.0).unwrap();
    std::fs::write(&image_file, &old.1).unwrap();

    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    let mut third = device.birth();
    third.nonce = b"a third".to_vec();
    say(&mut session, Kind::Birth, Body::Birth(third)).unwrap();
    assert!(device.accept(&published.want().unwrap()).is_ok(), "its birth says what it has accepted");
}

#[tokio::test]
async fn a_refusal_is_answered_once_and_then_believed() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    say(&mut session, Kind::Enrol, device.enrol()).unwrap();
    say(&mut session, Kind::Birth, Body::Birth(device.birth())).unwrap();
    let first = published.want().unwrap();
    let before = numbers(&repository);
    let state = device.state(&place, Some("bad-assignment: used before"));
    say(&mut session, Kind::State, state).unwrap();
    assert!(!session.judge(Duration::ZERO).unwrap());
    let after = numbers(&repository);
    assert!(after.0 > before.0 && after.1 > before.1 && after.2[0] > before.2[0], "{before:?} {after:?}");
    assert_ne!(published.want().unwrap(), first);
    // It has a while to take that; then its word holds.
    assert!(!session.judge(Duration::from_secs(1)).unwrap());
    assert_eq!(session.judge(Duration::from_secs(3600)).unwrap_err().exit(), Exit::Untrusted);
}

#[tokio::test]
async fn rubbish_changes_nothing() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    runs(&place, &mut device, &repository, false);
    let before = (numbers(&repository), repository.device(&name()).unwrap());
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    published.0.lock().unwrap().clear();
    let foreign =
        Envelope { id: 1, epoch: 2, sequence: 1, at_ms: 0, body: Body::Birth(birth(3, Accepted::default())) };
    let foreign = foreign.encode().unwrap();
    let nested = vec![0x81; 100_000];
    for kind in Kind::ALL {
        let own = Topic::new(name(), *kind).to_string();
        for payload in [&b""[..], b"{", b"\xff\xff", &nested, &vec![0; 2 << 20]] {
            raw(&mut session, &own, payload).unwrap();
        }
        // A message of a type on a topic of another.
        if *kind != Kind::Birth {
            raw(&mut session, &own, &foreign).unwrap();
        }
        raw(&mut session, &Topic::new("edge-2".parse().unwrap(), *kind).to_string(), &foreign).unwrap();
    }
    for topic in ["", "sv/v1", "other", "sv/v1/d/edge-1/up/birth/x", "sv/v1/d/../up/birth"] {
        raw(&mut session, topic, &foreign).unwrap();
    }
    let (thief, _) = PrivateKey::generate().unwrap();
    let report = Report {
        epoch: u64::MAX,
        sequence: u64::MAX,
        at_ms: 0,
        clock: Clock::Free,
        body: ReportBody::State(DeviceState { desired: u64::MAX, ..DeviceState::default() }),
    };
    let row = ByteString(sign(&thief, Purpose::Report, &name(), to_cbor(&report).unwrap()).unwrap());
    say(&mut session, Kind::State, Body::State(Rows { rows: vec![row; 1000] })).unwrap();
    assert!(published.0.lock().unwrap().is_empty(), "nothing is answered");
    assert_eq!((numbers(&repository), repository.device(&name()).unwrap()), before);
}

#[tokio::test]
async fn blocks_are_paced_whoever_asks() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut device = Device::new(&place);
    runs(&place, &mut device, &repository, false);
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    let model = place.layout.bundle().files().find(|file| file.path.as_str() == "m.onnx").unwrap().digest;
    let (mut sent, mut busy) = (0, 0);
    // One request brings a window at most; a flood of them is told to wait.
    for _ in 0..100 {
        ask(&mut session, model, 192);
        for payload in published.take(Kind::Block) {
            match Frame::decode(&payload).unwrap() {
                Frame::Block { bytes, .. } => sent += bytes.len(),
                Frame::Refusal { refusal: Refusal::Busy { retry_after_ms }, .. } => {
                    assert!(retry_after_ms > 0);
                    busy += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // What may go is what flows in meanwhile, and a window more; a slow machine never gets there.
    let most =
        (8 << 20) + ((64 << 20) as f64 * session.parts.deadline.elapsed().as_secs_f64()) as usize + (2 << 20);
    assert!(sent >= 8 << 20 && sent <= most, "{sent} bytes of {most}, {busy} times busy");
    assert!(busy > 0 || most > 100 << 20, "{sent} bytes were sent at once");
}

#[tokio::test]
async fn a_list_that_was_split_goes_on_and_the_device_gets_its_own_branch() {
    let place = Place::new().await;
    let repository = place.repository("push").await;
    let mut image = repository.image().unwrap();
    place.ring.take_roots(&mut image).unwrap();
    let root = image.image_roots.last().unwrap().clone();
    let mut files: Option<selvedge_package::trust::ImageFiles> = None;
    for number in 1..=100u64 {
        let mut target = selvedge_signing::image::ImageTarget::of(place.layout.bundle());
        target.custom.package = format!("other-{number}").parse().unwrap();
        let expires =
            selvedge_signing::lifetimes::expiry(clock::now(), selvedge_signing::lifetimes::IMAGE_TARGETS);
        let keys = place.ring.signers();
        let changed =
            selvedge_signing::tree::add_release(root.as_bytes(), files.as_ref(), &target, expires, &keys);
        files = Some(changed.unwrap().on(files.as_ref()));
    }
    let files = files.unwrap();
    image.targets = Some(String::from_utf8(files.targets).unwrap());
    image.bins =
        files.bins.into_iter().map(|(role, file)| (role, String::from_utf8(file).unwrap())).collect();
    assert!(image.bins.len() > 10);
    repository.keep_image(&image).unwrap();

    let mut device = Device::new(&place);
    let (mut session, published) = place.push(&repository, false);
    connect(&mut session);
    say(&mut session, Kind::Enrol, device.enrol()).unwrap();
    say(&mut session, Kind::Birth, Body::Birth(device.birth())).unwrap();
    let want = published.want().unwrap();
    let bundle: MetadataBundle = from_cbor(&want).unwrap();
    assert_eq!(bundle.image.delegated.len(), 1, "its own branch and no other");
    assert_eq!(device.accept(&want).unwrap(), 1);
}
