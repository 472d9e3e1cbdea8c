//! What a client with a certificate may do, and that everything else does nothing.

use selvedge_mqtt::{Client, Qos, Will};

use crate::broker::{Broker, Kind, certified, connected, message};

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

async fn a_device_takes_nobodys_place_and_leaves_nobodys_will(kind: Kind) {
    let broker = Broker::start(kind).await;
    let (registry, mut heard) = broker.registry().await;
    let (_victim, mut inbox) = broker.device("edge-2").await;
    // With the certificate of one and the client id of another.
    let mut options = broker.options("edge-2", broker.tls(Some(certified(&broker.authority, "edge-1"))));
    let will = |name: &str| Will {
        topic: format!("sv/v1/d/{name}/up/will"),
        qos: Qos::AtLeastOnce,
        payload: b"gone".to_vec(),
    };
    options.will = Some(will("edge-2"));
    let (_thief, mut thief) = Client::start(options).unwrap();
    // Whether it is let in under its own name or not at all is the broker's choice.
    crate::broker::next(&mut thief).await;
    registry.publish("sv/v1/d/edge-2/dn/want", Qos::AtLeastOnce, "still there").unwrap();
    assert_eq!(message(&mut inbox).await.1, "still there");
    assert_eq!(message(&mut heard).await.1, "still there", "the registry hears itself, and no will");
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
    a_device_takes_nobodys_place_and_leaves_nobodys_will(Kind::Mosquitto).await;
}

#[tokio::test]
async fn a_device_takes_nobodys_place_at_the_embedded_broker() {
    a_device_takes_nobodys_place_and_leaves_nobodys_will(Kind::Embedded).await;
}
