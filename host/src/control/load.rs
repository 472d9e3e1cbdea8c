//! Loading: open beside what is served, run the acceptance cases, stage. Nothing is routed here.
//!
//! Opening a model is native code that nothing can end. A load that takes longer than whoever asked for it
//! allows ends the host, naming the package: it would keep every other load waiting for ever.

use std::sync::Arc;
use std::time::Duration;

use selvedge_control::{Load, Loaded, PackageRef, Reason};

use super::Control;
use super::refused::Refused;
use crate::cases;
use crate::clock;
use crate::memory;
use crate::runtime::Fatal;
use crate::serve::served::Served;
use crate::serve::table::dispose;
use crate::threads::{compute, yielding::Way};

/// Most packages on one host, staged and draining ones included.
const MOST_PACKAGES: usize = 128;

/// Loads a package. What is loaded already with the same settings runs its cases again; with other
/// settings it is opened anew and staged beside.
pub async fn load(control: Arc<Control>, load: Load) -> Result<Loaded, Refused> {
    let _one_at_a_time = control.loading.lock().await;
    let (package, patience) = (load.package.clone(), Duration::from_millis(load.patience_ms));
    let loading = open_and_try(&control, load);
    if patience.is_zero() {
        return loading.await;
    }
    match tokio::time::timeout(patience, loading).await {
        Ok(loaded) => loaded,
        Err(_) => Err(hung(&control, package, patience)),
    }
}

async fn open_and_try(control: &Control, load: Load) -> Result<Loaded, Refused> {
    let start = clock::now();
    let (package, purpose) = (load.package.clone(), load.purpose);
    let (served, fresh) = match control.serving.table.loaded(&package, &load.settings) {
        Some(served) => (served, false),
        None => (open(control, load).await?, true),
    };
    let load_ms = clock::now().duration_since(start).as_secs_f64() * 1e3;
    let cases = cases::run_all(&served.predictor, purpose).await;
    if fresh {
        settle(&served).await;
    }
    let cases = match cases {
        Ok(cases) => cases,
        Err(error) => {
            dispose(served).await;
            return Err(error.into());
        }
    };
    dispose(control.serving.table.stage(served)).await;
    let failed = cases.iter().filter(|case| case.failure.is_some()).count();
    tracing::info!(
        package = %package.name, digest = %package.digest, load_ms, cases = cases.len(), failed, "loaded"
    );
    Ok(Loaded { package, cases, load_ms })
}

/// What opening it left free goes back; the rest is what it takes.
async fn settle(served: &Arc<Served>) {
    let served = Arc::clone(served);
    let settling = tokio::task::spawn_blocking(move || {
        memory::give_back();
        served.opened();
    });
    // Neither panics.
    drop(settling.await);
}

/// Has the host end, from a thread that may wait.
fn hung(control: &Control, package: PackageRef, patience: Duration) -> Refused {
    let what = format!(
        "opening package `{}` and running its cases took longer than {} s and cannot be stopped",
        package.name,
        patience.as_secs_f64()
    );
    let callback = Arc::clone(&control.fatal);
    let fatal = Fatal { package, model: None, what: what.clone() };
    if let Err(error) = std::thread::Builder::new().name("fatal".to_owned()).spawn(move || callback(fatal)) {
        tracing::error!(%error, "a load that hangs cannot be reported");
    }
    Refused::new(Reason::Limit, what)
}

async fn open(control: &Control, load: Load) -> Result<Arc<Served>, Refused> {
    if control.serving.table.len() >= MOST_PACKAGES {
        // No fault of the one more.
        return Err(Refused::new(
            Reason::Internal,
            format!("{MOST_PACKAGES} packages are loaded: unload one"),
        ));
    }
    if !load.directory.is_absolute() {
        return Err(Refused::new(Reason::BadRequest, "`directory` has to be an absolute path"));
    }
    let opener = Arc::clone(&control.opener);
    // What it starts threads for gives way, too: a model with several of its own runs on those.
    let opening = compute(Way::Some, move || {
        let before = memory::own();
        let opened = opener.open(&load.directory, load.package.digest, &load.settings)?;
        let name = &opened.manifest().name;
        if *name != load.package.name {
            return Err(Refused::new(
                Reason::BadManifest,
                format!("the package is `{name}` and was asked for as `{}`", load.package.name),
            ));
        }
        Ok(Served::new(opened, load.settings, before))
    });
    opening.await.map_err(|_| Refused::new(Reason::Internal, "opening the package panicked"))?
}
