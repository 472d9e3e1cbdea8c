//! The words.

use super::{OfferView, RepositoryView, TrustView};

/// The view for people.
pub fn describe(view: &TrustView) -> String {
    let mut lines = Vec::new();
    let state = match (view.detached, view.running) {
        (true, _) => "detached: it trusts nobody and takes nothing",
        (false, true) => "its agent runs",
        (false, false) => "NO AGENT RUNS; this is what it left behind",
    };
    lines.push(format!("device {}: {state}", view.device));
    if let Some(why) = &view.distrust {
        lines.push(format!("NOTHING IS ACCEPTED: {why}"));
    }
    let clock = if view.clock_trusted {
        "by its clock, which the kernel vouches for"
    } else {
        "by its floor: the clock is not synchronised, or shows a time that is over"
    };
    lines.push(format!("expiry is judged at {} {clock}", view.now));
    if let Some(floor) = view.floor {
        lines.push(format!("time floor {floor}: that has surely passed, and it never goes back"));
    }
    for (name, what, repository) in
        [("Image", "what exists", &view.image), ("Director", "what this device shall run", &view.director)]
    {
        if let Some(repository) = repository {
            lines.extend(describe_repository(name, what, repository));
        }
    }
    if !view.detached {
        let freshness = match (view.sequence, view.fresh) {
            (0, _) => "none was accepted yet".to_owned(),
            (sequence, Some(true)) => {
                format!("sequence {sequence}, proved fresh: it echoes this run of the agent")
            }
            (sequence, Some(false)) => format!(
                "sequence {sequence}, not proved fresh: it does not echo this run of the agent, so a newer one \
                 may be kept back"
            ),
            (sequence, None) => {
                format!("sequence {sequence}; whether it is fresh is known while an agent runs")
            }
        };
        lines.push(format!("desired state: {freshness}"));
    }
    for (package, floor) in &view.floors {
        lines.push(format!(
            "floor of {package}: release {floor}, signed by its release keys; none below it runs"
        ));
    }
    lines.extend(view.certificate.as_ref().map(crate::status::ShownCertificate::describe));
    if view.prefetched > 0 {
        lines.push(format!("{} packages are kept for a later assignment", view.prefetched));
    }
    lines.push(
        "not to be seen from here: an older copy of the whole data directory put back in its place. Its versions \
         and floors would be those of the copy, until the registry's next answer; signatures, expiry and the \
         clock hold meanwhile"
            .to_owned(),
    );
    lines.extend(view.offer.as_ref().map(describe_offer));
    lines.join("\n")
}

fn describe_repository(name: &str, what: &str, repository: &RepositoryView) -> Vec<String> {
    let mut lines =
        vec![format!("{name} repository ({what}), root's fingerprint {}", repository.root_sha256)];
    for (role, who) in &repository.roles {
        let keys: Vec<String> = who.keys.iter().map(|key| key.chars().take(16).collect()).collect();
        let (threshold, of) = (who.threshold, who.keys.len());
        lines.push(format!("  {role} is signed by {threshold} of {of}: {}", keys.join(", ")));
    }
    for file in &repository.files {
        let until = file.expires.map_or_else(|| "no date".to_owned(), |expires| expires.to_string());
        let over = if file.expired { ": OVER, nothing new is accepted by it" } else { "" };
        lines.push(format!("  holds {} version {}, until {until}{over}", file.role, file.version));
    }
    lines
}

fn describe_offer(offer: &OfferView) -> String {
    let mut lines = Vec::new();
    if let Some((image, director)) = offer.newer_roots {
        lines.push(format!(
            "the offer brings newer roots, which would be kept: Image {image}, Director {director}"
        ));
    }
    let what = if offer.for_device { "be accepted as what this device shall run" } else { "be kept" };
    match (&offer.reason, &offer.why) {
        (Some(reason), Some(why)) => lines.push(format!("the offer would be REFUSED ({reason}): {why}")),
        _ if offer.accepted => {
            let sequence =
                offer.sequence.map_or_else(String::new, |sequence| format!(" (sequence {sequence})"));
            lines.push(format!("the offer would {what}{sequence}"));
        }
        _ => lines.push("the offer would be REFUSED: not all of its packages are released".to_owned()),
    }
    for package in &offer.packages {
        let name = format!("{} {} (release {})", package.package, package.version, package.release);
        lines.push(match &package.refused {
            None => format!("  {name}: yes"),
            Some((reason, why)) => format!("  {name}: NO ({reason}): {why}"),
        });
    }
    lines.join("\n")
}
