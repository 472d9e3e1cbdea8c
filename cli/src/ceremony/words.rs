//! What is signed, by whom, and what is missing: in words and as JSON. Key ids are shown whole: people
//! compare them.

use std::path::Path;

use jiff::Timestamp;
use selvedge_package::Digest;
use selvedge_signing::metadata::Head;
use selvedge_signing::roots::{self, RootSpec};
use selvedge_signing::signatures::Standing;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::keyring::failed;

/// One signed file for people: its role, version and end.
pub fn head(path: &Path, head: &Head) -> String {
    format!("{}: {} version {}, expires {}", path.display(), head.role, head.version, head.expires)
}

/// A root for people: its fingerprint, its dates, and who speaks for each role.
pub fn root(bytes: &[u8]) -> Result<(Vec<String>, Value), Failure> {
    let reading = |error| failed("read the root", error);
    let spec = RootSpec::read(bytes).map_err(reading)?;
    let repository = roots::repository(bytes).map_err(reading)?;
    let digest = Digest::of(bytes);
    let name = repository.as_deref().unwrap_or("unnamed");
    let mut lines = vec![
        format!("{name} root: version {}, expires {}", spec.version, spec.expires),
        format!("  fingerprint {digest}"),
    ];
    let mut roles = serde_json::Map::new();
    for (role, keys) in spec.roles() {
        lines.push(format!("  {role}: {} of {} keys must sign", keys.threshold, keys.keys.len()));
        let mut ids = Vec::new();
        for key in &keys.keys {
            let id = key.key_id().map_err(reading)?;
            lines.push(format!("    {id}"));
            ids.push(id);
        }
        roles.insert(role.to_owned(), json!({"threshold": keys.threshold, "key_ids": ids}));
    }
    let value = json!({
        "repository": repository, "version": spec.version, "expires": spec.expires, "digest": digest, "roles": roles,
    });
    Ok((lines, value))
}

/// Who has signed a file, and who has not.
pub fn standing(standing: &Standing) -> (Vec<String>, Value) {
    let mut lines = Vec::new();
    let mut groups = Vec::new();
    for group in &standing.groups {
        lines.push(format!(
            "by {}: {} of {} signatures that are needed",
            group.named_by,
            group.signed(),
            group.threshold
        ));
        for (id, (_, signed)) in &group.keys {
            lines.push(format!("  {id} {}", if *signed { "has signed" } else { "has not signed" }));
        }
        let of = |signed: bool| {
            group.keys.iter().filter(move |(_, held)| held.1 == signed).map(|(id, _)| id).collect::<Vec<_>>()
        };
        groups.push(json!({
            "named_by": group.named_by, "threshold": group.threshold,
            "signed": of(true), "missing": of(false), "enough": group.is_content(),
        }));
    }
    for id in &standing.strangers {
        lines.push(format!(
            "a signature of {id} counts for nobody: no such key is named, or it is not over this"
        ));
    }
    (lines, json!({"needs": groups, "strangers": standing.strangers}))
}

/// The error for a file whose time is over.
pub fn check_expiry(what: &str, expires: Timestamp, now: Timestamp) -> Result<(), Failure> {
    if expires > now {
        return Ok(());
    }
    Err(Failure::Untrusted {
        what: format!("{what} expired at {expires}"),
        advice: "make a new one; what has expired is not accepted anywhere".to_owned(),
        source: None,
    })
}
