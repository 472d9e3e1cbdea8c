//! The embedded broker: sessions, queued and retained messages outlive it, however it ends.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use selvedge_mqtt::{Client, Handle, Inbox, Incoming, Options, Qos, Session};
use support::device::connected;
use support::{Broker, PATIENCE, Running, wait_for};

const TOPIC: &str = "sv/v1/d/a/dn/want";

fn start(broker: &Broker, id: &str, session: Session, subscribe: bool) -> (Handle, Inbox) {
    let mut options = Options::new(broker.url().parse().unwrap(), id);
    options.session = session;
    if subscribe {
        options.subscriptions = vec![("sv/v1/d/a/dn/#".to_owned(), Qos::AtLeastOnce)];
    }
    Client::start(options).unwrap()
}

async fn client(broker: &Broker, id: &str, session: Session, subscribe: bool) -> (Handle, Inbox) {
    let (handle, mut inbox) = start(broker, id, session, subscribe);
    connected(&mut inbox).await;
    (handle, inbox)
}

async fn close(handle: Handle, mut inbox: Inbox) {
    handle.close();
    tokio::time::timeout(PATIENCE, async { while inbox.recv().await.is_some() {} }).await.unwrap();
}

async fn message(inbox: &mut Inbox) -> Vec<u8> {
    let next = async {
        loop {
            if let Incoming::Message { payload, .. } = inbox.recv().await.unwrap() {
                return payload.to_vec();
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.unwrap()
}

fn mosquitto_pub(broker: &Broker, arguments: &[&str]) {
    let (host, port) = broker.address.rsplit_once(':').unwrap();
    let status = Command::new("mosquitto_pub")
        .args(["-V", "5", "-h", host, "-p", port, "-q", "1"])
        .args(arguments)
        .status()
        .expect("mosquitto_pub must be installed: apt-get install mosquitto-clients");
    assert!(status.success());
}

async fn outlives(end: fn(Running)) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path()).await;
    let kept = Session::Kept(Duration::from_secs(3600));

    // Between two clients that are both there, with the largest block.
    let (device, mut inbox) = client(&broker, "device", kept, true).await;
    let (sender, sender_inbox) = client(&broker, "sender", Session::Clean, false).await;
    let block = vec![9_u8; 65_536 + 9];
    sender.publish(TOPIC, Qos::AtMostOnce, block.clone()).unwrap();
    assert_eq!(message(&mut inbox).await, block);

    // The device goes; what is sent meanwhile waits, and retained messages stay.
    close(device, inbox).await;
    close(sender, sender_inbox).await;
    mosquitto_pub(&broker, &["-t", TOPIC, "-m", "queued"]);
    mosquitto_pub(&broker, &["-t", "sv/v1/d/a/dn/kept", "-r", "-m", "retained"]);

    // A queued message is on disk a quarter of a second after it was acknowledged. The retained one
    // is also queued for the device that is away.
    for (name, count) in [("queues/device", 2), ("retained", 1)] {
        let folder = folder.path().join("broker/mqtt").join(name);
        wait_for("the messages on disk", async || {
            let written = |entry: &std::io::Result<std::fs::DirEntry>| {
                entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "json"))
            };
            (std::fs::read_dir(&folder).ok()?.filter(written).count() == count).then_some(())
        })
        .await;
    }

    let broker = broker.again(end).await;
    let (_device, mut inbox) = start(&broker, "device", kept, true);
    let mut got = BTreeSet::new();
    while got.len() < 2 {
        got.insert(message(&mut inbox).await);
    }
    assert_eq!(got, BTreeSet::from([b"queued".to_vec(), b"retained".to_vec()]));
    let (_fresh, mut inbox) = start(&broker, "fresh", Session::Clean, true);
    assert_eq!(message(&mut inbox).await, b"retained");
    broker.running.stop();
}

#[tokio::test]
async fn queued_and_retained_messages_outlive_a_restart() {
    outlives(Running::stop).await;
}

#[tokio::test]
async fn queued_and_retained_messages_outlive_a_kill() {
    outlives(Running::kill).await;
}

#[tokio::test]
async fn other_machines_and_a_second_broker_on_the_same_data_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path()).await;
    let data = folder.path().join("broker");
    let data = data.to_str().unwrap();
    assert!(!Running::start(&["broker", "--anonymous", "--listen", "0.0.0.0:0", "--data", data]).exits());
    assert!(!Running::start(&["broker", "--anonymous", "--listen", "127.0.0.1:0", "--data", data]).exits());
    let (handle, inbox) = client(&broker, "still-there", Session::Clean, false).await;
    close(handle, inbox).await;
}

#[tokio::test]
async fn strangers_cannot_fill_memory_and_disk_with_retained_messages() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path()).await;
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'a'; 20 << 10]).unwrap();
    mosquitto_pub_anyhow(&broker, &["-t", "large", "-r", "-f", large.to_str().unwrap()]);
    // After it in the broker's order: once this one is kept, that one has been judged.
    mosquitto_pub(&broker, &["-t", "small", "-r", "-m", "retained"]);
    let mut options = Options::new(broker.url().parse().unwrap(), "reader");
    // What is retained comes in the order of the filters.
    options.subscriptions = ["large", "small"].map(|topic| (topic.to_owned(), Qos::AtLeastOnce)).into();
    let (_reader, mut inbox) = Client::start(options).unwrap();
    assert_eq!(message(&mut inbox).await, b"retained");
    broker.running.stop();
}

/// As [`mosquitto_pub`], whether the broker takes it or not.
fn mosquitto_pub_anyhow(broker: &Broker, arguments: &[&str]) {
    let (host, port) = broker.address.rsplit_once(':').unwrap();
    Command::new("mosquitto_pub")
        .args(["-V", "5", "-h", host, "-p", port, "-q", "1"])
        .args(arguments)
        .output()
        .expect("mosquitto_pub must be installed: apt-get install mosquitto-clients");
}
