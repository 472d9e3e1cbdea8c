//! A second connection in the place of one that is silent while something is awaited.

#![allow(clippy::unwrap_used)]

mod brokers;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brokers::scripted::{Limits, Peer, Scripted, Sent};
use brokers::{connected, message, soon};
use rcgen::{CertificateParams, KeyPair};
use selvedge_mqtt::{Client, Handle, Inbox, Incoming, Options, Qos, Tls, TlsTime, Will};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Longer than what is awaited in bulk may be silent, and than a dial that is answered at once takes.
const CUT: Duration = Duration::from_secs(4);
/// Less than dials rest after one that was in vain.
const REST: Duration = Duration::from_secs(3);

/// A broker that speaks TLS as 127.0.0.1, and the authority to believe.
fn broker() -> (Scripted, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
        .unwrap();
    (Scripted::start_tls(config), certificate.pem().into_bytes())
}

fn options(broker: &Scripted, ca: &[u8]) -> Options {
    let mut options = Options::new(format!("mqtts://127.0.0.1:{}", broker.port()).parse().unwrap(), "edge-1");
    #[expect(clippy::disallowed_methods, reason = "the certificate was made now")]
    let now = || TlsTime { at: SystemTime::now(), synchronised: true };
    options.tls = Some(Tls { ca: ca.to_vec(), name: None, client: None, now: Arc::new(now) });
    options.second = true;
    options.subscriptions = vec![("dn/#".to_owned(), Qos::AtLeastOnce)];
    options.will = Some(Will { topic: "up/will".to_owned(), qos: Qos::AtLeastOnce, payload: b"x".to_vec() });
    options
}

/// A client that awaits much, and its first connection.
async fn start(broker: &Scripted, ca: &[u8]) -> (Handle, Inbox, Peer) {
    let (client, mut inbox) = Client::start(options(broker, ca)).unwrap();
    let mut peer = broker.welcome(false, Limits::default()).await;
    assert!(peer.clean_start && peer.will);
    connected(&mut inbox).await;
    // Its broker's addresses are looked up meanwhile.
    sleep(Duration::from_millis(200)).await;
    client.awaits(true);
    client.publish("up/need", Qos::AtMostOnce, "much").unwrap();
    assert_eq!(peer.published().await.0, b"much");
    (client, inbox, peer)
}

/// Fills the broker's queue of connections, so that further ones are not answered, as over a link that is
/// cut.
async fn cut(broker: &Scripted) -> TcpStream {
    soon("the filler", TcpStream::connect(("127.0.0.1", broker.port()))).await.unwrap()
}

/// The same after the silence of a cut: the way is open again, once the filler has been taken.
async fn mend(broker: &Scripted, filler: TcpStream) {
    drop(filler);
    broker.take().await;
}

/// The link works still: a message each way.
async fn carries(client: &Handle, inbox: &mut Inbox, peer: &mut Peer) {
    client.publish("up/x", Qos::AtLeastOnce, "there?").unwrap();
    let (payload, pkid) = peer.published().await;
    assert_eq!(payload, b"there?");
    peer.puback(pkid).await;
    peer.publish("dn/x", 0, 0, b"here").await;
    assert_eq!(message(inbox).await.1, b"here");
}

