//! The embedded MQTT broker: the crate `mqtt5` with the settings that one machine needs.
//!
//! Sessions, queued and retained messages are kept below the data directory. With certificates, `front`
//! speaks TLS and knows everyone by name, `credentials` reads the certificates and the list of revoked
//! ones again when they change, and `rules` says who may use which topic: what Mosquitto is told by
//! `pki mosquitto`. `mqtt5` itself listens on loopback then, for the front alone: it believes what a
//! client calls itself, which is why it does not speak TLS. Without certificates the broker is for this
//! machine, in plain text and without names, and listens nowhere else.

mod credentials;
mod front;
mod rules;

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqtt5::broker::{BrokerConfig, MqttBroker, StorageConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::credentials::Source;
use self::front::Front;
use self::rules::{Names, Rules};
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

/// Who may connect.
#[derive(Debug, Clone)]
pub enum Clients {
    /// Whoever reaches this machine's loopback addresses, in plain text.
    Anonymous,
    /// Whoever has a certificate of the authority in this folder.
    Certified {
        /// The registry's authority, or what `pki server` wrote.
        pki: PathBuf,
        /// The names in the broker's own certificate, when it is made here.
        names: Vec<String>,
    },
}

/// Where and with what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address; without certificates a loopback address. Port 0 picks a free one.
    pub listen: SocketAddr,
    /// Who may connect.
    pub clients: Clients,
    /// Where sessions and messages are kept.
    pub data: PathBuf,
    /// Gets the address as text, once clients can connect.
    pub address_file: Option<PathBuf>,
}

/// Run the broker until `stop` is ready.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), Error> {
    if matches!(options.clients, Clients::Anonymous) && !options.listen.ip().is_loopback() {
        return Err(Error::NotLoopback { address: options.listen });
    }
    durable::private_directory(&options.data)?;
    let _lock = durable::lock(&options.data.join("lock")).await?;
    let (listen, certified) = match &options.clients {
        Clients::Anonymous => (options.listen, None),
        Clients::Certified { pki, names } => {
            let source = Source { folder: pki.clone(), names: names.clone() };
            let (files, current) = source.open()?;
            let listener = TcpListener::bind(options.listen)
                .await
                .map_err(|source| Error::Listen { address: options.listen, source })?;
            ((Ipv4Addr::LOCALHOST, 0).into(), Some((source, files, current, listener)))
        }
    };
    let failed = |action| move |error: mqtt5::MqttError| Error::Broker { action, why: error.to_string() };
    let mut broker =
        MqttBroker::with_config(configuration(listen, &options)).await.map_err(failed("start"))?;
    let address = broker
        .local_addr()
        .ok_or_else(|| Error::Broker { action: "start", why: "it has no address".to_owned() })?;
    let (address, _front) = match certified {
        None => (address, None),
        Some((source, files, current, listener)) => {
            let names = Arc::new(Names::default());
            broker = broker.with_auth_provider(Arc::new(Rules(Arc::clone(&names))));
            let outside =
                listener.local_addr().map_err(|source| Error::Listen { address: options.listen, source })?;
            let (sender, receiver) = watch::channel(Arc::new(current));
            let keeping = tokio::spawn(source.keep(files, sender)).abort_handle();
            let front = Arc::new(Front::new(address, names, receiver));
            let serving = tokio::spawn(front.serve(listener)).abort_handle();
            (outside, Some([Ended(keeping), Ended(serving)]))
        }
    };
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

/// A task that ends with whoever started it.
struct Ended(AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn configuration(listen: SocketAddr, options: &Options) -> BrokerConfig {
    let storage = StorageConfig::default()
        .with_base_dir(options.data.join("mqtt"))
        .with_max_queued_messages_per_client(WAITING_MESSAGES)
        .with_max_queued_bytes_per_client(WAITING_BYTES);
    let mut config = BrokerConfig::default()
        .with_bind_address(listen)
        .with_max_packet_size(LARGEST_PACKET)
        .with_max_clients(CLIENTS)
        .with_client_channel_capacity(WAITING_MESSAGES)
        .with_session_expiry(AWAY)
        .with_max_retained_messages(RETAINED)
        .with_max_retained_message_size(RETAINED_BYTES)
        .with_storage(storage);
    config.max_subscriptions_per_client = 100;
    config.sys_topics_enabled = false;
    config
}

async fn announce(
    ready: &mut watch::Receiver<bool>,
    address: SocketAddr,
    options: &Options,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    if ready.wait_for(|ready| *ready).await.is_ok() {
        match options.clients {
            Clients::Anonymous => {
                tracing::warn!(%address, "MQTT in plain text, without names or passwords: for this machine only");
            }
            Clients::Certified { .. } => {
                tracing::info!(%address, "MQTT over TLS, for clients with a certificate")
            }
        }
        if let Some(path) = &options.address_file {
            durable::write(path, address.to_string().as_bytes(), Access::All)?;
        }
    }
    stop.await;
    tracing::info!("the broker stops");
    Ok(())
}
