//! Enrolment without a registry: the file for a device, and the key that it shows for its token.

use std::path::Path;

use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::envelope::Body;
use selvedge_protocol::message::{Enrol, Enrolled};
use selvedge_protocol::sealed::open_by_its_own;
use selvedge_protocol::signed::Purpose;
use selvedge_signing::PublicKey;
use serde_json::json;

use super::repository::{Device, Repository};
use super::ring;
use crate::commands::Surroundings;
use crate::commands::push::Offline;
use crate::failure::Failure;
use crate::supervisor::record::write_atomically;

/// Writes an enrolment file; its token is remembered as a digest.
pub async fn offline(
    around: &Surroundings<'_>,
    offline: &Offline<'_>,
    directory: &Path,
) -> Result<(), Failure> {
    let Offline { name, out, keys, broker, .. } = *offline;
    let roots = ring::newest(keys)?;
    let text = |bytes: Vec<u8>| super::release::text(bytes);
    let (image_root, director_root) = (text(roots.image)?, text(roots.director)?);
    if out.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", out.display()),
            advice: "say another file with --out; an enrolment is never overwritten".to_owned(),
        });
    }
    let (broker_ca, credential) = super::tls::offline(broker, &offline.tls)?;
    let repository = Repository::open(directory).await?;
    if repository.device(name)?.is_some() {
        let path = repository.device_path(name);
        return Err(Failure::Conflict {
            what: format!("{name} is enrolled in {} already", repository.dir().display()),
            advice: format!(
                "its file is good for one device; if that was set up anew, remove {} first",
                path.display()
            ),
        });
    }
    let token = hex::encode(rand::random::<[u8; 32]>());
    let mut device = Device::new(name.clone());
    device.token = Some(Digest::of(token.as_bytes()));
    repository.keep_device(&device)?;
    let enrolment = json!({
        "format": 2,
        "device": name,
        "kind": "device",
        "broker": broker.to_string(),
        "broker_ca": broker_ca,
        "broker_name": null,
        "credential": credential,
        "token": token,
        "image_root": image_root,
        "director_root": director_root,
    });
    let bytes = serde_json::to_vec_pretty(&enrolment)
        .map_err(|source| Failure::Internal { what: "cannot write the enrolment", source: source.into() })?;
    if let Err(failure) = write_atomically(out, &bytes, true) {
        // Without its file the name could never be used.
        repository.forget_device(name)?;
        return Err(failure);
    }
    around.out.value(&json!({"target": name, "enrolment_file": out, "repository": repository.dir()}));
    around.out.line(format!(
        "target {name} is known to {}; its enrolment is in {} (a secret, good for one device)",
        repository.dir().display(),
        out.display()
    ));
    around.out.line(format!("on the device: selvedge-agent run --data DIR --enrolment {}", out.display()));
    Ok(())
}

/// What a device asks, where the key that it shows has sealed it: whoever asks has that key.
pub fn opened(device: &DeviceId, body: &Body) -> Option<Enrol> {
    let its_key = |body: &Body| match body {
        Body::Enrol(enrol) => enrol.public_key.as_slice().try_into().ok(),
        _ => None,
    };
    match open_by_its_own(Purpose::Enrol, device, body, its_key).ok()?.body {
        Body::Enrol(enrol) => Some(enrol),
        _ => None,
    }
}

/// Registers the key of a device that shows its token, once. The same key again is answered the
/// same, and without a token too: a device that asks for a certificate is told that it is known. A push
/// issues none. Says whether the memory has changed, which the caller keeps before it answers.
pub fn register(device: &mut Device, enrol: &Enrol) -> (Enrolled, bool) {
    let refused = |why: &str| (Enrolled::Refused(why.to_owned()), false);
    let Ok(key) = <[u8; 32]>::try_from(enrol.public_key.as_slice()) else {
        return refused("an ed25519 public key has 32 bytes");
    };
    let key = PublicKey::from_bytes(key);
    if enrol.proof.is_empty() && device.public_key == Some(key) {
        return (Enrolled::Accepted, false);
    }
    if !device.token.is_some_and(|token| enrol.proves(&device.device, &token)) {
        return refused("the token is not the one of this device's enrolment file");
    }
    match device.public_key {
        Some(held) if held == key => (Enrolled::Accepted, false),
        Some(_) => refused("this target has another key already; enrol it again"),
        None => {
            device.public_key = Some(key);
            (Enrolled::Accepted, true)
        }
    }
}

