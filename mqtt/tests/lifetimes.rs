//! Messages that are worth nothing after a while: what the broker is told, and what it never gets.

#![allow(clippy::unwrap_used)]

mod brokers;

use std::time::Duration;

use brokers::mosquitto::Mosquitto;
use brokers::scripted::{Limits, Peer, Scripted, Sent};
use brokers::{connected, disconnected, message, options};
use selvedge_mqtt::{Client, Handle, Inbox, Options, Qos, Session};

fn kept(port: u16) -> Options {
    let mut options = options(port, "registry");
    options.session = Session::Kept(Duration::from_secs(3600));
    options.subscriptions = vec![("up/#".to_owned(), Qos::AtLeastOnce)];
    options
}

fn start(broker: &Scripted) -> (Handle, Inbox) {
    Client::start(kept(broker.port())).unwrap()
}

async fn publish(peer: &mut Peer) -> (Vec<u8>, Option<u32>, u16) {
    loop {
        if let Sent::Publish { payload, expiry, pkid, .. } = peer.read().await {
            return (payload, expiry, pkid);
        }
    }
}

#[tokio::test]
async fn the_broker_is_told_the_rest_in_seconds_rounded_up() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for (lifetime, seconds) in [(29_999, Some(30)), (1, Some(1)), (u64::MAX / 2, Some(u32::MAX))] {
        let lifetime = Duration::from_millis(lifetime);
        client.publish_within("dn/cmd", Qos::AtMostOnce, "question", lifetime).unwrap();
        // Nothing that is over is sent at all, should the machine have stood still for a second.
        if seconds != Some(1) {
            assert_eq!(publish(&mut peer).await.1, seconds);
        }
    }
    client.publish("dn/want", Qos::AtLeastOnce, "for ever").unwrap();
    loop {
        let (payload, expiry, _) = publish(&mut peer).await;
        if payload == b"for ever" {
            assert_eq!(expiry, None);
            return;
        }
        assert_eq!(expiry, Some(1));
    }
}

#[tokio::test]
async fn the_lifetime_goes_on_while_there_is_no_connection() {
    for session_kept in [true, false] {
        let broker = Scripted::start(None);
        let (client, mut inbox) = start(&broker);
        let mut peer = broker.welcome(false, Limits::default()).await;
        connected(&mut inbox).await;
        let short = Duration::from_secs(1);
        client.publish_within("dn/cmd", Qos::AtLeastOnce, "sent, over", short).unwrap();
        client.publish_within("dn/cmd", Qos::AtLeastOnce, "sent", Duration::from_secs(100)).unwrap();
        let sent = [publish(&mut peer).await, publish(&mut peer).await];
        assert_eq!((sent[0].1, sent[1].1), (Some(1), Some(100)));
        drop(peer);
        disconnected(&mut inbox).await;
        client.publish_within("dn/cmd", Qos::AtLeastOnce, "waits, over", short).unwrap();
        client.publish_within("dn/cmd", Qos::AtLeastOnce, "waits", Duration::from_secs(100)).unwrap();
        let mut peer = broker.accept().await;
        // This is what the test is about: time passes while nothing can be sent.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        peer.connack(session_kept, Limits::default()).await;
        let mut got = Vec::new();
        while got.len() < 2 {
            match peer.read().await {
                Sent::Subscribe { pkid, .. } => peer.suback(pkid, &[1]).await,
                Sent::Publish { payload, pkid, expiry, dup, .. } => {
                    peer.puback(pkid).await;
                    assert!(expiry.unwrap() < 100, "{expiry:?}: what waited is counted");
                    assert_eq!(dup, session_kept && payload == b"sent");
                    got.push(payload);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, [b"sent".to_vec(), b"waits".to_vec()], "session kept: {session_kept}");
    }
}

#[tokio::test]
async fn what_is_over_makes_room_for_others() {
    let broker = Scripted::start(None);
    let mut options = kept(broker.port());
    options.outbox.messages = 2;
    let (client, _inbox) = Client::start(options).unwrap();
    for _ in 0..2 {
        client.publish_within("dn/cmd", Qos::AtLeastOnce, "over", Duration::ZERO).unwrap();
    }
    client.publish("dn/want", Qos::AtLeastOnce, "well").unwrap();
    let mut peer = broker.welcome(false, Limits::default()).await;
    assert_eq!(publish(&mut peer).await.0, b"well");
}

#[tokio::test]
async fn mosquitto_drops_what_is_over_for_a_device_that_is_away() {
    let broker = Mosquitto::start("").await;
    let device = || {
        let mut options = options(broker.port(), "edge-1");
        options.session = Session::Kept(Duration::from_secs(3600));
        options.subscriptions = vec![("dn/#".to_owned(), Qos::AtLeastOnce)];
        options
    };
    let (away, mut away_inbox) = Client::start(device()).unwrap();
    connected(&mut away_inbox).await;
    away.close();
    while away_inbox.recv().await.is_some() {}

    let (client, mut inbox) = Client::start(kept(broker.port())).unwrap();
    connected(&mut inbox).await;
    client.publish_within("dn/cmd", Qos::AtLeastOnce, "over", Duration::from_secs(1)).unwrap();
    client.publish_within("dn/cmd", Qos::AtLeastOnce, "well", Duration::from_secs(100)).unwrap();
    // The lifetime at the broker is what passes here.
    tokio::time::sleep(Duration::from_millis(2200)).await;
    client.publish("dn/cmd", Qos::AtLeastOnce, "end").unwrap();
    let (_device, mut device_inbox) = Client::start(device()).unwrap();
    let mut got = Vec::new();
    while got.last().is_none_or(|last: &Vec<u8>| last != b"end") {
        got.push(message(&mut device_inbox).await.1);
    }
    assert_eq!(got, [b"well".to_vec(), b"end".to_vec()]);
}
