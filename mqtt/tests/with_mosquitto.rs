//! The client against a real broker with default settings.

#![allow(clippy::unwrap_used)]

mod brokers;

use brokers::mosquitto::Mosquitto;
use brokers::{connected, disconnected, message, options, soon};
use selvedge_mqtt::{Client, Incoming, Options, PublishError, Qos, Session, Will};

fn listening(broker: &Mosquitto, client_id: &str, filter: &str) -> Options {
    let mut options = options(broker.port(), client_id);
    options.subscriptions = vec![(filter.to_owned(), Qos::AtLeastOnce)];
    options
}

#[tokio::test]
async fn messages_of_a_block_and_more_go_both_ways() {
    let broker = Mosquitto::start("").await;
    let (left, mut left_inbox) = Client::start(listening(&broker, "left", "to/left/#")).unwrap();
    let (right, mut right_inbox) = Client::start(listening(&broker, "right", "to/right/#")).unwrap();
    assert_eq!(connected(&mut left_inbox).await, 128 * 1024);
    connected(&mut right_inbox).await;
    let large = vec![7; 100_000];
    left.publish("to/right/a", Qos::AtMostOnce, large.clone()).unwrap();
    assert_eq!(message(&mut right_inbox).await, ("to/right/a".to_owned(), large));
    right.publish("to/left/b", Qos::AtLeastOnce, &b"hello"[..]).unwrap();
    assert_eq!(message(&mut left_inbox).await, ("to/left/b".to_owned(), b"hello".to_vec()));
    let refused = left.publish("to/right/a", Qos::AtLeastOnce, vec![0; 128 * 1024]);
    assert!(matches!(refused, Err(PublishError::TooLarge { limit: 131_072, .. })));
    left.close();
    while soon("the end", left_inbox.recv()).await.is_some() {}
    assert_eq!(left.publish("x", Qos::AtLeastOnce, ""), Err(PublishError::Closed));
}

#[tokio::test]
async fn a_broker_that_forgot_everything_is_told_again() {
    let mut broker = Mosquitto::start("").await;
    let mut kept = listening(&broker, "listener", "news");
    kept.session = Session::Kept(std::time::Duration::from_secs(3600));
    let (_listener, mut listener_inbox) = Client::start(kept).unwrap();
    let (speaker, mut speaker_inbox) = Client::start(options(broker.port(), "speaker")).unwrap();
    connected(&mut listener_inbox).await;
    connected(&mut speaker_inbox).await;
    broker.kill();
    disconnected(&mut speaker_inbox).await;
    disconnected(&mut listener_inbox).await;
    assert_eq!(speaker.publish("news", Qos::AtMostOnce, "lost"), Err(PublishError::Offline));
    for number in 0..40u8 {
        speaker.publish("news", Qos::AtLeastOnce, vec![number]).unwrap();
    }
    assert!(broker.again().await, "its port is free again");
    // The listener is told to be back before the speaker's words are waited for; should they have
    // come earlier, they are lost, as they are for anyone who was not subscribed.
    connected(&mut listener_inbox).await;
    connected(&mut speaker_inbox).await;
    speaker.publish("news", Qos::AtLeastOnce, "after").unwrap();
    while message(&mut listener_inbox).await.1 != b"after" {}
}

#[test]
fn the_will_is_published_for_the_lost_and_not_for_those_who_left() {
    let main = tokio::runtime::Runtime::new().unwrap();
    let broker = main.block_on(Mosquitto::start(""));
    let mortal = |name: &str| {
        let mut options = options(broker.port(), name);
        options.will =
            Some(Will { topic: format!("will/{name}"), qos: Qos::AtLeastOnce, payload: b"gone".to_vec() });
        options
    };
    main.block_on(async {
        let (_listener, mut inbox) = Client::start(listening(&broker, "listener", "#")).unwrap();
        connected(&mut inbox).await;
        let (leaving, mut leaving_inbox) = Client::start(mortal("leaves")).unwrap();
        connected(&mut leaving_inbox).await;
        leaving.publish("last/words", Qos::AtLeastOnce, "bye").unwrap();
        leaving.close();
        while leaving_inbox.recv().await.is_some() {}
        assert_eq!(message(&mut inbox).await.0, "last/words");

        let dying = tokio::task::spawn_blocking({
            let options = mortal("dies");
            move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let held = runtime.block_on(async {
                    let (handle, mut inbox) = Client::start(options).unwrap();
                    connected(&mut inbox).await;
                    (handle, inbox)
                });
                // The task and its socket vanish without a goodbye, as with SIGKILL.
                runtime.shutdown_background();
                held
            }
        });
        let _held = dying.await.unwrap();
        assert_eq!(message(&mut inbox).await, ("will/dies".to_owned(), b"gone".to_vec()));
    });
}

#[tokio::test]
async fn the_brokers_packet_limit_is_obeyed() {
    let broker = Mosquitto::start("max_packet_size 16384").await;
    let (client, mut inbox) = Client::start(listening(&broker, "a", "x")).unwrap();
    assert_eq!(connected(&mut inbox).await, 16_384);
    let refused = client.publish("x", Qos::AtLeastOnce, vec![0; 16_384]);
    assert!(matches!(refused, Err(PublishError::TooLarge { limit: 16_384, .. })));
    client.publish("x", Qos::AtLeastOnce, vec![0; 16_000]).unwrap();
    assert_eq!(message(&mut inbox).await.1.len(), 16_000);
}

#[tokio::test]
async fn nobody_there_is_said_and_tried_again() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (handle, mut inbox) = Client::start(options(port, "a")).unwrap();
    for _ in 0..2 {
        let why = disconnected(&mut inbox).await;
        assert!(why.contains("refused"), "{why}");
    }
    drop(handle);
    soon("the end", async {
        while inbox.recv().await.is_some_and(|e| matches!(e, Incoming::Disconnected { .. })) {}
    })
    .await;
}
