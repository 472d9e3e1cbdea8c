//! A broker that the test plays, and the real agent at it.

#![allow(dead_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_agent::status::{self, Status};
use selvedge_control::Client;
use selvedge_package::DeviceId;
use selvedge_protocol::envelope::{Body, Envelope};
use selvedge_protocol::remote::{Ask, Command as Ordered, Outcome};
use selvedge_protocol::sealed::{self, SealError};
use selvedge_protocol::signed::{PublicKey, Purpose, SignedError};
use selvedge_protocol::topic::{Kind, Topic};
use selvedge_signing::Signer;
use selvedge_signing::keyring::OnlineKeys;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const DEVICE: &str = "edge-1";

/// What the agent published.
pub type Heard = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// The agent's connection: what it sends is read and acknowledged by a task.
pub struct Connection {
    writer: Arc<tokio::sync::Mutex<Box<dyn AsyncWrite + Send + Unpin>>>,
    gone: tokio::task::JoinHandle<()>,
}

pub async fn packet(reader: &mut (impl AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let kind = reader.read_u8().await.ok()?;
    let (mut length, mut shift) = (0usize, 0);
    loop {
        let byte = reader.read_u8().await.ok()?;
        length |= usize::from(byte & 127) << shift;
        shift += 7;
        if byte & 128 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

/// A PUBLISH of QoS 0.
pub fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    let mut rest = 3 + topic.len() + payload.len();
    let mut packet = vec![0x30];
    loop {
        packet.push((rest % 128) as u8 | if rest >= 128 { 128 } else { 0 });
        rest /= 128;
        if rest == 0 {
            break;
        }
    }
    packet.extend((topic.len() as u16).to_be_bytes());
    packet.extend(topic.as_bytes());
    packet.push(0);
    packet.extend(payload);
    packet
}

impl Connection {
    pub async fn accept(listener: &TcpListener, heard: &Heard) -> Self {
        let (stream, _): (TcpStream, _) = within("a connection", listener.accept()).await.unwrap();
        Self::greet(stream, heard).await.unwrap()
    }

    /// On a stream that was accepted; `None` where it ends before it is one of MQTT.
    pub async fn greet(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        heard: &Heard,
    ) -> Option<Self> {
        let (mut reader, writer) = tokio::io::split(stream);
        let mut writer: Box<dyn AsyncWrite + Send + Unpin> = Box::new(writer);
        assert_eq!(within("CONNECT", packet(&mut reader)).await?.0, 0x10);
        writer.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
        let (kind, body) = within("SUBSCRIBE", packet(&mut reader)).await?;
        assert_eq!(kind, 0x82);
        writer.write_all(&[0x90, 4, body[0], body[1], 0, 1]).await.unwrap();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let (answers, heard) = (Arc::clone(&writer), Arc::clone(heard));
        let gone = tokio::spawn(async move {
            while let Some((kind, body)) = packet(&mut reader).await {
                let answer = match kind >> 4 {
                    3 => {
                        let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                        let qos = (kind >> 1) & 3;
                        let at = if qos > 0 { end + 2 } else { end };
                        let payload = body[at + 1 + usize::from(body[at])..].to_vec();
                        let topic = String::from_utf8_lossy(&body[2..end]).into_owned();
                        heard.lock().unwrap().push((topic, payload));
                        if qos > 0 { vec![0x40, 2, body[end], body[end + 1]] } else { Vec::new() }
                    }
                    12 => vec![0xd0, 0],
                    _ => Vec::new(),
                };
                if answers.lock().await.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
        Some(Self { writer, gone })
    }

    /// Whether it could be sent.
    pub async fn send(&self, bytes: &[u8]) -> bool {
        within("room in the socket", async { self.writer.lock().await.write_all(bytes).await }).await.is_ok()
    }

    pub async fn say(&self, kind: Kind, payload: &[u8]) {
        assert!(self.send(&publish(&topic(kind), payload)).await, "the agent broke the connection off");
    }
}

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

pub fn topic(kind: Kind) -> String {
    Topic::new(DEVICE.parse::<DeviceId>().unwrap(), kind).to_string()
}

pub fn envelope(body: Body) -> Vec<u8> {
    Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body }.encode().unwrap()
}

/// The program, ended with the test.
pub struct Agent {
    pub process: Child,
    pub place: tempfile::TempDir,
}

/// Under a Director's seal, for a device.
pub fn seal(keys: &OnlineKeys, purpose: Purpose, device: &str, body: Body) -> Vec<u8> {
    let inner = Envelope { id: 1, epoch: 1, sequence: 1, at_ms: 0, body };
    let device: DeviceId = device.parse().unwrap();
    let sign = |bytes: &[u8]| {
        let signed = keys.director_targets.sign(bytes);
        signed.map_err(|_| SealError::from(SignedError::Key))
    };
    envelope(sealed::seal(purpose, &device, &inner, sign).unwrap())
}

/// The device's key, from the enrolment that it has sealed with it.
pub fn device_key(heard: &Heard) -> PublicKey {
    let heard = heard.lock().unwrap();
    let (_, payload) = heard.iter().find(|(topic, _)| *topic == self::topic(Kind::Enrol)).unwrap();
    let mut key = None;
    let enrol = Envelope::decode(payload).unwrap().body;
    sealed::open_by_its_own(Purpose::Enrol, &DEVICE.parse().unwrap(), &enrol, |body| {
        let Body::Enrol(enrol) = body else { panic!("{body:?}") };
        key = PublicKey::try_from(enrol.public_key.as_slice()).ok();
        key
    })
    .unwrap();
    key.unwrap()
}

/// The nonce of the birth.
pub fn nonce(heard: &Heard) -> Vec<u8> {
    let heard = heard.lock().unwrap();
    let (_, payload) = heard.iter().rfind(|(topic, _)| *topic == self::topic(Kind::Birth)).unwrap();
    match Envelope::decode(payload).unwrap().body {
        Body::Birth(birth) => birth.nonce,
        other => panic!("{other:?}"),
    }
}

pub fn logs(id: &str, nonce: &[u8]) -> Body {
    let ask = Ask::Logs { after: None, lines: 20 };
    Body::Command(Ordered { id: id.to_owned(), within_ms: 60_000, nonce: nonce.to_vec(), ask })
}

/// Puts these keys into the enrolment file.
pub fn change_enrolment(place: &Path, besides: Value) {
    let path = place.join("enrolment.json");
    let mut enrolment: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in besides.as_object().unwrap() {
        enrolment[key] = value.clone();
    }
    std::fs::write(path, enrolment.to_string()).unwrap();
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Agent {
    pub fn start(port: u16) -> Self {
        let broker = json!({ "format": 1, "broker": format!("mqtt://127.0.0.1:{port}") });
        Self::enrolled(broker)
    }

    /// With these keys in its enrolment besides.
    pub fn enrolled(besides: Value) -> Self {
        let place = tempfile::tempdir().unwrap();
        let keys = place.path().join("keys");
        let roots = selvedge_signing::keyring::init(&keys, "2026-11-27T00:00:00Z".parse().unwrap()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let enrolment = json!({
            "device": DEVICE, "kind": "device", "token": "t",
            "image_root": text(&roots.image), "director_root": text(&roots.director),
        });
        std::fs::write(place.path().join("enrolment.json"), enrolment.to_string()).unwrap();
        change_enrolment(place.path(), besides);
        let process = Self::run(place.path());
        Self { process, place }
    }

    /// Ended as by a power cut, and started again.
    pub fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::run(self.place.path());
    }

    fn run(place: &Path) -> Child {
        // A host that never answers: remote inference is refused, as it is while one starts.
        let host = place.join("host");
        std::fs::write(&host, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o700)).unwrap();
        Command::new(env!("CARGO_BIN_EXE_selvedge-agent"))
            .args(["run", "--http", "127.0.0.1:0", "--no-host-outlive", "--data"])
            .arg(place.join("data"))
            .arg("--enrolment")
            .arg(place.join("enrolment.json"))
            .arg("--host-binary")
            .arg(host)
            .stdin(Stdio::null())
            .stderr(std::fs::File::options().create(true).append(true).open(place.join("log")).unwrap())
            .spawn()
            .unwrap()
    }

    pub fn keys(&self) -> OnlineKeys {
        OnlineKeys::load(&self.place.path().join("keys/online")).unwrap()
    }

    /// It answers a person on the device.
    pub async fn status(&mut self) -> Status {
        let client = Client::new(self.place.path().join("data/run/agent.sock"));
        within("an answer of the agent", async {
            loop {
                assert_eq!(self.process.try_wait().unwrap(), None, "it has ended: {}", self.log());
                match client.get(status::PATH, PATIENCE).await {
                    Ok(status) => return status,
                    // It is starting.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await
    }

    pub fn memory(&self) -> u64 {
        let path = Path::new("/proc").join(self.process.id().to_string()).join("status");
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.gone.abort();
    }
}

/// Which questions were answered under the device's seal, by what they were called.
pub fn answers(heard: &Heard, device: &PublicKey) -> Vec<String> {
    let topics = [Kind::CommandResult, Kind::InferAnswer].map(topic);
    let heard = heard.lock().unwrap();
    let answers = heard.iter().filter(|(topic, _)| topics.contains(topic));
    answers.map(|(_, payload)| answer(payload, device).0).collect()
}

/// To which question that is the answer, and what a command came to.
fn answer(payload: &[u8], device: &PublicKey) -> (String, Option<Outcome>) {
    let body = Envelope::decode(payload).unwrap().body;
    let opened = sealed::open(&[*device], Purpose::Answer, &DEVICE.parse().unwrap(), &body).unwrap();
    match opened.body {
        Body::CommandResult(result) => (result.id, Some(result.outcome)),
        Body::InferAnswer(answer) => (answer.id, None),
        other => panic!("{other:?}"),
    }
}

/// Asks until it is answered, under the device's seal: this question, and none that was asked before.
pub async fn ask_for_logs(
    broker: &Connection,
    heard: &Heard,
    keys: &OnlineKeys,
    nonce: &[u8],
    device: &PublicKey,
) -> selvedge_protocol::remote::LogLines {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = format!("last-{}-", CALLS.fetch_add(1, Ordering::SeqCst));
    for n in 0..600 {
        let question = seal(keys, Purpose::Question, DEVICE, logs(&format!("{call}{n}"), nonce));
        broker.say(Kind::Command, &question).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let heard = heard.lock().unwrap();
        let results = heard.iter().filter(|(topic, _)| *topic == self::topic(Kind::CommandResult));
        let mut results = results.map(|(_, payload)| answer(payload, device));
        match results.find(|(id, _)| id.starts_with(&call)) {
            Some((_, Some(Outcome::Logs(lines)))) => return lines,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("no answer to a command: {:?}", heard.lock().unwrap().iter().map(|(t, _)| t).collect::<Vec<_>>());
}

pub async fn until(what: &str, heard: &Heard, enough: impl Fn(&String, &[u8]) -> bool) {
    within(what, async {
        while !heard.lock().unwrap().iter().any(|(topic, payload)| enough(topic, payload)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
