//! Moving a name's route to a package, and taking it off.

use std::sync::Arc;

use selvedge_control::{PackageRef, Reason};

use super::Control;
use super::refused::Refused;

/// What is told of a package that another one has replaced, when it is idle and out of memory.
const GONE: &str = "drained and dropped";

/// Routes the package's name to it; the one routed before drains and is dropped, which is not waited for.
pub fn activate(control: &Control, package: &PackageRef) -> Result<(), Refused> {
    let table = &control.serving.table;
    let Some(drained) = table.activate(package) else {
        let error = format!("`{}` {} is not loaded: load it first", package.name, package.digest);
        return Err(Refused::new(Reason::NotLoaded, error));
    };
    tracing::info!(package = %package.name, digest = %package.digest, "activated");
    for old in drained {
        let table = Arc::clone(table);
        let journal = Arc::clone(&control.journal);
        tokio::spawn(async move {
            let package = old.reference();
            if table.drain(old).await {
                journal.add(package, GONE.to_owned(), false);
            }
        });
    }
    Ok(())
}

/// Takes a package off its route and drops it when it is idle.
pub async fn unload(control: &Control, package: &PackageRef) {
    let table = &control.serving.table;
    for old in table.retire(package) {
        let table = Arc::clone(table);
        // Its memory is free when this ends, unless a request outlived its deadline.
        drop(tokio::spawn(async move { table.drain(old).await }).await);
    }
    tracing::info!(package = %package.name, digest = %package.digest, "unloaded");
}
