//! rumqttc's known faults, each provoked by a broker that misbehaves or merely changes its mind.

#![allow(clippy::unwrap_used)]

mod brokers;

use std::time::Duration;

use brokers::scripted::{Limits, Scripted, Sent};
use brokers::{connected, disconnected, message, next, options, soon};
use selvedge_mqtt::{Client, Handle, Inbox, Incoming, Options, Qos, Session};

fn kept(broker: &Scripted) -> Options {
    let mut options = options(broker.port(), "edge-1");
    options.session = Session::Kept(Duration::from_secs(3600));
    options.subscriptions = vec![("dn/#".to_owned(), Qos::AtLeastOnce)];
    options.keep_alive = Duration::from_secs(5);
    options
}

fn start(broker: &Scripted) -> (Handle, Inbox) {
    Client::start(kept(broker)).unwrap()
}

#[tokio::test]
async fn an_oversize_publish_of_a_kept_session_is_dropped_and_named() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    client.publish("up/large", Qos::AtLeastOnce, vec![1; 60_000]).unwrap();
    client.publish("up/small", Qos::AtLeastOnce, "first").unwrap();
    assert_eq!(peer.published().await.0.len(), 60_000);
    drop(peer);
    disconnected(&mut inbox).await;
    client.publish("up/large", Qos::AtLeastOnce, vec![2; 50_000]).unwrap();
    client.publish("up/small", Qos::AtLeastOnce, "second").unwrap();

    let mut peer = broker.accept().await;
    assert!(!peer.clean_start);
    let limits = Limits { maximum_packet: Some(16_384), ..Limits::default() };
    peer.connack(true, limits).await;
    for _ in 0..2 {
        let topic = next(&mut inbox, "what was dropped", |event| match event {
            Incoming::Dropped { topic, size } if size > 16_384 => Some(topic),
            _ => None,
        });
        assert_eq!(topic.await, "up/large");
    }
    let mut texts = Vec::new();
    while texts.len() < 2 {
        match peer.read().await {
            Sent::Subscribe { pkid, .. } => peer.suback(pkid, &[1]).await,
            Sent::Publish { payload, pkid, .. } => {
                peer.puback(pkid).await;
                texts.push(payload);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(texts, [b"first".to_vec(), b"second".to_vec()]);
}

#[tokio::test]
async fn a_collision_and_then_a_lost_session_block_nothing() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let limits = || Limits { receive_maximum: Some(3), ..Limits::default() };
    let mut peer = broker.welcome(false, limits()).await;
    connected(&mut inbox).await;
    for number in 0..10u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
    }
    // Acknowledging the last first makes the client's next packet id collide.
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(peer.published().await.1);
    }
    peer.puback(ids[2]).await;
    // When the second of these has arrived, the client has tried to send on.
    for marker in [b"first", b"other"] {
        peer.publish("dn/marker", 0, 0, marker).await;
        assert_eq!(message(&mut inbox).await.1, marker);
    }
    drop(peer);
    disconnected(&mut inbox).await;
    let mut peer = broker.welcome(false, limits()).await;
    let mut numbers = Vec::new();
    while numbers.len() < 9 {
        let (payload, pkid) = peer.published().await;
        peer.puback(pkid).await;
        numbers.push(payload[0]);
    }
    numbers.sort();
    numbers.dedup();
    assert!(numbers.len() >= 9, "{numbers:?}");
    client.publish("up/n", Qos::AtLeastOnce, "still alive").unwrap();
    while peer.published().await.0 != b"still alive" {}
}

#[tokio::test]
async fn a_receive_maximum_that_shrinks_blocks_nothing() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for number in 0..10u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
        let (_, pkid) = peer.published().await;
        peer.puback(pkid).await;
    }
    drop(peer);
    disconnected(&mut inbox).await;
    let limits = Limits { receive_maximum: Some(2), ..Limits::default() };
    let mut peer = broker.welcome(false, limits).await;
    connected(&mut inbox).await;
    for number in 10..20u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
        let (payload, pkid) = peer.published().await;
        assert_eq!(payload, [number]);
        peer.puback(pkid).await;
    }
}

