//! A broker, and whoever can publish through it, that sends anything: the agent goes on answering, takes
//! no more memory and writes no more log lines than it should.
//!
//! The real program against a broker that the test plays. Messages are made by hand (absurd fields,
//! floods, packets beyond the limit, bytes that are no MQTT) and by proptest (random bytes, and valid
//! messages with bytes changed).
#![allow(clippy::unwrap_used)]

mod played;

use std::time::Duration;

use played::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use selvedge_package::Digest;
use selvedge_package::trust::MetadataBundle;
use selvedge_protocol::envelope::{Body, to_cbor};
use selvedge_protocol::message::{ByteString, Enrolled, Want};
use selvedge_protocol::remote::{Ask, Command as Ordered, Endpoint, InferRequest};
use selvedge_protocol::signed::Purpose;
use selvedge_protocol::topic::{Direction, Kind};
use selvedge_signing::keyring::OnlineKeys;
use tokio::net::TcpListener;

/// More memory than the agent has at rest, in KiB.
const MORE: u64 = 12 * 1024;

/// Messages that are well-formed and absurd.
fn absurd() -> Vec<(Kind, Vec<u8>)> {
    let digest = Digest::of(b"nothing");
    let long = "x".repeat(20_000);
    let request = InferRequest {
        nonce: Vec::new(),
        id: "a".to_owned(),
        within_ms: u32::MAX,
        model: "../../etc".to_owned(),
        version: Some(long.clone()),
        endpoint: Endpoint::Infer,
        content_type: Some("\r\n\r\n".to_owned()),
        header_length: Some(u64::MAX),
        body: vec![7; 60_000],
    };
    let logs = |id: &str, lines| {
        let ask = Ask::Logs { after: Some(u64::MAX), lines };
        Body::Command(Ordered { id: id.to_owned(), within_ms: u32::MAX, nonce: Vec::new(), ask })
    };
    let mut nested = vec![0x81; 100_000];
    nested.push(0);
    let strangers = to_cbor(&MetadataBundle::default()).unwrap();
    let mut messages = vec![
        (Kind::Want, envelope(Body::Want(Want::Pull { digest, size: u64::MAX }))),
        (Kind::Want, envelope(Body::Want(Want::Pull { digest, size: 0 }))),
        (Kind::Want, envelope(Body::Want(Want::Inline(Vec::new())))),
        (Kind::Want, envelope(Body::Want(Want::Inline(vec![0xff; 100_000])))),
        (Kind::Want, envelope(Body::Want(Want::Inline(nested.clone())))),
        (Kind::Want, envelope(Body::Want(Want::Inline(strangers)))),
        (Kind::Ack, envelope(Body::Ack(ByteString(vec![0x84; 100_000])))),
        (Kind::Ack, envelope(Body::Ack(ByteString(Vec::new())))),
        (Kind::Command, envelope(logs(&long, u32::MAX))),
        (Kind::Command, envelope(logs("", 0))),
        (Kind::InferRequest, envelope(Body::InferRequest(request.clone()))),
        (Kind::InferRequest, envelope(Body::InferRequest(InferRequest { id: long.clone(), ..request }))),
        (Kind::Enrolled, envelope(Body::Enrolled(Enrolled::Refused(long.clone())))),
        (Kind::Command, nested.clone()),
        (Kind::Want, b"{\"v\":1,\"body\":".repeat(7000)),
        (
            Kind::Want,
            format!("{{\"v\":99,\"id\":1,\"ep\":1,\"sq\":1,\"ts\":1,\"ty\":\"{long}\"}}").into_bytes(),
        ),
        (Kind::Block, vec![0; 120_000]),
        (Kind::Block, vec![0xff; 9]),
    ];
    // Each under every other topic too: what fits its topic is no surprise.
    for kind in Kind::ALL.iter().filter(|kind| kind.direction() == Direction::Down) {
        messages.push((*kind, envelope(logs("b", 1))));
        messages.push((*kind, nested.clone()));
    }
    messages
}

/// Random payloads, and valid ones with bytes changed, cut and doubled.
fn random() -> impl Strategy<Value = (Kind, Vec<u8>)> {
    let down: Vec<Kind> =
        Kind::ALL.iter().copied().filter(|kind| kind.direction() == Direction::Down).collect();
    let noise = (proptest::sample::select(down), proptest::collection::vec(any::<u8>(), 0..300));
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6);
    let spoilt = (proptest::sample::select(absurd()), changes, any::<proptest::sample::Index>()).prop_map(
        |((kind, mut bytes), changes, cut)| {
            bytes.truncate(4000);
            for (at, byte) in changes.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if !bytes.is_empty() && cut.index(4) == 0 {
                bytes.truncate(cut.index(bytes.len()));
            }
            (kind, bytes)
        },
    );
    prop_oneof![noise, spoilt]
}

