//! `selvedge push`: a Director for one device and one moment.
//!
//! What a registry does for many devices and for years is done here for one, by the person who
//! holds the keys: verify the package, sign its release and the assignment, publish both to the
//! device through any broker, answer its requests for blocks, and read its signed reports until it
//! serves the package. What was signed is on the disk before it is published. Messages are hostile:
//! nothing counts but what the device's key has signed.

mod blocks;
mod director;
mod enrol;
mod release;
mod reports;
mod repository;
mod ring;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod verdict;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::limits::Limits;
use selvedge_package::nearest::nearest;
use selvedge_package::rules::check_settings;
use selvedge_package::trust::{AssignedPackage, target_name};
use selvedge_package::{Bundle, Manifest};

use crate::clock::{self, Deadline};
use crate::commands::Surroundings;
use crate::commands::push::{Args, Offline};
use crate::failure::Failure;
use crate::packaging::layout::Layout;
use crate::progress::Bytes;
use crate::reference::Pair;

use director::Start;
use repository::{Device, Repository};
use ring::Ring;
use session::Session;
use verdict::Goal;

/// Pushes, and stays until the device serves the package.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let deadline = Deadline::after(Duration::from_secs(args.timeout));
    let tls = tls::of(&args.broker, &args.tls)?;
    let layout = Layout::open(&args.package)?;
    let settings = settings(layout.manifest(), &args.settings)?;
    let ring = Ring::load(&args.keys, &args.passphrase)?;
    let repository = Repository::open(&directory(args.repository.as_deref(), &args.keys)).await?;
    let device = enrol::known(&repository, &args.target, args.device_key, args.take_over)?;
    let mut image = repository.image()?;
    let moved = ring.take_roots(&mut image)?;
    let bar = Bytes::begin(around.out, "verifying the package", layout.bundle().size());
    blocks::verify(&layout, bar.counter()).await?;
    bar.end();

    let bundle = layout.bundle();
    let start = Start::of(&image, &device)?;
    release::release(&mut image, &ring, bundle, clock::now())?;
    let assignments = assignments(&device, bundle, settings, args.only);
    repository.keep_image(&image)?;
    let manifest = bundle.manifest();
    let goal = Goal {
        package: manifest.name.clone(),
        version: manifest.version.to_string(),
        release: manifest.release,
        digest: bundle.digest(),
        size: bundle.size(),
    };
    let parts = session::Parts {
        out: around.out,
        repository: &repository,
        ring: &ring,
        image,
        device,
        start,
        goal,
        assignments,
        layout: &layout,
        take_over: args.take_over,
        always: moved,
        deadline,
    };
    Session::run(parts, &args.broker, tls, args.tls.broker_client_id.clone()).await
}

/// Makes an enrolment file.
pub async fn enrol(around: &Surroundings<'_>, offline: &Offline<'_>) -> Result<(), Failure> {
    let directory = directory(offline.repository.map(PathBuf::as_path), offline.keys);
    enrol::offline(around, offline, &directory).await
}

/// Where pushes are remembered: versions belong to the keys that sign them.
fn directory(said: Option<&Path>, keys: &Path) -> PathBuf {
    said.map_or_else(|| keys.join("push"), Path::to_owned)
}

/// The settings that are given, each of which the package must have.
fn settings(manifest: &Manifest, pairs: &[Pair]) -> Result<BTreeMap<String, String>, Failure> {
    let mut settings = BTreeMap::new();
    for Pair { key, value } in pairs {
        if !manifest.settings.contains_key(key) {
            let known: Vec<&str> = manifest.settings.keys().map(String::as_str).collect();
            let advice = match (nearest(key, known.iter().copied()), known.is_empty()) {
                (_, true) => "it has no settings".to_owned(),
                (Some(near), _) => format!("did you mean `{near}`? it has {}", known.join(", ")),
                (None, _) => format!("it has {}", known.join(", ")),
            };
            return Err(Failure::refused(format!("{} has no setting `{key}`", manifest.name), advice));
        }
        if settings.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("{key} is given twice"), "give each key once"));
        }
    }
    check_settings("settings", &settings, &Limits::PACKAGE).map_err(|source| Failure::Refused {
        what: "a setting cannot be what is given".to_owned(),
        advice: "settings become environment variables of the module".to_owned(),
        source: Some(source.into()),
    })?;
    Ok(settings)
}

/// What the device shall run: what was pushed to it before, and this in the place of its like.
fn assignments(
    device: &Device,
    bundle: &Bundle,
    settings: BTreeMap<String, String>,
    only: bool,
) -> Vec<AssignedPackage> {
    let manifest = bundle.manifest();
    let new = AssignedPackage {
        package: manifest.name.clone(),
        target: target_name(&manifest.name, &manifest.version),
        digest: bundle.digest(),
        length: bundle.length(),
        release: manifest.release,
        settings,
    };
    let others = device.assignments.iter().filter(|held| !only && held.package != new.package);
    let mut all: Vec<AssignedPackage> = others.cloned().collect();
    all.push(new);
    all.sort_by(|one, other| one.package.cmp(&other.package));
    all
}