#[tokio::test]
async fn a_kept_session_gets_unacknowledged_messages_again_with_their_ids() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    client.publish("up/n", Qos::AtLeastOnce, "one").unwrap();
    let (_, first) = peer.published().await;
    drop(peer);
    disconnected(&mut inbox).await;
    let mut peer = broker.accept().await;
    peer.connack(true, Limits::default()).await;
    let Sent::Publish { payload, pkid, dup, .. } = peer.read().await else { panic!("a PUBLISH") };
    assert_eq!((payload.as_slice(), pkid, dup), (&b"one"[..], first, true));
    peer.puback(pkid).await;
    peer.subscribed().await;
    connected(&mut inbox).await;
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_left() {
    let broker = Scripted::start(Some(4096));
    let (client, mut inbox) = start(&broker);
    let peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    let mut sent = 0;
    while sent < 64 && client.publish("up/x", Qos::AtMostOnce, vec![0; 100_000]).is_ok() {
        sent += 1;
        tokio::task::yield_now().await;
    }
    disconnected(&mut inbox).await;
    let _again = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    drop(peer);
}

#[tokio::test]
async fn a_broker_that_never_acknowledges_is_left() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    client.publish("up/x", Qos::AtLeastOnce, "x").unwrap();
    let silent = tokio::spawn(async move { while peer.read().await != Sent::Gone {} });
    let why = disconnected(&mut inbox).await;
    assert!(why.contains("acknowledge"), "{why}");
    soon("the client to close", silent).await.unwrap();
}

#[tokio::test]
async fn a_servers_keep_alive_of_zero_makes_no_storm_of_pings() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let limits = Limits { keep_alive: Some(0), ..Limits::default() };
    let mut peer = broker.welcome(false, limits).await;
    connected(&mut inbox).await;
    let mut pings = 0;
    let watch = async {
        loop {
            match peer.next().await {
                Sent::Ping => {
                    pings += 1;
                    peer.raw(&[0xd0, 0]).await;
                }
                other => panic!("{other:?}"),
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(7), watch).await.is_err());
    assert!((1..=3).contains(&pings), "{pings} pings in seven seconds");
}

#[tokio::test]
async fn qos_1_is_acknowledged_when_it_is_taken() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let limits = Limits { receive_maximum: Some(1), ..Limits::default() };
    let mut peer = broker.welcome(false, limits).await;
    connected(&mut inbox).await;
    client.publish("up/a", Qos::AtLeastOnce, "first").unwrap();
    client.publish("up/a", Qos::AtLeastOnce, "second").unwrap();
    let (_, first) = peer.published().await;
    // The second comes when the acknowledgement was read, and so the message in front of it: had that
    // been acknowledged at its arrival, the acknowledgement would come first.
    peer.publish("dn/a", 1, 77, b"x").await;
    peer.puback(first).await;
    let Sent::Publish { payload, pkid, .. } = peer.read().await else { panic!("a PUBLISH") };
    assert_eq!(payload, b"second");
    peer.puback(pkid).await;
    assert_eq!(message(&mut inbox).await, ("dn/a".to_owned(), b"x".to_vec()));
    assert_eq!(peer.read().await, Sent::PubAck { pkid: 77 });
}

#[tokio::test]
async fn more_than_was_allowed_is_not_kept() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for pkid in 1..=65 {
        peer.publish("dn/a", 1, pkid, b"x").await;
    }
    let why = disconnected(&mut inbox).await;
    assert!(why.contains("more than it was told"), "{why}");
}

