//! `cargo xtask bench trust`: what trust costs a device and a registry with 1, 100 and 10 000 packages
//! in the Image repository: verifying an offer from its bytes, signing what one device shall run, and
//! the bytes that travel.
//!
//! Metadata is made by the signing crate as a registry makes it, and read by the device's own
//! [`accept`]. The device runs five packages. Figures that depend on the machine are compared with
//! each other only; bytes have limits.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use selvedge_package::trust::{
    AssignedPackage, DelegatedFile, DirectorAssignment, ImageCustom, ImageFiles, MetadataBundle,
    RepositoryMetadata, TrustState, accept, bins,
};
use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::to_cbor;
use selvedge_signing::director::sign_device;
use selvedge_signing::image::ImageTarget;
use selvedge_signing::keyring::{self, Keyring, OnlineKeys, RootFiles};
use selvedge_signing::online::{sign_image_snapshot, sign_timestamp};
use selvedge_signing::{Signer, tree};
use selvedge_tests::clock;
use serde_json::json;

const PACKAGES: [usize; 3] = [1, 100, 10_000];
const ROUNDS: usize = 50;
/// Packages that the device runs.
const RUNS: usize = 5;
/// Bytes that a device may download for an update.
const UPDATE: usize = 64 << 10;
/// How much longer verification may take with 10 000 packages than with 100. A device reads the branches
/// of its packages: with 100, bins that are nearly empty; with 10 000, one more level of full ones.
const GROWTH: f64 = 4.0;

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("bench_trust: this is a debug build; its times mean nothing");
    }
    println!(
        "{:>8} {:>11} {:>11} {:>9} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "packages", "cold, ms", "held, ms", "sign, ms", "first", "update", "poll", "snapshot", "files"
    );
    let mut figures = serde_json::Map::new();
    let (mut cold, mut update, mut first) = (BTreeMap::new(), 0, 0);
    for count in PACKAGES {
        let measured = measure(count)?;
        let Measured { cold_ms, held_ms, sign_ms, bytes, snapshot, files } = &measured;
        println!(
            "{count:>8} {cold_ms:>11.2} {held_ms:>11.2} {sign_ms:>9.2} {:>8} {:>8} {:>8} {snapshot:>8} {files:>6}",
            bytes.first, bytes.update, bytes.poll
        );
        cold.insert(count, *cold_ms);
        update = update.max(bytes.update);
        first = first.max(bytes.first_of_one);
        figures.insert(
            count.to_string(),
            json!({
                "cold_ms": cold_ms, "held_ms": held_ms, "sign_ms": sign_ms, "first_bytes": bytes.first,
                "first_of_one_package_bytes": bytes.first_of_one, "update_bytes": bytes.update,
                "poll_bytes": bytes.poll, "snapshot_bytes": snapshot, "image_files": files,
            }),
        );
    }
    let growth = cold[&10_000] / cold[&100];
    let bars = json!([
        {"name": "bytes of an update", "value": update, "limit": UPDATE, "holds": update < UPDATE},
        {"name": "bytes of a first state of one package", "value": first, "limit": UPDATE, "holds": first < UPDATE},
        {"name": "cold verification, 10 000 packages against 100", "value": growth, "limit": GROWTH, "holds": growth <= GROWTH},
    ]);
    println!("cold verification with 10 000 packages takes {growth:.2} times as long as with 100");
    println!("{}", json!({ "bench": "trust", "figures": figures, "bars": bars }));
    Ok(())
}

struct Measured {
    cold_ms: f64,
    held_ms: f64,
    sign_ms: f64,
    bytes: Bytes,
    snapshot: usize,
    files: usize,
}

/// Bytes of metadata in one message to a device.
struct Bytes {
    /// Everything, for a device that knows its roots only and runs [`RUNS`] packages.
    first: usize,
    /// The same, for one that runs a single package.
    first_of_one: usize,
    /// One of its packages, and one other, was released anew and is assigned.
    update: usize,
    /// Nothing new: what is signed again by itself.
    poll: usize,
}

/// A registry with its releasers.
struct Registry {
    offline: Keyring,
    online: OnlineKeys,
    roots: RootFiles,
    now: Timestamp,
    files: ImageFiles,
    snapshot: Vec<u8>,
    timestamp: Vec<u8>,
    versions: u64,
}

impl Registry {
    fn new() -> anyhow::Result<Self> {
        let now = Timestamp::from_second(clock::date().as_second())?;
        let folder = tempfile::tempdir()?;
        let roots = keyring::init(folder.path(), now)?;
        let offline = Keyring::load(folder.path())?;
        let online = OnlineKeys::load(&folder.path().join("online"))?;
        let files = ImageFiles::default();
        Ok(Self {
            offline,
            online,
            roots,
            now,
            files,
            snapshot: Vec::new(),
            timestamp: Vec::new(),
            versions: 0,
        })
    }

    fn days(&self, days: i64) -> anyhow::Result<Timestamp> {
        Ok(self.now.checked_add(SignedDuration::from_hours(24 * days))?)
    }

