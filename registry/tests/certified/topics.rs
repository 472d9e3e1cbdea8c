//! What a client with a certificate may do, and that everything else does nothing.

use selvedge_mqtt::{Client, Options, Qos, Will};

use crate::broker::{Broker, Kind, certified, connected, message, next};

async fn a_device_speaks_under_its_own_name_alone(kind: Kind) {
    let broker = Broker::start(kind).await;
    let (_registry, mut heard) = broker.registry().await;
    let (device, _inbox) = broker.device("edge-1").await;
    for topic in ["sv/v1/d/edge-2/up/birth", "sv/v1/d/edge-1/dn/want", "sv/v1/d/edge-12/up/birth", "sv/v1/x"]
    {
        device.publish(topic, Qos::AtLeastOnce, "forged").unwrap();
    }
    device.publish("sv/v1/d/edge-1/up/state", Qos::AtLeastOnce, "own").unwrap();
    let own = ("sv/v1/d/edge-1/up/state".to_owned(), "own".to_owned());
    assert_eq!(message(&mut heard).await, own, "in the order of sending: nothing came before");
}

async fn a_device_hears_what_is_for_it_alone(kind: Kind) {
    let broker = Broker::start(kind).await;
    let (registry, _heard) = broker.registry().await;
    let mut options = broker.options("edge-1", broker.tls(Some(certified(&broker.authority, "edge-1"))));
    for filter in ["#", "sv/v1/#", "sv/v1/d/+/dn/#", "sv/v1/d/edge-2/dn/#", "sv/v1/d/edge-1/up/#"] {
        options.subscriptions.push((filter.to_owned(), Qos::AtLeastOnce));
    }
    let (_device, mut inbox) = Client::start(options).unwrap();
    connected(&mut inbox).await;
    let (other, _) = broker.device("edge-2").await;
    registry.publish("sv/v1/d/edge-2/dn/want", Qos::AtLeastOnce, "secret").unwrap();
    other.publish("sv/v1/d/edge-2/up/state", Qos::AtLeastOnce, "secret").unwrap();
    registry.publish("sv/v1/d/edge-1/dn/want", Qos::AtLeastOnce, "own").unwrap();
    let own = ("sv/v1/d/edge-1/dn/want".to_owned(), "own".to_owned());
    assert_eq!(message(&mut inbox).await, own);
}

async fn a_device_takes_nobodys_place(kind: Kind) {
    let broker = Broker::start(kind).await;
    let (registry, _heard) = broker.registry().await;
    let (_victim, mut inbox) = broker.device("edge-2").await;
    // With the certificate of one and the client id of another.
    let options = broker.options("edge-2", broker.tls(Some(certified(&broker.authority, "edge-1"))));
    let (_thief, mut thief) = Client::start(options).unwrap();
    // Whether it is let in under its own name or not at all is the broker's choice.
    next(&mut thief).await;
    registry.publish("sv/v1/d/edge-2/dn/want", Qos::AtLeastOnce, "still there").unwrap();
    assert_eq!(message(&mut inbox).await.1, "still there");
}

async fn a_device_leaves_nobody_elses_will(kind: Kind) {
    let broker = Broker::start(kind).await;
    let (_registry, mut heard) = broker.registry().await;
    let will = |name: &str| format!("sv/v1/d/{name}/up/will");
    for (name, topic) in [("edge-1", will("edge-2")), ("edge-3", will("edge-3"))] {
        let mut options = broker.options(name, broker.tls(Some(certified(&broker.authority, name))));
        options.will = Some(Will { topic, qos: Qos::AtLeastOnce, payload: b"gone".to_vec() });
        lost(options).await;
    }
    // The second client's own will is published, so the first one's would have come before.
    assert_eq!(message(&mut heard).await, (will("edge-3"), "gone".to_owned()));
}

/// A client that is gone without a goodbye as soon as the broker has judged it.
async fn lost(options: Options) {
    let lost = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ends = runtime.block_on(async {
            let (handle, mut inbox) = Client::start(options).unwrap();
            next(&mut inbox).await;
            (handle, inbox)
        });
        // The connection goes with the runtime; the ends would say goodbye.
        drop(runtime);
        drop(ends);
    });
    lost.await.unwrap();
}

#[tokio::test]
async fn a_device_speaks_under_its_own_name_at_mosquitto() {
    a_device_speaks_under_its_own_name_alone(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_device_speaks_under_its_own_name_at_the_embedded_broker() {
    a_device_speaks_under_its_own_name_alone(Kind::Embedded).await;
}

#[tokio::test]
async fn a_device_hears_what_is_for_it_at_mosquitto() {
    a_device_hears_what_is_for_it_alone(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_device_hears_what_is_for_it_at_the_embedded_broker() {
    a_device_hears_what_is_for_it_alone(Kind::Embedded).await;
}

#[tokio::test]
async fn a_device_takes_nobodys_place_at_mosquitto() {
    a_device_takes_nobodys_place(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_device_takes_nobodys_place_at_the_embedded_broker() {
    a_device_takes_nobodys_place(Kind::Embedded).await;
}

#[tokio::test]
async fn a_device_leaves_nobody_elses_will_at_mosquitto() {
    a_device_leaves_nobody_elses_will(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_device_leaves_nobody_elses_will_at_the_embedded_broker() {
    a_device_leaves_nobody_elses_will(Kind::Embedded).await;
}