#[tokio::test]
async fn garbage_ends_the_connection_and_not_the_client() {
    for garbage in [
        &b"\xff\xff\xff\xff\xff\xff"[..],
        b"\x30\x02\x00\x09",
        b"\x30\x05\x00\x01\xff\x00\x00",
        b"\x40\x02\x00\x63",
        b"\x90\x01\x00",
        b"\x20\x03\x00\x00\x00",
        b"\x30\x03\x00\x00\x00",
        b"\xe0\x02\x8e\x00",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let broker = Scripted::start(None);
        let (client, mut inbox) = start(&broker);
        let mut peer = broker.welcome(false, Limits::default()).await;
        connected(&mut inbox).await;
        peer.raw(garbage).await;
        drop(peer);
        disconnected(&mut inbox).await;
        let mut peer = broker.welcome(false, Limits::default()).await;
        connected(&mut inbox).await;
        client.publish("up/x", Qos::AtLeastOnce, "well").unwrap();
        assert_eq!(peer.published().await.0, b"well");
    }
}

#[tokio::test]
async fn a_topic_alias_is_refused() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    // A PUBLISH without a topic, which rumqttc delivers as it is.
    peer.raw(b"\x30\x03\x00\x00\x00").await;
    let why = disconnected(&mut inbox).await;
    assert!(why.contains("alias"), "{why}");
}

#[tokio::test]
async fn a_session_that_is_gone_loses_no_message_and_no_subscription() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for number in 0..40u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
    }
    // Some are on their way, unacknowledged, when the connection breaks.
    for _ in 0..3 {
        peer.published().await;
    }
    drop(peer);
    disconnected(&mut inbox).await;
    for number in 40..200u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
    }
    let mut peer = broker.welcome(false, Limits::default()).await;
    for number in 0..200u8 {
        let (payload, pkid) = peer.published().await;
        assert_eq!(payload, [number]);
        peer.puback(pkid).await;
    }
    peer.publish("dn/a", 0, 0, b"heard").await;
    assert_eq!(message(&mut inbox).await.1, b"heard");
}

#[tokio::test]
async fn a_flood_of_qos_0_is_bounded() {
    let broker = Scripted::start(None);
    let (_client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for _ in 0..200 {
        peer.publish("dn/blk", 0, 0, &[0; 60_000]).await;
    }
    peer.publish("dn/last", 1, 1, b"x").await;
    // Twelve megabytes have come, two are kept, as long as nobody takes any.
    soon("some to be dropped", async {
        while inbox.dropped() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut taken = 0;
    while message(&mut inbox).await.0 != "dn/last" {
        taken += 1;
    }
    assert!(taken + inbox.dropped() == 200, "{taken} taken, {} dropped", inbox.dropped());
}

#[tokio::test]
async fn a_ping_that_is_not_answered_ends_the_connection() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = start(&broker);
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    // What is sent meanwhile is no sign that anybody hears it.
    let talks = tokio::spawn(async move {
        while client.publish("up/hb", Qos::AtMostOnce, "x").is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    loop {
        match peer.next().await {
            Sent::Ping => break,
            Sent::Publish { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // It reads on, and says nothing.
    let mut more_pings = 0;
    loop {
        match peer.next().await {
            Sent::Gone => break,
            Sent::Ping => more_pings += 1,
            _ => {}
        }
    }
    assert_eq!(more_pings, 0, "it is left before it would be pinged again");
    let why = disconnected(&mut inbox).await;
    assert!(why.contains("did not react"), "{why}");
    talks.await.unwrap();
}

#[tokio::test]
async fn a_link_that_is_doubted_is_pinged_at_once() {
    let broker = Scripted::start(None);
    let mut options = kept(&broker);
    // Longer than the test: no ping comes by itself.
    options.keep_alive = Duration::from_secs(3600);
    let (client, mut inbox) = Client::start(options).unwrap();
    let mut peer = broker.welcome(false, Limits::default()).await;
    connected(&mut inbox).await;
    for round in 0..3 {
        // Twice in a row is one ping: another one without an answer would be the end.
        for _ in 0..2 {
            client.doubt();
            client.publish("up/need", Qos::AtMostOnce, vec![round]).unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(peer.next().await);
        }
        assert_eq!(seen.iter().filter(|sent| **sent == Sent::Ping).count(), 1, "{seen:?}");
        peer.raw(&[0xd0, 0]).await;
        // The answer has been taken when what comes behind it has.
        peer.publish("dn/x", 0, 0, &[round]).await;
        assert_eq!(message(&mut inbox).await.1, [round]);
    }
}
