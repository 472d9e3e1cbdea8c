//! Brokers for tests: a real one, and one that does exactly what a test tells it to.

#![allow(dead_code, clippy::unwrap_used)]

pub mod mosquitto;
pub mod scripted;

use std::future::Future;
use std::time::Duration;

use selvedge_mqtt::{Inbox, Incoming, Options};

/// Waits, but not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

/// Options for a broker at `port` on this machine.
pub fn options(port: u16, client_id: &str) -> Options {
    let broker = format!("mqtt://127.0.0.1:{port}").parse().unwrap();
    Options::new(broker, client_id)
}

/// The next event that `pick` takes; others are passed over.
pub async fn next<T>(inbox: &mut Inbox, what: &str, pick: impl Fn(Incoming) -> Option<T>) -> T {
    soon(what, async {
        loop {
            let event = inbox.recv().await.expect("the client has not ended");
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    })
    .await
}

/// Waits until the client is connected; gives the packet limit.
pub async fn connected(inbox: &mut Inbox) -> u32 {
    next(inbox, "a connection", |event| match event {
        Incoming::Connected { maximum_packet, .. } => Some(maximum_packet),
        _ => None,
    })
    .await
}

/// Waits until the client has lost its connection; gives the reason.
pub async fn disconnected(inbox: &mut Inbox) -> String {
    next(inbox, "a lost connection", |event| match event {
        Incoming::Disconnected { why, .. } => Some(why),
        _ => None,
    })
    .await
}

/// The next message.
pub async fn message(inbox: &mut Inbox) -> (String, Vec<u8>) {
    next(inbox, "a message", |event| match event {
        Incoming::Message { topic, payload } => Some((topic, payload.to_vec())),
        _ => None,
    })
    .await
}
