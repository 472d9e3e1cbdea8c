//! The running server: both sockets, the signals, and the order in which it ends.

use std::sync::Arc;
use std::time::Duration;

use selvedge_control::path;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};

use super::connection::{self, Limits};
use super::front::Front;
use super::listen::Listeners;
use super::predictor::Opener;
use super::{Serving, seats};
use crate::control::hand_over::Copies;
use crate::control::journal::Journal;
use crate::control::peer::OwnUser;
use crate::control::{self, Control, fatal as ending, repository};
use crate::folder::Folder;
use crate::runtime::FatalCallback;

/// MiB that the bodies of all requests may hold together: at most this, and a quarter of the memory.
const BODY_BUDGET_MIB: u64 = 512;

/// Bounds of the inference endpoint.
const HTTP: Limits =
    Limits { connections: 1024, head: Duration::from_secs(60), answer: Duration::from_secs(30) };

/// Bounds of the control socket.
const CONTROL: Limits =
    Limits { connections: 32, head: Duration::from_secs(60), answer: Duration::from_secs(30) };

/// Time that requests have to end after the first signal: the longest deadline counts, this at most.
const LONGEST_DRAIN: Duration = Duration::from_secs(30);

/// Exit code after a second signal.
const INTERRUPTED: i32 = 130;

/// Serves until a signal or the control socket ends it.
pub async fn run(
    listeners: Listeners,
    opener: Arc<dyn Opener>,
    journal: Arc<Journal>,
    fatal: FatalCallback,
    folder: Option<Folder>,
) -> std::io::Result<()> {
    let http = listeners.http.local_addr()?.to_string();
    let serving = Serving::new(body_budget_mib());
    let (stop, stopped) = watch::channel(false);
    let control = Arc::new(Control {
        serving: Arc::clone(&serving),
        opener,
        journal,
        listeners: match &listeners.control {
            Some(control) => Copies::of(&listeners.http, control)?,
            None => Copies::default(),
        },
        folder,
        http: http.clone(),
        stop: stop.clone(),
        loading: Mutex::new(()),
        fatal,
    });
    watch_signals(Arc::clone(&serving), stop)?;
    tracing::info!(%http, status = path::STATUS, "serving");
    let inference = tokio::spawn(connection::serve(
        listeners.http,
        Front::new(Arc::clone(&serving)),
        Limits { connections: seats::allowed(HTTP.connections), ..HTTP },
        serving.budget.clone(),
        stopped.clone(),
    ));
    let steering = listeners.control.map(|socket| {
        let router = control::routes::router(Arc::clone(&control));
        let budget = serving.budget.clone();
        tokio::spawn(connection::serve(OwnUser(socket), router, CONTROL, budget, stopped.clone()))
    });
    let loading = load_own(Arc::clone(&control));
    let mut stopped = stopped;
    let refused = tokio::select! {
        refused = loading => refused,
        _ = stopped.wait_for(|stop| *stop) => None,
    };
    // The sender lives in `control`, so that this ends by `true` only.
    drop(stopped.wait_for(|stop| *stop).await);
    control.listeners.close();
    let longest = serving.table.longest_deadline() + Duration::from_secs(2);
    let both = async {
        drop(inference.await);
        steering.inspect(tokio::task::JoinHandle::abort);
    };
    if tokio::time::timeout(longest.min(LONGEST_DRAIN), both).await.is_err() {
        tracing::warn!("requests were still on their way when the time to drain was over");
    }
    tracing::info!("ended");
    refused.map_or(Ok(()), |why| Err(std::io::Error::other(why)))
}

/// Loads the packages of the host's own folder, if it has one, and says that all are there. The server
/// ends where one of them is refused; gives why.
async fn load_own(control: Arc<Control>) -> Option<String> {
    let folder = control.folder.as_ref()?;
    match repository::load_all(&control, folder).await {
        Ok(()) => {
            control.serving.announce();
            tracing::info!(packages = control.serving.table.len(), "everything that is to be served is");
            None
        }
        Err(why) => {
            control.serving.drain();
            control.stop.send_replace(true);
            Some(why)
        }
    }
}

fn body_budget_mib() -> u32 {
    let system = rustix::system::sysinfo();
    // Both are as wide as the system's words.
    #[allow(clippy::unnecessary_cast)]
    let quarter = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit)) / (4 << 20);
    u32::try_from(quarter.clamp(16, BODY_BUDGET_MIB)).unwrap_or(16)
}

/// The first SIGTERM or SIGINT drains, the second ends.
fn watch_signals(serving: Arc<Serving>, stop: watch::Sender<bool>) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("ending: answering what is on its way; a second signal ends at once");
        serving.drain();
        stop.send_replace(true);
        next().await;
        ending::end(INTERRUPTED);
    });
    Ok(())
}
