//! What a broker, or the link to it, allows: packets of 16 KiB, few messages at once, little speed.

#![allow(clippy::unwrap_used)]

mod brokers;

use std::time::Duration;

use brokers::scripted::{Limits, Scripted, Sent};
use brokers::{connected, options};
use selvedge_mqtt::{Client, PublishError, Qos};

#[tokio::test]
async fn a_limit_of_16_kib_is_told_and_nothing_larger_is_sent() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = Client::start(options(broker.port(), "a")).unwrap();
    client.publish("up/x", Qos::AtLeastOnce, vec![0; 20_000]).unwrap();
    let mut peer = broker.accept().await;
    peer.connack(false, Limits { maximum_packet: Some(16_384), ..Limits::default() }).await;
    assert_eq!(connected(&mut inbox).await, 16_384);
    for size in [16_384, 60_000] {
        let refused = client.publish("up/x", Qos::AtMostOnce, vec![0; size]);
        assert!(matches!(refused, Err(PublishError::TooLarge { limit: 16_384, .. })), "{refused:?}");
    }
    client.publish("up/x", Qos::AtMostOnce, vec![7; 8192]).unwrap();
    let Sent::Publish { payload, .. } = peer.read().await else { panic!("a PUBLISH") };
    assert_eq!(payload, vec![7; 8192]);
}

#[tokio::test]
async fn sixteen_messages_are_on_their_way_at_most() {
    let broker = Scripted::start(None);
    let (client, mut inbox) = Client::start(options(broker.port(), "a")).unwrap();
    let mut peer = broker.accept().await;
    peer.connack(false, Limits::default()).await;
    connected(&mut inbox).await;
    for number in 0..60u8 {
        client.publish("up/n", Qos::AtLeastOnce, vec![number]).unwrap();
    }
    // An acknowledgement lets one more come; a message of QoS 0 behind them shows that no other did.
    let mut ids = Vec::new();
    for number in 0..60u8 {
        if number >= 16 {
            peer.puback(ids[usize::from(number) - 16]).await;
        }
        let (payload, pkid) = peer.published().await;
        assert_eq!(payload, [number]);
        assert!((1..=16).contains(&pkid), "packet id {pkid}");
        ids.push(pkid);
    }
}

#[tokio::test]
async fn a_link_that_stands_still_for_seconds_is_given_time() {
    let broker = Scripted::start(Some(4096));
    let mut options = options(broker.port(), "a");
    options.outbox.bytes = 16 << 20;
    let (client, mut inbox) = Client::start(options).unwrap();
    let mut peer = broker.accept().await;
    peer.connack(false, Limits::default()).await;
    connected(&mut inbox).await;
    for number in 0..80u8 {
        client.publish("up/x", Qos::AtMostOnce, vec![number; 100_000]).unwrap();
    }
    // More than the five seconds that rumqttc's other API gives a flush: that is what passes here.
    tokio::time::sleep(Duration::from_millis(6500)).await;
    for number in 0..80u8 {
        assert_eq!(peer.published().await.0, vec![number; 100_000]);
    }
    // On the same connection: nothing was lost, nothing is said twice.
    client.publish("up/x", Qos::AtLeastOnce, "end").unwrap();
    assert_eq!(peer.published().await.0, b"end");
}

/// A broker that reads slowly, before a queue full of blocks: what is published then comes behind the few
/// blocks that are on their way, not behind the queue.
#[tokio::test]
async fn nothing_waits_behind_more_than_a_few_blocks() {
    const BLOCK: usize = 16 * 1024;
    let broker = Scripted::start(Some(4096));
    let mut options = options(broker.port(), "a");
    options.cargo.bytes = 8 << 20;
    let buffered = 2 * options.send_buffer as usize / BLOCK;
    let (client, mut inbox) = Client::start(options).unwrap();
    let mut peer = broker.accept().await;
    peer.connack(false, Limits::default()).await;
    connected(&mut inbox).await;
    let queued = 200u8;
    for number in 0..queued {
        client.publish_cargo(&format!("dn/{}", number % 2), [vec![number; BLOCK].into()]).unwrap();
    }
    // Everything that may be on its way is on its way.
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.publish("up/q0", Qos::AtMostOnce, "now").unwrap();
    client.publish("up/q1", Qos::AtLeastOnce, "now").unwrap();
    let (mut before, mut urgent, mut numbers) = (0, 0, Vec::new());
    while numbers.len() < usize::from(queued) {
        match peer.published().await.0 {
            payload if payload == b"now" => urgent += 1,
            payload => {
                before += usize::from(urgent < 2);
                numbers.push(payload[0]);
            }
        }
    }
    assert_eq!(urgent, 2);
    // In the socket's buffers, being written, handed over.
    assert!(before <= buffered + 6, "{before} blocks came first; the buffer holds {buffered}");
    for lane in 0..2 {
        let order: Vec<u8> = numbers.iter().copied().filter(|number| number % 2 == lane).collect();
        assert!(order.is_sorted() && order.len() == usize::from(queued) / 2, "{order:?}");
    }
}
