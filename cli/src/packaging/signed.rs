//! The signed metadata that travels with packages, and what a device with given roots would make of
//! it: the same code decides here as on the device.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvedge_package::archive::{MetadataFiles, MetadataName};
use selvedge_package::trust::{
    Client, DelegatedFile, Desired, MetadataBundle, Repository, RepositoryMetadata, Source, SourceError,
    TrustError, TrustState, Wanted, accept, bins, target_name,
};
use selvedge_package::{Bundle, DeviceId, Digest};
use selvedge_signing::metadata;
use serde_json::Value;

use crate::ceremony::chain::{self, Which};
use crate::client::Registry;
use crate::failure::Failure;
use crate::keyring::failed;

/// Largest metadata file that a registry may send.
const LARGEST: usize = 1 << 20;

/// The Image repository as far as these packages need it, out of the registry.
pub async fn image(registry: &Registry, bundles: &[&Bundle]) -> Result<MetadataFiles, Failure> {
    let fetch = async |name: &str| {
        registry.get_bytes(&format!("show {name}"), &format!("/v1/trust/image/{name}"), LARGEST).await
    };
    let pinned = |file: &[u8], name: &str| {
        let read: Value = serde_json::from_slice(file).unwrap_or_default();
        read["signed"]["meta"][name]["version"].as_u64()
    };
    let timestamp = fetch("timestamp.json").await?;
    let version = pinned(&timestamp, "snapshot.json").unwrap_or_default();
    let snapshot = fetch(&format!("{version}.snapshot.json")).await?;
    let targets =
        fetch(&format!("{}.targets.json", pinned(&snapshot, "targets.json").unwrap_or_default())).await?;
    let mut delegated = BTreeMap::new();
    for bundle in bundles {
        let manifest = bundle.manifest();
        for role in bins::branch(&target_name(&manifest.name, &manifest.version)) {
            let Some(version) = pinned(&snapshot, &format!("{role}.json")) else { break };
            if !delegated.contains_key(&role) {
                delegated.insert(role.clone(), fetch(&format!("{version}.{role}.json")).await?);
            }
        }
    }
    let bundle = MetadataBundle {
        image: RepositoryMetadata {
            roots: chain::published(registry, Which::Image).await?,
            timestamp,
            snapshot,
            targets,
            delegated: delegated.into_iter().map(|(role, file)| DelegatedFile { role, file }).collect(),
        },
        ..MetadataBundle::default()
    };
    files(&bundle, None)
}