#[tokio::test]
async fn whatever_is_sent_the_agent_goes_on_answering() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut agent = Agent::start(listener.local_addr().unwrap().port());
    let heard = Heard::default();
    let broker = Connection::accept(&listener, &heard).await;
    // It takes the device's key, or so it says.
    broker.say(Kind::Enrolled, &envelope(Body::Enrolled(Enrolled::Accepted))).await;
    until("a birth", &heard, |topic, _| *topic == self::topic(Kind::Birth)).await;
    let rest = agent.memory();

    // By hand, and each many times.
    for round in 0..30 {
        for (kind, payload) in absurd() {
            broker.say(kind, &payload).await;
        }
        // Pulls of what nobody has, and blocks for them.
        let digest = Digest::of(&[round]);
        let pull = Want::Pull { digest, size: 1024 * 1024 };
        broker.say(Kind::Want, &envelope(Body::Want(pull))).await;
        for transfer in 0..200u32 {
            let mut block = vec![u8::from(transfer.is_multiple_of(2))];
            block.extend(transfer.to_le_bytes());
            block.extend(u32::MAX.to_le_bytes());
            block.extend(vec![0x18; 500]);
            broker.say(Kind::Block, &block).await;
        }
    }
    let status = agent.status().await;
    assert!(status.connected && !status.enrolled, "{status:?}");
    assert_eq!((status.state.desired, status.state.packages.len()), (0, 0));

    // By proptest.
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = random();
    for _ in 0..4000 {
        let (kind, payload) = strategy.new_tree(&mut runner).unwrap().current();
        broker.say(kind, &payload).await;
    }

    // A question between all that is answered, and once for each command.
    let (keys, nonce) = (agent.keys(), nonce(&heard));
    for n in 0..200 {
        let question = logs(&format!("logs-{}", n % 2), &nonce);
        broker.say(Kind::Command, &seal(&keys, Purpose::Question, DEVICE, question)).await;
    }
    agent.status().await;

    // Beyond the packet limit, and no MQTT at all: the agent gives the connection up and makes another.
    let mut broken = publish(&topic(Kind::Want), b"x");
    broken[3] = 0xff;
    let huge = publish(&topic(Kind::Want), &vec![0; 2 << 20]);
    let mut broker = broker;
    for bytes in [huge, vec![0xf0, 0xff, 0xff, 0xff, 0xff, 0xff], broken] {
        broker.send(&bytes).await;
        broker = Connection::accept(&listener, &heard).await;
        agent.status().await;
    }
    let key = device_key(&heard);
    heard.lock().unwrap().clear();
    // The refill of what floods have used up is waited for by asking again.
    let answer = ask_for_logs(&broker, &heard, &keys, &nonce, &key).await;
    assert!(answer.lines.iter().any(|line| line.source == "agent"), "{answer:?}");
    let more = agent.memory().saturating_sub(rest);
    assert!(more < MORE, "{more} KiB more than before");
    let log = agent.log();
    assert!(log.lines().count() < 150, "{} lines:\n{log}", log.lines().count());
    assert!(log.lines().all(|line| line.len() < 2000));
    assert!(!log.contains("panicked"), "{log}");

    // And it ends when it is told to.
    let pid = rustix::process::Pid::from_raw(agent.process.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    within("its end", async {
        while agent.process.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(agent.process.wait().unwrap().success(), "{}", agent.log());
}

/// Who may ask: the Director that the device trusts, this device, about now. Everything else is not even
/// answered.
#[tokio::test]
async fn questions_that_the_director_did_not_seal_for_now_are_not_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut agent = Agent::start(listener.local_addr().unwrap().port());
    let heard = Heard::default();
    let broker = Connection::accept(&listener, &heard).await;
    broker.say(Kind::Enrolled, &envelope(Body::Enrolled(Enrolled::Accepted))).await;
    until("a birth", &heard, |topic, _| *topic == self::topic(Kind::Birth)).await;
    let (keys, nonce, key) = (agent.keys(), nonce(&heard), device_key(&heard));
    let strangers = agent.place.path().join("strangers");
    selvedge_signing::keyring::init(&strangers, "2026-11-27T00:00:00Z".parse().unwrap()).unwrap();
    let strangers = OnlineKeys::load(&strangers.join("online")).unwrap();
    let infer = |nonce: &[u8]| {
        Body::InferRequest(InferRequest {
            nonce: nonce.to_vec(),
            id: "a".to_owned(),
            within_ms: 60_000,
            model: "p".to_owned(),
            version: None,
            endpoint: Endpoint::Metadata,
            content_type: None,
            header_length: None,
            body: Vec::new(),
        })
    };
    let mut old = nonce.clone();
    old[0] ^= 1;
    for (kind, body) in [(Kind::Command, logs("a", &nonce)), (Kind::InferRequest, infer(&nonce))] {
        let other = if kind == Kind::Command { infer(&nonce) } else { logs("a", &nonce) };
        let aged = |nonce: &[u8]| if kind == Kind::Command { logs("a", nonce) } else { infer(nonce) };
        let mut changed = seal(&keys, Purpose::Question, DEVICE, body.clone());
        let last = changed.len() - 1;
        changed[last] ^= 1;
        for (what, payload) in [
            ("unsealed", envelope(body.clone())),
            ("by a stranger", seal(&strangers, Purpose::Question, DEVICE, body.clone())),
            ("for another device", seal(&keys, Purpose::Question, "edge-2", body.clone())),
            ("as an acknowledgement", seal(&keys, Purpose::Ack, DEVICE, body.clone())),
            ("as an answer", seal(&keys, Purpose::Answer, DEVICE, body.clone())),
            ("of another run of the agent", seal(&keys, Purpose::Question, DEVICE, aged(&old))),
            ("without a nonce", seal(&keys, Purpose::Question, DEVICE, aged(&[]))),
            ("of another kind", seal(&keys, Purpose::Question, DEVICE, other)),
            ("with a changed signature", changed),
        ] {
            broker.say(kind, &payload).await;
            // The agent takes one message after the other: it has seen that one when it answers this.
            let answer = ask_for_logs(&broker, &heard, &keys, &nonce, &key).await;
            assert!(answer.lines.iter().any(|line| line.source == "agent"));
            let answered = answers(&heard, &key);
            assert!(!answered.contains(&"a".to_owned()), "an answer to a {kind:?} {what}: {answered:?}");
        }
    }
    agent.status().await;
}
