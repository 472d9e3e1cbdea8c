//! Messages and acknowledgements that come twice, late, or out of order.

#![allow(clippy::unwrap_used)]

mod brokers;

use std::time::Duration;

use brokers::scripted::{Limits, Scripted, Sent};
use brokers::{connected, disconnected, message, options};
use selvedge_mqtt::{Client, Handle, Inbox, Qos, Session};

fn start(broker: &Scripted) -> (Handle, Inbox) {
    let mut options = options(broker.port(), "edge-1");
    options.session = Session::Kept(Duration::from_secs(3600));
    options.subscriptions = vec![("dn/#".to_owned(), Qos::AtLeastOnce)];
    Client::start(options).unwrap()
}

#[tokio::test]
async fn what_comes_twice_or_out_of_order_is_delivered_as_it_came_and_acknowledged() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for (pkid, text) in [(9, "nine"), (3, "three"), (9, "nine"), (9, "nine again"), (1, "one")] {
        peer.publish("dn/a", 1, pkid, text.as_bytes()).await;
    }
    for (pkid, text) in [(9, "nine"), (3, "three"), (9, "nine"), (9, "nine again"), (1, "one")] {
        assert_eq!(message(&mut inbox).await.1, text.as_bytes());
        assert_eq!(peer.read().await, Sent::PubAck { pkid });
    }
}

#[tokio::test]
async fn acknowledgements_out_of_order_lose_nothing() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    let mut seen = Vec::new();
    for round in 0..6u8 {
        for number in 0..8 {
            client.publish("up/n", Qos::AtLeastOnce, vec![round * 8 + number]).unwrap();
        }
        let mut ids = Vec::new();
        for _ in 0..8 {
            let (payload, pkid) = peer.published().await;
            seen.push(payload[0]);
            ids.push(pkid);
        }
        for at in [7, 0, 3, 1, 6, 2, 5, 4] {
            peer.puback(ids[at]).await;
        }
    }
    assert_eq!(seen, (0..48).collect::<Vec<u8>>());
}

#[tokio::test]
async fn an_acknowledgement_twice_or_of_nothing_loses_no_message() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    client.publish("up/n", Qos::AtLeastOnce, "one").unwrap();
    client.publish("up/n", Qos::AtLeastOnce, "two").unwrap();
    let (_, first) = peer.published().await;
    peer.published().await;
    peer.puback(first).await;
    peer.puback(first).await;
    peer.puback(4711).await;
    // rumqttc may end the connection over it. Whatever it does, the second message is not lost.
    client.publish("up/n", Qos::AtLeastOnce, "three").unwrap();
    let mut texts = Vec::new();
    let mut take = |sent: &Sent| {
        if let Sent::Publish { payload, .. } = sent {
            texts.push(payload.clone());
        }
        texts.contains(&b"two".to_vec()) && texts.contains(&b"three".to_vec())
    };
    let ended = loop {
        match peer.read().await {
            Sent::Gone => break true,
            sent if take(&sent) => break false,
            _ => {}
        }
    };
    if ended {
        disconnected(&mut inbox).await;
        let mut peer = broker.welcome(false, Limits::default()).await;
        loop {
            let sent = peer.read().await;
            if let Sent::Publish { pkid, .. } = &sent {
                peer.puback(*pkid).await;
            }
            if take(&sent) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn an_acknowledgement_for_an_earlier_connection_means_nothing() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    peer.publish("dn/a", 1, 5, b"first").await;
    // Taken only after the connection is lost and another one made: its packet id is another
    // message's by then.
    drop(peer);
    let mut peer = broker.welcome(false, Limits::default()).await;
    peer.publish("dn/a", 1, 5, b"second").await;
    assert_eq!(message(&mut inbox).await.1, b"first");
    assert_eq!(message(&mut inbox).await.1, b"second");
    // One acknowledgement, for the second; what comes next on this connection is the next one's.
    assert_eq!(peer.read().await, Sent::PubAck { pkid: 5 });
    peer.publish("dn/a", 1, 6, b"third").await;
    assert_eq!(message(&mut inbox).await.1, b"third");
    assert_eq!(peer.read().await, Sent::PubAck { pkid: 6 });
}