/// As files.
pub fn files(bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<MetadataFiles, Failure> {
    MetadataFiles::of(bundle, device).map_err(|source| Failure::Refused {
        what: "the registry's metadata cannot be put into a file".to_owned(),
        advice: "update the registry, or this program".to_owned(),
        source: Some(source.into()),
    })
}

/// The roots that are trusted.
pub struct Anchor {
    /// Of the Image repository.
    pub image: Vec<u8>,
    /// Of the Director's; absent where only releases can be judged.
    pub director: Option<Vec<u8>>,
}

/// What a device would say.
#[derive(Debug)]
pub enum Verdict {
    /// It would take all of it: what it is assigned.
    Assigned(DeviceId, Desired),
    /// The packages are released: it would take them if its Director assigned them.
    Released,
}

/// Judges metadata as a device with these roots does at the time `now`.
pub fn judge(
    files: &MetadataFiles,
    anchor: &Anchor,
    bundles: &[&Bundle],
    now: Timestamp,
) -> Result<Verdict, Failure> {
    let untrusted = |what: &str, source: TrustError| Failure::Untrusted {
        what: what.to_owned(),
        advice: advice(&source),
        source: Some(source.into()),
    };
    let Some(device) = files.device() else {
        released(files, &anchor.image, bundles, now)?;
        return Ok(Verdict::Released);
    };
    let Some(director) = &anchor.director else {
        return Err(Failure::usage(
            format!("this was made for the device {device}, and the Director's root is not given"),
            "say --director-root FILE too, or --keys DIR for both",
        ));
    };
    let offer = files.bundle().map_err(|source| Failure::Untrusted {
        what: "the metadata is not that of one moment".to_owned(),
        advice: "export it again".to_owned(),
        source: Some(source.into()),
    })?;
    let refused = |source| untrusted("a device with these roots would refuse this", source);
    // Its floor of time is below everything: what counts here is `now`.
    let state = TrustState::enrol(&anchor.image, director, Timestamp::UNIX_EPOCH).map_err(refused)?;
    let accepted = accept(&state, &offer, device, Some(now)).map_err(refused)?;
    for assigned in &accepted.desired.assignments {
        if !bundles.iter().any(|bundle| bundle.digest() == assigned.digest) {
            return Err(Failure::refused(
                format!("{} {} is assigned, but not in this file", assigned.package, assigned.version),
                "the device would have to fetch it elsewhere; export it again",
            ));
        }
    }
    Ok(Verdict::Assigned(device.clone(), accepted.desired))
}

fn released(files: &MetadataFiles, root: &[u8], bundles: &[&Bundle], now: Timestamp) -> Result<(), Failure> {
    let refused = |source| Failure::Untrusted {
        what: "a device with this root would refuse this".to_owned(),
        advice: advice(&source),
        source: Some(source.into()),
    };
    let client = Client::from_root(root).map_err(refused)?;
    let mut refresh = client.refresh(Files(files), now).map_err(refused)?;
    refresh.top_level().map_err(refused)?;
    for bundle in bundles {
        let manifest = bundle.manifest();
        let name = target_name(&manifest.name, &manifest.version);
        let found = refresh.find(&name).map_err(refused)?;
        let same = found.is_some_and(|found| {
            found.length == bundle.length()
                && found
                    .hashes
                    .get("sha256")
                    .is_some_and(|hex| Digest::from_hex(hex).ok() == Some(bundle.digest()))
        });
        if !same {
            return Err(Failure::Untrusted {
                what: format!("{} {} was never released as it is here", manifest.name, manifest.version),
                advice: "its bytes are others than those that were signed, or nobody signed it".to_owned(),
                source: None,
            });
        }
    }
    Ok(())
}

fn advice(error: &TrustError) -> String {
    match error {
        TrustError::Expired { .. } => {
            "export it again: the registry signs what expires soon by itself".to_owned()
        }
        _ => "check that these are the roots of the registry that it comes from".to_owned(),
    }
}

/// The metadata as a source of files.
struct Files<'a>(&'a MetadataFiles);

impl Source for Files<'_> {
    fn fetch(&mut self, wanted: Wanted<'_>, _most: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let found = self.0.iter().find(|(repository, name, _)| {
            *repository == Repository::Image
                && match (wanted, name) {
                    (Wanted::Root(wanted), MetadataName::Root(version)) => wanted == *version,
                    (Wanted::Timestamp, MetadataName::Timestamp) => true,
                    (Wanted::Snapshot { version: wanted }, MetadataName::Snapshot(version)) => {
                        wanted.is_none_or(|wanted| wanted == *version)
                    }
                    (
                        Wanted::Targets { role: wanted_role, version: wanted },
                        MetadataName::Targets { role, version },
                    ) => wanted_role == role && wanted.is_none_or(|wanted| wanted == *version),
                    _ => false,
                }
        });
        Ok(found.map(|(_, _, bytes)| bytes.to_vec()))
    }
}

/// What the files say of themselves: `repository/name`, version, expiry, and who has signed.
pub fn described(files: &MetadataFiles) -> Result<Vec<(String, metadata::Head, Vec<String>)>, Failure> {
    let mut rows = Vec::new();
    for (repository, name, bytes) in files.iter() {
        if matches!(name, MetadataName::Assignment(_)) {
            continue;
        }
        let place = format!("{}/{name}", repository.to_string().to_lowercase());
        let head = metadata::head(bytes).map_err(|error| failed(format!("read {place}"), error))?;
        let read: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let signers = read["signatures"].as_array().into_iter().flatten();
        let signers = signers.filter_map(|one| one["keyid"].as_str().map(str::to_owned)).collect();
        rows.push((place, head, signers));
    }
    Ok(rows)
}
