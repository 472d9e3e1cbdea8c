//! Lists of releases as whoever signs them sees them: whole entries, what is new, and that nothing is
//! gone, changed, or handed to other keys.

use std::collections::BTreeMap;

use selvedge_package::trust::{ImageFiles, ImageTargets, ReleasedTarget, read_proposed_image, verify_image};
use serde_json::{Value, json};

use crate::clock;
use crate::failure::Failure;

/// Compares a proposal with what it takes the place of. `before` must be signed under `signed_under`;
/// the proposal is judged under `root`, whose keys shall sign it.
pub fn changes(
    root: &[u8],
    signed_under: &[u8],
    before: Option<&ImageFiles>,
    changed: &BTreeMap<String, Vec<u8>>,
) -> Result<(Vec<String>, Value), Failure> {
    let unsigned = |source: selvedge_package::trust::TrustError| Failure::Untrusted {
        what: "what this proposal builds on is not signed by the keys of that root".to_owned(),
        advice: "ask where it comes from; do not sign it".to_owned(),
        source: Some(source.into()),
    };
    let old = match before {
        // Its age is no matter: it may be about to be renewed.
        Some(files) => verify_image(signed_under, files, jiff::Timestamp::UNIX_EPOCH).map_err(unsigned)?,
        None => ImageTargets::default(),
    };
    let mut files = before.cloned().unwrap_or_default();
    for (role, file) in changed {
        files.set(role, file.clone());
    }
    // The same rules as for signed lists: no delegation but bins, and those to the root's own keys.
    let new = read_proposed_image(root, &files, clock::now()).map_err(|source| Failure::Untrusted {
        what:
            "this is no list of releases that may be signed: whoever signs it could give away the say over \
               releases"
                .to_owned(),
        advice: "do not sign it; ask where it comes from".to_owned(),
        source: Some(source.into()),
    })?;
    let by_name = |targets: &ImageTargets| -> BTreeMap<String, ReleasedTarget> {
        targets.releases.iter().map(|one| (one.target.clone(), one.clone())).collect()
    };
    let (was, is) = (by_name(&old), by_name(&new));
    let added: Vec<&ReleasedTarget> = is.values().filter(|one| !was.contains_key(&one.target)).collect();
    let mut lines: Vec<String> = added.iter().map(|one| format!("new: {}", entry(one))).collect();
    let mut wrong = Vec::new();
    for one in was.values() {
        match is.get(&one.target) {
            None => wrong.push(format!("LOST: {}", entry(one))),
            Some(now) if now != one => {
                wrong.push(format!("CHANGED from: {}\n            to: {}", entry(one), entry(now)));
            }
            Some(_) => {}
        }
    }
    lines.push(format!("{} releases in all, {} before", is.len(), was.len()));
    if !wrong.is_empty() {
        return Err(Failure::Untrusted {
            what: format!("this would drop or change what was released:\n  {}", wrong.join("\n  ")),
            advice: "do not sign it; a release is for ever".to_owned(),
            source: None,
        });
    }
    let value = json!({
        "new": added.iter().map(|one| json!({
            "target": one.target, "digest": one.digest.to_string(), "length": one.length, "custom": one.custom,
        })).collect::<Vec<_>>(),
        "releases": is.len(), "before": was.len(),
    });
    Ok((lines, value))
}

/// All that an entry says.
fn entry(one: &ReleasedTarget) -> String {
    let custom = &one.custom;
    let architectures = match custom.architectures.is_empty() {
        true => "any".to_owned(),
        false => custom.architectures.join(", "),
    };
    format!(
        "{} {}: release {}, min-release {}, architectures {architectures}, {} ({} bytes)",
        custom.package, custom.version, custom.release, custom.min_release, one.digest, one.length
    )
}
