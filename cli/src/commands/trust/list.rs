//! Lists of releases as whoever signs them sees them: what is new, and that nothing is gone.

use selvedge_package::trust::{ImageFiles, ImageTargets, verify_image};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Compares a proposal with what it takes the place of. `before` must be signed under `root`.
pub fn changes(
    root: &[u8],
    before: Option<&ImageFiles>,
    changed: &std::collections::BTreeMap<String, Vec<u8>>,
) -> Result<(Vec<String>, Value), Failure> {
    let unsigned = |source: selvedge_package::trust::TrustError| Failure::Untrusted {
        what: "what this proposal builds on is not signed by the keys of that root".to_owned(),
        advice: "ask where it comes from; do not sign it".to_owned(),
        source: Some(source.into()),
    };
    let old = match before {
        // Its age is no matter: it may be about to be renewed.
        Some(files) => verify_image(root, files, jiff::Timestamp::UNIX_EPOCH).map_err(unsigned)?,
        None => ImageTargets::default(),
    };
    let new = listed(before, changed)?;
    let names = |targets: &ImageTargets| -> Vec<(String, String)> {
        targets.releases.iter().map(|one| (one.target.clone(), one.digest.to_string())).collect()
    };
    let old = names(&old);
    let mut lines = Vec::new();
    let added: Vec<_> = new.iter().filter(|one| !old.contains(one)).collect();
    let gone: Vec<_> = old.iter().filter(|one| !new.contains(one)).collect();
    for (target, digest) in &added {
        lines.push(format!("new: {target} {digest}"));
    }
    for (target, digest) in &gone {
        lines.push(format!("GONE or changed: {target} {digest}"));
    }
    lines.push(format!("{} releases in all, {} before", new.len(), old.len()));
    if !gone.is_empty() {
        return Err(Failure::Untrusted {
            what: format!("this would drop or change what was released:\n  {}", lines.join("\n  ")),
            advice: "do not sign it; a release is for ever".to_owned(),
            source: None,
        });
    }
    let value = json!({
        "new": added.iter().map(|(target, digest)| json!({"target": target, "digest": digest})).collect::<Vec<_>>(),
        "releases": new.len(), "before": old.len(),
    });
    Ok((lines, value))
}

/// Every target that the files list, whoever has signed them.
fn listed(
    before: Option<&ImageFiles>,
    changed: &std::collections::BTreeMap<String, Vec<u8>>,
) -> Result<Vec<(String, String)>, Failure> {
    let mut files = before.cloned().unwrap_or_default();
    for (role, file) in changed {
        files.set(role, file.clone());
    }
    let mut all = Vec::new();
    for (_, file) in files.roles() {
        let read: Value = serde_json::from_slice(file).map_err(|source| Failure::Refused {
            what: "a list of releases cannot be read".to_owned(),
            advice: "ask for the proposal again".to_owned(),
            source: Some(source.into()),
        })?;
        for (name, target) in read["signed"]["targets"].as_object().into_iter().flatten() {
            let digest = target["hashes"]["sha256"].as_str().unwrap_or("none");
            all.push((name.clone(), format!("sha256:{digest}")));
        }
    }
    Ok(all)
}
