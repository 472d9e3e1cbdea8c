//! The embedded MQTT broker: the crate `mqtt5` with the settings that one machine needs.
//!
//! Sessions, queued and retained messages are kept below the data directory. It listens on loopback
//! only, in plain text and without names, and refuses any other address: TLS and the rules of who
//! may use which topic come with certificates.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use mqtt5::broker::{BrokerConfig, MqttBroker, StorageConfig};

use crate::durable::{self, Access};
use crate::error::Error;

/// Largest packet in bytes: several blocks of 64 KiB, and an inline desired state.
const LARGEST_PACKET: usize = 1 << 20;
/// Messages that wait for one client: bounds memory when a client stops reading.
const WAITING_MESSAGES: usize = 1_000;
/// The same in bytes, for what is kept while a client is away.
const WAITING_BYTES: usize = 16 << 20;
/// Clients at once.
const CLIENTS: usize = 2_000;
/// Longest time for which the broker remembers a client that is away, and keeps messages for it. Nothing
/// of ours needs more: a device that was away longer is told again what it shall run.
const AWAY: Duration = Duration::from_secs(24 * 3600);
/// Retained messages, and the bytes of one. Nothing of ours retains any; what a stranger retains stays in
/// memory and on disk for good, and is read at every start.
const RETAINED: usize = 256;
const RETAINED_BYTES: usize = 16 << 10;

/// Where and with what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Loopback address; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where sessions and messages are kept.
    pub data: PathBuf,
    /// Gets the address as text, once clients can connect.
    pub address_file: Option<PathBuf>,
}

/// Run the broker until `stop` is ready.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), Error> {
    if !options.listen.ip().is_loopback() {
        return Err(Error::NotLoopback { address: options.listen });
    }
    durable::private_directory(&options.data)?;
    let _lock = durable::lock(&options.data.join("lock")).await?;
    let storage = StorageConfig::default()
        .with_base_dir(options.data.join("mqtt"))
        .with_max_queued_messages_per_client(WAITING_MESSAGES)
        .with_max_queued_bytes_per_client(WAITING_BYTES);
    let mut config = BrokerConfig::default()
        .with_bind_address(options.listen)
        .with_max_packet_size(LARGEST_PACKET)
        .with_max_clients(CLIENTS)
        .with_client_channel_capacity(WAITING_MESSAGES)
        .with_session_expiry(AWAY)
        .with_max_retained_messages(RETAINED)
        .with_max_retained_message_size(RETAINED_BYTES)
        .with_storage(storage);
    config.max_subscriptions_per_client = 100;
    config.sys_topics_enabled = false;
    let failed = |action| move |error: mqtt5::MqttError| Error::Broker { action, why: error.to_string() };
    let mut broker = MqttBroker::with_config(config).await.map_err(failed("start"))?;
    let address = broker
        .local_addr()
        .ok_or_else(|| Error::Broker { action: "start", why: "it has no address".to_owned() })?;
    let shutdown = broker.shutdown_handle();
    let mut ready = broker.ready_receiver();
    let mut running = tokio::spawn(async move { broker.run().await });
    let outcome = tokio::select! {
        outcome = &mut running => outcome,
        result = announce(&mut ready, address, &options, stop) => {
            shutdown.shutdown();
            let outcome = running.await;
            result?;
            outcome
        }
    };
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed("run")(error)),
        Err(error) => Err(Error::Broker { action: "run", why: error.to_string() }),
    }
}

async fn announce(
    ready: &mut tokio::sync::watch::Receiver<bool>,
    address: SocketAddr,
    options: &Options,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    if ready.wait_for(|ready| *ready).await.is_ok() {
        tracing::warn!(%address, "MQTT in plain text, without names or passwords: for this machine only");
        if let Some(path) = &options.address_file {
            durable::write(path, address.to_string().as_bytes(), Access::All)?;
        }
    }
    stop.await;
    tracing::info!("the broker stops");
    Ok(())
}
