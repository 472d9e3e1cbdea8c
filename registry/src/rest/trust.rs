//! The Image repository's metadata, as files and as what a releaser signs on top of.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::input::Params;
use crate::app::App;
use crate::refusal::Refusal;
use crate::store::metadata::{Repository, Role};

/// The newest targets and root as text, exactly as signed.
pub async fn image(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let targets = app.store.newest(&Repository::Image, Role::Targets).await?.map(|signed| signed.body);
    let root = app.store.newest(&Repository::Image, Role::Root).await?.map(|signed| signed.body);
    Ok(Json(json!({"targets": targets, "root": root})).into_response())
}

/// One file of the standard layout: `timestamp.json`, `N.snapshot.json`, `N.targets.json`, `N.root.json`.
pub async fn image_file(
    State(app): State<Arc<App>>,
    Params(file): Params<String>,
) -> Result<Response, Refusal> {
    let missing = || Refusal::NoMetadata(file.chars().take(80).collect());
    let found = if file == "timestamp.json" {
        app.store.newest(&Repository::Image, Role::Timestamp).await?
    } else {
        let (version, role) = parse_versioned(&file).ok_or_else(missing)?;
        app.store.version(&Repository::Image, role, version).await?
    };
    let signed = found.ok_or_else(missing)?;
    Ok(([(CONTENT_TYPE, "application/json")], signed.body).into_response())
}

fn parse_versioned(file: &str) -> Option<(u64, Role)> {
    let (version, role) = file.strip_suffix(".json")?.split_once('.')?;
    let role = [Role::Root, Role::Targets, Role::Snapshot].into_iter().find(|known| known.name() == role)?;
    // "+1" and "01" would parse as numbers, but no file has such a name.
    let number: u64 = version.parse().ok()?;
    (number.to_string() == version).then_some((number, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_layout_are_files() {
        assert_eq!(parse_versioned("7.targets.json"), Some((7, Role::Targets)));
        for bad in
            ["targets.json", "01.root.json", "+1.root.json", "1.timestamp.json", "../1.root.json", "1.root"]
        {
            assert_eq!(parse_versioned(bad), None, "{bad}");
        }
    }
}