/// The memory of a device that may be pushed to, or why none may.
pub fn known(
    repository: &Repository,
    name: &DeviceId,
    key: Option<PublicKey>,
    take_over: bool,
) -> Result<Device, Failure> {
    let mut device = repository.device(name)?.unwrap_or_else(|| Device::new(name.clone()));
    match (key, device.public_key) {
        (Some(given), Some(held)) if given != held => Err(Failure::Conflict {
            what: format!("{name} has the key {held}, not the one of --device-key"),
            advice: "leave --device-key out, or name another --target".to_owned(),
        }),
        (Some(_), None) if device.token.is_some() => Err(Failure::usage(
            format!("{name} was enrolled offline and shows its key by its token"),
            "leave --device-key out",
        )),
        (Some(_), None) if !take_over => Err(Failure::usage(
            format!("{name} was not enrolled here: another Director directs it"),
            "add --take-over: what that assigned is replaced, and it cannot direct the device any more",
        )),
        (Some(given), None) => {
            device.public_key = Some(given);
            Ok(device)
        }
        (None, None) if device.token.is_none() => Err(Failure::missing(
            format!("{name} was not enrolled in {}", repository.dir().display()),
            "`selvedge target enrol NAME --offline` does that; for a device of a registry say --device-key HEX \
             and --take-over",
        )),
        _ => Ok(device),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn enrol(token: &str, key: &[u8]) -> Enrol {
        Enrol::new(&"edge-1".parse().unwrap(), token, key.to_vec(), Vec::new())
    }

    #[test]
    fn a_key_is_registered_once_and_for_the_right_token() {
        let mut device = Device::new("edge-1".parse().unwrap());
        let refused = |answer: (Enrolled, bool)| matches!(answer, (Enrolled::Refused(_), false));
        // Without a token of ours nothing is, whatever is shown.
        assert!(refused(register(&mut device, &enrol("", &[1; 32]))));
        device.token = Some(Digest::of(b"secret"));
        for bad in [enrol("other", &[1; 32]), enrol("", &[1; 32]), enrol("secret", &[1; 31])] {
            assert!(refused(register(&mut device, &bad)));
        }
        assert!(refused(register(&mut device, &enrol(&"x".repeat(100_000), &[1; 32]))));
        assert_eq!(register(&mut device, &enrol("secret", &[1; 32])), (Enrolled::Accepted, true));
        assert_eq!(register(&mut device, &enrol("secret", &[1; 32])), (Enrolled::Accepted, false));
        // It wants a certificate: there is none, and nothing is wrong with its key.
        let wanting = Enrol { csr: vec![1], ..enrol("", &[1; 32]) };
        assert_eq!(register(&mut device, &wanting), (Enrolled::Accepted, false));
        assert!(refused(register(&mut device, &enrol("", &[2; 32]))));
        assert!(refused(register(&mut device, &enrol("secret", &[2; 32]))));
    }

    #[tokio::test]
    async fn only_devices_that_are_known_are_pushed_to() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(dir.path()).await.unwrap();
        let name: DeviceId = "edge-1".parse().unwrap();
        let key = PublicKey::from_bytes([1; 32]);
        let exit =
            |key, take_over| known(&repository, &name, key, take_over).map_err(|failure| failure.exit());
        assert_eq!(exit(None, false), Err(Exit::NotFound));
        assert_eq!(exit(None, true), Err(Exit::NotFound));
        assert_eq!(exit(Some(key), false), Err(Exit::Usage));
        let device = exit(Some(key), true).unwrap();
        repository.keep_device(&device).unwrap();
        assert_eq!(exit(None, false), Ok(device));
        assert_eq!(exit(Some(PublicKey::from_bytes([2; 32])), true), Err(Exit::Conflict));
    }
}
