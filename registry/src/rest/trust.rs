//! Trust as people see and change it: metadata files, roots, what ends soon, and the list of releases
//! signed again.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use selvedge_package::limits::MetadataLimits;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Params};
use crate::app::App;
use crate::clock;
use crate::refusal::Refusal;
use crate::store::metadata::{Repository, Role};
use crate::trust::{Claims, Directed, RootOffer};

/// All roles of a large repository as JSON text inside JSON: ten thousand releases take about 8 MB.
const ROLES: usize = 64 << 20;
const PEM: &str = "application/x-pem-file";
/// A root and the roles.
const ROOT: usize = 2 * MetadataLimits::DEVICE.root_bytes + ROLES;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Renewal {
    roles: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRoot {
    repository: String,
    root: String,
    #[serde(default)]
    roles: BTreeMap<String, String>,
}

/// GET: what is signed until when, and what people must sign again soon.
pub async fn state(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    Ok(Json(app.trust.watched(&app.store, clock::now()).await?).into_response())
}

/// GET: the newest root and the newest roles that list releases, as text, exactly as signed.
pub async fn image(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let roles = app.store.image_roles().await?;
    let roles: BTreeMap<String, String> =
        roles.into_iter().map(|(role, signed)| (role, signed.body)).collect();
    let root = app.store.newest(&Repository::Image, Role::Root).await?.map(|signed| signed.body);
    Ok(Json(json!({"roles": roles, "root": root})).into_response())
}

/// POST: the same releases, signed again.
pub async fn renew(State(app): State<Arc<App>>, body: Body) -> Result<Response, Refusal> {
    let renewal: Renewal = input::json(body, ROLES).await?;
    app.trust.renew(&app.store, &renewal.roles, clock::now()).await?;
    Ok(Json(app.trust.watched(&app.store, clock::now()).await?).into_response())
}

/// GET: every root, oldest first.
pub async fn roots(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    Ok(Json(all_roots(&app).await?).into_response())
}

/// POST: the next root.
pub async fn publish(State(app): State<Arc<App>>, body: Body) -> Result<Response, Refusal> {
    let new: NewRoot = input::json(body, ROOT).await?;
    let repository = match new.repository.as_str() {
        "image" => "image",
        "director" => "director",
        _ => return Err(Refusal::because("repository", "it is `image` or `director`")),
    };
    let offered = RootOffer { repository, root: &new.root, roles: &new.roles };
    app.trust.publish_root(&app.store, offered, clock::now()).await?;
    // Who is connected hears of it at once.
    app.changed.add_anew(app.store.enrolled().await?);
    Ok((StatusCode::CREATED, Json(app.trust.watched(&app.store, clock::now()).await?)).into_response())
}

/// One file of the standard layout: `timestamp.json`, `N.snapshot.json`, `N.targets.json`,
/// `N.bin-3.json`, `N.root.json`.
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

/// GET: all that a device needs to accept what it shall run, in CBOR, as a file would bring it there.
pub async fn bundle(
    State(app): State<Arc<App>>,
    Params((workspace, name)): Params<(String, String)>,
) -> Result<Response, Refusal> {
    let target = input::target(&app, &workspace, &name).await?;
    let device = &target.name;
    // A revoked device is told nothing, by whatever way.
    if target.revoked_ms.is_some() {
        return Err(Refusal::Revoked { target: device.clone() });
    }
    let claims = app.claims(device).await?;
    if app.trust.direct(&app.store, device, &claims, clock::now()).await? == Directed::Nothing {
        return Err(Refusal::NothingReleased);
    }
    // Everything: nobody knows what the device will have when the file comes.
    let whole = Claims::default();
    let bundle = app.trust.bundle(&app.store, device, &whole).await?.ok_or(Refusal::NothingReleased)?;
    Ok(([(CONTENT_TYPE, "application/cbor")], bundle).into_response())
}

/// GET: the certificate of the registry's authority.
pub async fn ca(State(app): State<Arc<App>>) -> Response {
    ([(CONTENT_TYPE, PEM)], app.credentials.authority().ca_pem().to_owned()).into_response()
}

/// GET: the list of revoked certificates.
pub async fn crl(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.credentials.write(&app.store, clock::now()).await?;
    Ok(([(CONTENT_TYPE, PEM)], app.credentials.authority().written_crl()?).into_response())
}

async fn all_roots(app: &App) -> Result<Value, Refusal> {
    let all = async |repository| {
        let roots = app.store.roots_after(&repository, 0, usize::MAX).await?;
        Ok::<_, Refusal>(roots.into_iter().map(|root| root.body).collect::<Vec<_>>())
    };
    Ok(json!({"image": all(Repository::Image).await?, "director": all(Repository::DirectorRoot).await?}))
}

fn parse_versioned(file: &str) -> Option<(u64, Role)> {
    let (version, role) = file.strip_suffix(".json")?.split_once('.')?;
    let role = match role {
        "root" => Role::Root,
        "snapshot" => Role::Snapshot,
        role => Role::of_image(role)?,
    };
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
        assert_eq!(parse_versioned("7.bin-3a.json"), Some((7, Role::Bin("bin-3a".to_owned()))));
        for bad in [
            "targets.json",
            "01.root.json",
            "+1.root.json",
            "1.timestamp.json",
            "../1.root.json",
            "1.root",
            "1.bin-g.json",
            "1.bin-.json",
        ] {
            assert_eq!(parse_versioned(bad), None, "{bad}");
        }
    }
}