    /// Releases `release` of package `number`. Only the files on its branch are read again.
    fn release(&mut self, number: usize, release: u64) -> anyhow::Result<AssignedPackage> {
        let target = target(number, release)?;
        let name = target.name();
        let on_branch = |role: &String| self.files.bins.get(role).map(|file| (role.clone(), file.clone()));
        let branch = ImageFiles {
            targets: self.files.targets.clone(),
            bins: bins::branch(&name).iter().filter_map(on_branch).collect(),
        };
        let previous = (!branch.targets.is_empty()).then_some(&branch);
        let signers: [&dyn Signer; 1] = [&self.offline.image_targets];
        let changed = tree::add_release(&self.roots.image, previous, &target, self.days(365)?, &signers)?;
        for (role, file) in changed.0 {
            self.files.set(&role, file);
        }
        Ok(AssignedPackage {
            package: target.custom.package.clone(),
            target: name,
            digest: target.digest,
            length: target.length,
            release,
            settings: BTreeMap::new(),
        })
    }

    /// Signs the online roles again.
    fn refresh(&mut self) -> anyhow::Result<()> {
        self.versions += 1;
        let (snapshot, timestamp) = (&self.online.image_snapshot, &self.online.image_timestamp);
        self.snapshot = sign_image_snapshot(self.versions, &self.files, self.days(30)?, snapshot)?;
        self.timestamp = sign_timestamp(self.versions, &self.snapshot, self.days(14)?, timestamp)?;
        Ok(())
    }

    /// Signs the Director's part for a device, and leaves out of the Image part what it `held` then.
    fn offer(
        &self,
        version: u64,
        assignments: &[AssignedPackage],
        held: Option<&ImageFiles>,
    ) -> anyhow::Result<MetadataBundle> {
        let said = DirectorAssignment {
            format: 1,
            device: device(),
            sequence: version,
            issued_at: self.now,
            nonce: vec![7; 16],
            assignments: assignments.to_vec(),
        };
        let signed = sign_device(version, &said, self.days(7)?, self.online.director())?;
        let director = signed.metadata(Vec::new());
        let mut delegated = BTreeMap::new();
        for role in assignments.iter().flat_map(|assigned| bins::branch(&assigned.target)) {
            if let Some(file) = self.files.bins.get(&role)
                && held.is_none_or(|held| held.bins.get(&role) != Some(file))
            {
                delegated.insert(role, file.clone());
            }
        }
        let same = held.is_some_and(|held| held.targets == self.files.targets);
        let image = RepositoryMetadata {
            roots: Vec::new(),
            timestamp: self.timestamp.clone(),
            snapshot: self.snapshot.clone(),
            targets: if same { Vec::new() } else { self.files.targets.clone() },
            delegated: delegated.into_iter().map(|(role, file)| DelegatedFile { role, file }).collect(),
        };
        Ok(MetadataBundle { image, director, assignment: signed.assignment })
    }
}

fn device() -> DeviceId {
    "edge-1".parse().expect("a device's name")
}

fn target(number: usize, release: u64) -> anyhow::Result<ImageTarget> {
    Ok(ImageTarget {
        digest: Digest::of(format!("{number} {release}").as_bytes()),
        length: 1500,
        custom: ImageCustom {
            package: format!("package-{number:05}").parse()?,
            version: format!("1.0.{release}").parse()?,
            release,
            min_release: 0,
            architectures: vec!["x86_64".to_owned(), "aarch64".to_owned()],
        },
    })
}

fn measure(count: usize) -> anyhow::Result<Measured> {
    let mut registry = Registry::new()?;
    let mut assigned = Vec::new();
    for number in 0..count {
        let one = registry.release(number, 1)?;
        // Spread over the whole, as a device's packages are.
        if number % count.div_ceil(RUNS) == 0 {
            assigned.push(one);
        }
    }
    registry.refresh()?;
    let device = device();
    let fresh = TrustState::enrol(&registry.roots.image, &registry.roots.director, registry.days(-1)?)?;
    let now = Some(registry.now);
    let first = registry.offer(1, &assigned, None)?;
    let first_of_one = registry.offer(1, &assigned[..1], None)?;
    let held = accept(&fresh, &first, &device, now).context("the first state is accepted")?.state;
    let cold_ms = median(|| accept(&fresh, &first, &device, now).map(drop).map_err(Into::into))?;
    let sign_ms = median(|| registry.offer(2, &assigned, None).map(drop))?;

    // One of its packages is released anew, and another one that it does not run.
    let then = registry.files.clone();
    let mut newer = assigned.clone();
    newer[0] = registry.release(0, 2)?;
    registry.release(count / 2 + 1, 3)?;
    registry.refresh()?;
    let update = registry.offer(2, &newer, Some(&then))?;
    let updated = accept(&held, &update, &device, now).context("the update is accepted")?.state;
    let held_ms = median(|| accept(&held, &update, &device, now).map(drop).map_err(Into::into))?;

    // A day later nothing is new.
    registry.refresh()?;
    let now_held = registry.files.clone();
    let poll = registry.offer(3, &newer, Some(&now_held))?;
    accept(&updated, &poll, &device, now).context("what is signed again is accepted")?;
    let size = |bundle: &MetadataBundle| to_cbor(bundle).map(|bytes| bytes.len()).map_err(anyhow::Error::msg);
    let bytes = Bytes {
        first: size(&first)?,
        first_of_one: size(&first_of_one)?,
        update: size(&update)?,
        poll: size(&poll)?,
    };
    let (snapshot, files) = (registry.snapshot.len(), registry.files.bins.len() + 1);
    Ok(Measured { cold_ms, held_ms, sign_ms, bytes, snapshot, files })
}

/// The median time of some rounds, in milliseconds.
fn median(mut round: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = clock::now();
        round()?;
        times.push(start.elapsed());
    }
    times.sort();
    let middle: Duration = times[ROUNDS / 2];
    Ok(middle.as_secs_f64() * 1000.0)
}
