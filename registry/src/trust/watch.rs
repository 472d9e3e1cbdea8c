//! When what is signed ends: what the registry cannot sign again by itself is told to people in time.

use jiff::{SignedDuration, Timestamp};
use selvedge_package::trust::verify_image;
use serde::Serialize;

use super::{Trust, upload};
use crate::clock;
use crate::error::{Error, causes};
use crate::store::Store;
use crate::store::metadata::{Repository, Role, Signed};

/// People are told this long before.
const WARN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// One role and its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleState {
    /// `image` or `director`.
    pub repository: &'static str,
    /// `root`, `targets`, `bin-3`, `snapshot`, `timestamp`.
    pub role: String,
    /// Its newest version.
    pub version: u64,
    /// When it ends.
    pub expires_at: Option<String>,
    /// `people` or `registry`.
    pub signed_by: &'static str,
    #[serde(skip)]
    expires_ms: i64,
}

/// Every role that all devices share, with what people must do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// The roles.
    pub roles: Vec<RoleState>,
    /// What ends soon, or has ended, and what to do.
    pub warnings: Vec<String>,
}

impl Trust {
    /// What is signed, and what of it people must sign again soon.
    pub async fn watched(&self, store: &Store, now: Timestamp) -> Result<Watched, Error> {
        let mut roles = Vec::new();
        let mut add = |repository, signed_by, signed: Signed| {
            roles.push(RoleState {
                repository,
                role: signed.role.name().to_owned(),
                version: signed.version,
                expires_at: clock::text(signed.expires_ms),
                signed_by,
                expires_ms: signed.expires_ms,
            });
        };
        for (name, repository) in [("image", Repository::Image), ("director", Repository::DirectorRoot)] {
            if let Some(root) = store.newest(&repository, Role::Root).await? {
                add(name, "people", root);
            }
        }
        let listed = store.image_roles().await?;
        let files = upload::files(&listed);
        for signed in listed.into_values() {
            add("image", "people", signed);
        }
        for role in [Role::Snapshot, Role::Timestamp] {
            if let Some(signed) = store.newest(&Repository::Image, role).await? {
                add("image", "registry", signed);
            }
        }
        let soon = now.checked_add(WARN).unwrap_or(Timestamp::MAX).as_millisecond();
        let now_ms = now.as_millisecond();
        let ending = roles.iter().filter(|role| role.signed_by == "people" && role.expires_ms <= soon);
        let mut warnings: Vec<String> = ending.map(|role| warning(role, now_ms)).collect();
        // A root that came with the start may name other keys than those that have signed the list.
        if !files.targets.is_empty()
            && let Err(error) =
                verify_image(self.roots(store).await?.image.as_bytes(), &files, Timestamp::MIN)
        {
            warnings.push(format!(
                "devices refuse the list of releases under the newest Image root ({}): sign it again (`selvedge \
                 trust renew`)",
                causes(&error)
            ));
        }
        Ok(Watched { roles, warnings })
    }

    /// Say in the log what ends soon.
    pub async fn warn(&self, store: &Store, now: Timestamp) -> Result<(), Error> {
        for warning in self.watched(store, now).await?.warnings {
            tracing::warn!("{warning}");
        }
        Ok(())
    }
}

fn warning(role: &RoleState, now_ms: i64) -> String {
    let RoleState { repository, role: name, .. } = role;
    let at = role.expires_at.as_deref().unwrap_or("an unknown time");
    let todo = match name.as_str() {
        "root" => "publish the next root (`selvedge trust rotate`)",
        _ => "sign it again (`selvedge trust renew`)",
    };
    match role.expires_ms <= now_ms {
        true => format!("the {repository} {name} expired at {at}: devices accept nothing new; {todo}"),
        false => format!("the {repository} {name} expires at {at}: {todo} before that"),
    }
}
