//! A running registry: opens everything, listens, and stops cleanly.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use selvedge_mqtt::{BrokerAddress, Client, QueueLimit, Session};
use selvedge_protocol::topic::{Qos, Topic};
use tokio::sync::watch;

use crate::app::{App, Changed};
use crate::blobs::{self, Blobs};
use crate::clock;
use crate::credentials::{Broker, Credentials};
use crate::devices::outgoing::Outgoing;
use crate::devices::{self, Devices};
use crate::durable::{self, Access};
use crate::error::Error;
use crate::notices::Notices;
use crate::pki::{self, Authority};
use crate::presence::Presences;
use crate::remote::Remote;
use crate::rest::{self, server, token::Token};
use crate::store::Store;
use crate::trust::{self, Trust};

/// How long the broker keeps what devices send while the registry is away.
const AWAY: Duration = Duration::from_secs(14 * 24 * 3600);
/// What the MQTT client id of every registry begins with, and the longest file with one.
const CLIENT_ID: &str = "selvedge-registry";
const LONGEST_ID: u64 = 256;
/// Blocks that wait to be sent: a broker that takes them slowly lets devices wait, not queues grow.
const CARGO: QueueLimit = QueueLimit { messages: 2048, bytes: 8 << 20 };
/// The MQTT socket's send buffer in bytes: enough for 25 MB/s at 5 ms to the broker.
const SEND_BUFFER: u32 = 128 << 10;
/// Largest MQTT packet.
const PACKET: u32 = 1 << 20;

/// Where and with what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Database, blobs, token and metadata files.
    pub data: PathBuf,
    /// Loopback address of the REST interface; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The broker, as `mqtt://host:port` or `mqtts://host:port`; devices are told the same.
    pub broker: String,
    /// File with the authorities of the broker's certificate; `None`: the registry's own.
    pub broker_ca: Option<PathBuf>,
    /// The name in the broker's certificate, where it is not the one in its address.
    pub broker_name: Option<String>,
    /// How long a device's certificate is good for.
    pub certificates: Duration,
    /// MQTT client id; one registry for each id and broker. `None`: one of its own, kept with the data.
    pub client_id: Option<String>,
    /// Folder with the online keys.
    pub online_keys: PathBuf,
    /// Folder with the two roots.
    pub roots: PathBuf,
    /// Gets the REST address as text, once it listens.
    pub address_file: Option<PathBuf>,
    /// What answering blocks may take.
    pub blocks: devices::Limits,
    /// How long what is signed here is good for.
    pub lifetimes: trust::Lifetimes,
}

/// Run until `stop` is ready.
pub async fn run(options: Options, stop: impl Future<Output = ()>) -> Result<(), Error> {
    let unusable = |why: String| Error::Mqtt { url: options.broker.clone(), why };
    let broker: BrokerAddress =
        options.broker.parse().map_err(|error: selvedge_mqtt::AddressError| unusable(error.to_string()))?;
    let (listener, address) = server::listen(options.listen).await?;
    durable::private_directory(&options.data)?;
    let _lock = durable::lock(&options.data.join("lock")).await?;
    let client_id = client_id(&options)?;
    let app = open(&options, broker.is_tls()).await?;
    check_audit(&app);

    let (stopping, stopped) = watch::channel(false);
    let mut mqtt = selvedge_mqtt::Options::new(broker, client_id);
    mqtt.session = Session::Kept(AWAY);
    mqtt.subscriptions = vec![(Topic::subscription_registry(), Qos::AtLeastOnce)];
    mqtt.maximum_packet = PACKET;
    mqtt.outbox = QueueLimit { messages: 8192, bytes: 64 << 20 };
    mqtt.cargo = CARGO;
    mqtt.send_buffer = SEND_BUFFER;
    mqtt.inbox = QueueLimit { messages: 4096, bytes: 16 << 20 };
    mqtt.tls = app.credentials.tls()?;
    let (handle, inbox) = Client::start(mqtt).map_err(|error| unusable(error.to_string()))?;
    let outgoing = Arc::new(Outgoing::new(handle));
    app.remote.open(Arc::clone(&outgoing));
    let devices = Devices::new(Arc::clone(&app), outgoing, options.blocks.clone());
    let devices = tokio::spawn(devices.run(inbox, stopped.clone()));

    let router = rest::router(Arc::clone(&app));
    let rest = tokio::spawn(server::serve(listener, router, server::Limits::default(), stopped));
    tracing::info!(%address, "the registry listens");
    if let Some(path) = &options.address_file {
        durable::write(path, address.to_string().as_bytes(), Access::All)?;
    }
    // A side that ends by itself ends the whole: half a registry helps nobody, and whoever supervises
    // it starts it again.
    let (mut rest, mut devices) = (rest, devices);
    let early = tokio::select! {
        () = stop => None,
        ended = &mut rest => Some(("REST", ended.map(drop))),
        ended = &mut devices => Some(("MQTT", ended.map(drop))),
    };
    tracing::info!("the registry stops");
    stopping.send_replace(true);
    for (what, task) in [("REST", rest), ("MQTT", devices)] {
        if early.as_ref().is_none_or(|(ended, _)| *ended != what)
            && let Err(error) = task.await
        {
            tracing::error!("the {what} side ended badly: {error}");
        }
    }
    app.store.close().await;
    match early {
        None => Ok(()),
        Some((side, ended)) => {
            let why = ended.err().map_or_else(|| "it returned".to_owned(), |error| error.to_string());
            Err(Error::Ended { side, why })
        }
    }
}

