//! The model repository of the Open Inference Protocol (Triton's extension), over the folder of packages
//! that the host was started with: what is there, load it, unload it. On the control socket only.

use std::sync::Arc;

use selvedge_control::{Load, PackageRef, PackageState, Purpose, Reason, Settings};
use serde::Serialize;

use super::Control;
use super::load::load;
use super::refused::Refused;
use super::route::{activate, unload};
use crate::folder::{Contents, Folder, Found};
use crate::serve::table::dispose;

/// A model as the index lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its name; of a folder that holds none, the folder's.
    pub name: String,
    /// Its version.
    pub version: String,
    /// READY, LOADING, UNLOADING or UNAVAILABLE.
    pub state: &'static str,
    /// What there is to say about that.
    pub reason: String,
}

/// Every model that is loaded or lies in the folder; with `ready` those alone that answer.
pub async fn index(control: &Control, ready: bool) -> Result<Vec<Listed>, Refused> {
    let loaded = control.serving.table.status();
    let mut listed: Vec<Listed> = loaded
        .iter()
        .map(|status| {
            let (state, reason) = match status.state {
                PackageState::Serving => ("READY", ""),
                PackageState::Staged => ("LOADING", "loaded, and not routed so far"),
                PackageState::Draining => ("UNLOADING", "answers its last requests"),
            };
            let (name, version) = (status.package.name.to_string(), status.version.clone());
            Listed { name, version, state, reason: reason.to_owned() }
        })
        .collect();
    if let Some(folder) = &control.folder {
        let Contents { found, unfit } = look(folder).await?;
        let is_loaded = |found: &Found| loaded.iter().any(|status| status.package == found.package);
        listed.extend(found.into_iter().filter(|found| !is_loaded(found)).map(|found| Listed {
            name: found.package.name.to_string(),
            version: found.version,
            state: "UNAVAILABLE",
            reason: "not loaded".to_owned(),
        }));
        listed.extend(unfit.into_iter().map(|unfit| Listed {
            name: unfit.folder,
            version: String::new(),
            state: "UNAVAILABLE",
            reason: unfit.why,
        }));
    }
    listed.retain(|model| !ready || model.state == "READY");
    Ok(listed)
}

async fn look(folder: &Folder) -> Result<Contents, Refused> {
    let folder = folder.clone();
    let path = folder.path().display().to_string();
    let looking = tokio::task::spawn_blocking(move || folder.look()).await;
    let failed = |why: String| Refused::new(Reason::Internal, format!("`{path}` cannot be read: {why}"));
    looking.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Loads the package of this name as it lies in the folder now, and routes its name to it.
pub async fn load_model(control: Arc<Control>, name: String) -> Result<(), Refused> {
    let Some(folder) = &control.folder else {
        return Err(Refused::new(
            Reason::BadRequest,
            "this host has no folder of packages: start it with --packages DIR, or load with POST /v1/packages/load",
        ));
    };
    let Contents { found, unfit } = look(folder).await?;
    let named = found.iter().find(|found| found.package.name.as_str() == name).cloned();
    let Some(named) = named else {
        let why = unfit.iter().find(|unfit| unfit.folder == name).map(|unfit| format!(": {}", unfit.why));
        let known: Vec<_> = found.iter().map(|found| found.package.name.as_str()).collect();
        let name: String = name.chars().take(80).collect();
        return Err(Refused::new(
            Reason::NotLoaded,
            format!(
                "no package `{name}` in `{}`{}; there is: {}",
                folder.path().display(),
                why.unwrap_or_default(),
                known.join(", ")
            ),
        ));
    };
    // A task of its own: it ends whether the one who asked still waits or not.
    let loading = tokio::spawn(async move { put(&control, named).await });
    loading.await.map_err(|_| Refused::new(Reason::Internal, "loading panicked"))?
}

/// Loads and routes a package of the folder, unless it is routed already; one whose cases do not pass is not kept,
/// and whatever answers goes on.
pub(super) async fn put(control: &Arc<Control>, found: Found) -> Result<(), Refused> {
    if control.serving.table.is_serving(&found.package, &Settings::new()) {
        return Ok(());
    }
    let message = Load {
        package: found.package.clone(),
        directory: found.directory,
        settings: Settings::new(),
        purpose: Purpose::Trial,
        patience_ms: 0,
    };
    let loaded = load(Arc::clone(control), message).await?;
    if let Some(case) = loaded.first_failure() {
        let why = format!("its case `{}` failed: {}", case.case, case.failure.as_deref().unwrap_or_default());
        dispose(control.serving.table.unstage(&found.package)).await;
        return Err(Refused::new(Reason::BadCase, why));
    }
    activate(control, &found.package)
}

/// Takes every release of a name off its route, and drops it when it is idle.
pub async fn unload_model(control: &Control, name: &str) -> Result<(), Refused> {
    let of_name: Vec<PackageRef> = control
        .serving
        .table
        .status()
        .into_iter()
        .map(|status| status.package)
        .filter(|package| package.name.as_str() == name)
        .collect();
    if of_name.is_empty() {
        let name: String = name.chars().take(80).collect();
        return Err(Refused::new(Reason::NotLoaded, format!("no model `{name}` is loaded here")));
    }
    for package in of_name {
        unload(control, &package).await;
    }
    Ok(())
}

/// Loads all that the folder holds, one after another; says which were refused and why.
pub async fn load_all(control: &Arc<Control>, folder: &Folder) -> Result<(), String> {
    let Contents { found, unfit } = look(folder).await.map_err(|refused| refused.0.error)?;
    let count = found.len() + unfit.len();
    let mut refused: Vec<_> = unfit.into_iter().map(|unfit| (unfit.folder, unfit.why)).collect();
    for found in found {
        let folder = found.folder.clone();
        if let Err(Refused(error)) = put(control, found).await {
            refused.push((folder, error.error));
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    refused.sort();
    let lines: String = refused.iter().map(|(folder, why)| format!("\n  `{folder}`: {why}")).collect();
    let folder = folder.path().display();
    Err(format!(
        "{} of {count} packages in `{folder}` are refused; mend them or take them away:{lines}",
        refused.len()
    ))
}

/// What is said of a repository that is named.
pub fn one_repository() -> Refused {
    Refused::new(Reason::BadRequest, "there is one repository here: leave its name out")
}

/// What is said of a parameter of a load.
pub fn no_parameters(name: &str) -> Refused {
    let name: String = name.chars().take(80).collect();
    Refused::new(
        Reason::BadRequest,
        format!("a load takes no parameters (`{name}`): packages are loaded as they lie in the folder"),
    )
}