#[tokio::test]
async fn it_takes_the_place_of_a_silent_one_when_the_way_is_open_and_nothing_is_lost() {
    let (broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    let filler = cut(&broker).await;
    // One that arrives, but whose acknowledgement is lost, and one that the broker sent.
    client.publish("up/n", Qos::AtLeastOnce, "one").unwrap();
    let (payload, pkid) = old.published().await;
    assert_eq!(payload, b"one");
    sleep(CUT).await;
    client.publish("up/n", Qos::AtLeastOnce, "two").unwrap();
    mend(&broker, filler).await;

    let mut new = broker.accept().await;
    assert!(!new.clean_start, "the session goes on");
    assert!(new.will);
    new.connack(true, Limits::default()).await;
    // The broker says to the old one that it has been replaced: nothing comes of that.
    old.raw(&[0xe0, 2, 0x8e, 0]).await;
    drop(old);
    assert!(matches!(soon("an event", inbox.recv()).await, Some(Incoming::Connected { .. })));
    let mut came = Vec::new();
    let mut subscribed = false;
    while came.len() < 2 || !subscribed {
        match new.read().await {
            Sent::Publish { payload, pkid: id, dup, .. } => {
                assert!(came.len() < 2, "none of them comes twice");
                assert!(payload != b"one" || (dup && id == pkid), "the broker can tell that it has it");
                new.puback(id).await;
                came.push(payload);
            }
            Sent::Subscribe { pkid, .. } => {
                subscribed = true;
                new.suback(pkid, &[1]).await;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(came, [b"one".to_vec(), b"two".to_vec()]);
    new.publish("dn/x", 1, 7, b"again").await;
    assert_eq!(message(&mut inbox).await.1, b"again");
    assert_eq!(new.read().await, Sent::PubAck { pkid: 7 });
    carries(&client, &mut inbox, &mut new).await;
}

#[tokio::test]
async fn a_broker_without_the_session_is_subscribed_to_before_anything_is_asked() {
    let (broker, ca) = broker();
    let (client, mut inbox, _old) = start(&broker, &ca).await;
    let filler = cut(&broker).await;
    client.publish("up/n", Qos::AtLeastOnce, "one").unwrap();
    sleep(CUT).await;
    mend(&broker, filler).await;
    let mut new = broker.accept().await;
    new.connack(false, Limits::default()).await;
    connected(&mut inbox).await;
    client.publish("up/n", Qos::AtLeastOnce, "two").unwrap();
    new.subscribed().await;
    assert_eq!(new.published().await.0, b"one");
    assert_eq!(new.published().await.0, b"two");
}

#[tokio::test]
async fn the_old_one_is_kept_when_it_speaks_first() {
    let (broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    let filler = cut(&broker).await;
    sleep(CUT).await;
    mend(&broker, filler).await;
    let mut second = broker.hello().await;
    old.publish("dn/x", 0, 0, b"back").await;
    assert_eq!(message(&mut inbox).await.1, b"back");
    // At once, and not when the broker has been silent there for too long.
    assert!(second.ends(CUT).await, "the second connection is closed before it has said who it is");
    carries(&client, &mut inbox, &mut old).await;
}

#[tokio::test]
async fn what_takes_every_connection_and_says_nothing_costs_nothing() {
    let (broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    let filler = cut(&broker).await;
    sleep(CUT).await;
    mend(&broker, filler).await;
    let mut second = broker.hello().await;
    assert!(second.ends(5 * CUT).await, "it is given up");
    carries(&client, &mut inbox, &mut old).await;
}

#[tokio::test]
async fn who_cannot_prove_to_be_the_broker_is_told_nothing_and_the_old_one_is_kept() {
    let (broker, ca) = broker();
    let (other, _) = self::broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    let filler = cut(&broker).await;
    sleep(CUT).await;
    mend(&broker, filler).await;
    let second = broker.hello().await;
    assert!(other.handshake(second).await.is_err(), "its certificate is another's");
    carries(&client, &mut inbox, &mut old).await;
}

#[tokio::test]
async fn who_awaits_nothing_dials_nobody() {
    let (broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    client.awaits(false);
    carries(&client, &mut inbox, &mut old).await;
    assert!(timeout(2 * CUT, broker.take()).await.is_err(), "nobody comes");
    carries(&client, &mut inbox, &mut old).await;
}

#[tokio::test]
async fn a_way_that_was_open_all_the_time_is_dialled_once_and_not_again() {
    let (broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    let mut dial = broker.take().await;
    assert!(dial.ends_in_silence(CUT).await, "it says nothing");
    assert!(timeout(REST, broker.take()).await.is_err(), "nobody else comes");
    carries(&client, &mut inbox, &mut old).await;
}

#[tokio::test]
async fn a_dial_that_is_refused_is_no_answer() {
    let (mut broker, ca) = broker();
    let (client, mut inbox, mut old) = start(&broker, &ca).await;
    broker.close();
    sleep(CUT).await;
    // Had a refusal been one, whoever answers now would not be the first after dials in vain.
    broker.open();
    let mut second = broker.hello().await;
    old.publish("dn/x", 0, 0, b"back").await;
    assert_eq!(message(&mut inbox).await.1, b"back");
    assert!(second.ends(CUT).await);
    carries(&client, &mut inbox, &mut old).await;
}

/// The connection in the old one's place, of which the CONNECT has been read.
async fn replaced(broker: &Scripted) -> Peer {
    let filler = cut(broker).await;
    sleep(CUT).await;
    mend(broker, filler).await;
    broker.accept().await
}

async fn ended(inbox: &mut Inbox) {
    while inbox.recv().await.is_some() {}
}

#[tokio::test]
async fn without_a_confirmed_subscription_nobody_is_told_of_the_new_one_before_it_is_made() {
    let (broker, ca) = broker();
    let (client, mut inbox) = Client::start(options(&broker, &ca)).unwrap();
    let mut old = broker.accept().await;
    old.connack(false, Limits::default()).await;
    assert!(matches!(old.read().await, Sent::Subscribe { .. }));
    client.awaits(true);
    client.publish("up/need", Qos::AtMostOnce, "much").unwrap();
    assert_eq!(old.published().await.0, b"much");
    let mut new = replaced(&broker).await;
    new.connack(true, Limits::default()).await;
    let Sent::Subscribe { pkid, .. } = new.read().await else { panic!("a SUBSCRIBE") };
    assert!(timeout(Duration::from_secs(1), inbox.recv()).await.is_err(), "answers would go nowhere");
    new.suback(pkid, &[1]).await;
    connected(&mut inbox).await;
    carries(&client, &mut inbox, &mut new).await;
}

#[tokio::test]
async fn closing_does_not_wait_for_a_broker_that_does_not_accept_the_new_one() {
    let (broker, ca) = broker();
    let (client, mut inbox, old) = start(&broker, &ca).await;
    let _new = replaced(&broker).await;
    drop(old);
    sleep(Duration::from_millis(200)).await;
    client.close();
    timeout(Duration::from_secs(8), ended(&mut inbox)).await.expect("it ends");
}

#[tokio::test]
async fn goodbye_is_said_on_the_connection_that_takes_the_place() {
    let (broker, ca) = broker();
    let (client, mut inbox, _old) = start(&broker, &ca).await;
    let mut new = replaced(&broker).await;
    let goodbye = async {
        sleep(Duration::from_millis(300)).await;
        new.connack(true, Limits::default()).await;
        while new.read().await != Sent::Disconnect {}
    };
    client.close();
    timeout(Duration::from_secs(8), async { tokio::join!(ended(&mut inbox), goodbye) })
        .await
        .expect("it ends");
}