/// The MQTT client id. Two registries with the same one would throw one another off the broker for
/// ever, so that each makes its own; data of before keeps the one that all had, and its session.
fn client_id(options: &Options) -> Result<String, Error> {
    if let Some(id) = &options.client_id {
        return Ok(id.clone());
    }
    let path = options.data.join("client-id");
    if let Some(bytes) = durable::read_limited(&path, LONGEST_ID)? {
        let text = String::from_utf8(bytes).map_err(|error| {
            let why = format!("{error}; remove it for a new id");
            Error::Keys { what: path.display().to_string(), why }
        })?;
        return Ok(text.trim().to_owned());
    }
    let id = match options.data.join("registry.sqlite").exists() {
        true => CLIENT_ID.to_owned(),
        false => {
            let mut random = [0; 8];
            aws_lc_rs::rand::fill(&mut random).map_err(|_| Error::Random)?;
            format!("{CLIENT_ID}-{}", hex::encode(random))
        }
    };
    durable::write(&path, format!("{id}\n").as_bytes(), Access::All)?;
    Ok(id)
}

async fn open(options: &Options, tls: bool) -> Result<Arc<App>, Error> {
    let store = Store::open(&options.data.join("registry.sqlite")).await?;
    let trust = trust::Options {
        online_keys: options.online_keys.clone(),
        roots: options.roots.clone(),
        files: options.data.join("tuf"),
        lifetimes: options.lifetimes,
    };
    let trust = Trust::open(&trust, &store, clock::now()).await?;
    let now = clock::now();
    let authority = Authority::open_or_create(&pki::folder(&options.data), now)?;
    let broker = Broker {
        url: options.broker.clone(),
        tls,
        ca: options.broker_ca.clone(),
        name: options.broker_name.clone(),
        lifetime: options.certificates,
    };
    let credentials = Credentials::open(authority, broker)?;
    credentials.write(&store, now).await?;
    Ok(Arc::new(App {
        blobs: Blobs::open(&options.data, blobs::Limits::default())?,
        trust,
        token: Token::open(&options.data.join("token"))?,
        presences: Presences::default(),
        notices: Notices::default(),
        remote: Remote::default(),
        changed: Changed::default(),
        credentials,
        store,
    }))
}

/// Check the audit log beside everything else: it may be long.
fn check_audit(app: &Arc<App>) {
    let store = app.store.clone();
    tokio::spawn(async move {
        match store.verify_audit().await {
            Ok(entries) => tracing::info!(entries, "the audit log is whole"),
            Err(error) => tracing::error!("{}", error.chain()),
        }
    });
}
