//! Several people sign one file, one after another: who counts, who is missing, what is refused.
#![allow(clippy::unwrap_used, missing_docs)]

use jiff::Timestamp;
use selvedge_package::trust::{MetadataBundle, RepositoryMetadata, TrustError, TrustState, adopt_roots};
use selvedge_signing::roots::{RoleKeys, RootSpec, repository, unsigned_root};
use selvedge_signing::signatures::{add, standing};
use selvedge_signing::{Signer, SigningError, SigningKey};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn keys<const N: usize>() -> [SigningKey; N] {
    [(); N].map(|()| SigningKey::generate().unwrap())
}

fn role(keys: &[SigningKey], threshold: u64) -> RoleKeys {
    RoleKeys { keys: keys.iter().map(Signer::public_key).collect(), threshold }
}

fn spec(version: u64, people: &[SigningKey], online: &SigningKey) -> RootSpec {
    RootSpec {
        version,
        expires: "2028-01-01T00:00:00Z".parse().unwrap(),
        root: role(people, 2),
        targets: role(people, 2),
        snapshot: RoleKeys::single(online.public_key()),
        timestamp: RoleKeys::single(online.public_key()),
    }
}

/// A device that was given this root, and a good one of the other repository.
fn enrol(root: &[u8]) -> Result<TrustState, TrustError> {
    let (people, [online]) = (keys::<2>(), keys());
    let other = if repository(root).unwrap().as_deref() == Some("image") { "director" } else { "image" };
    let beside =
        add(&unsigned_root(other, &spec(1, &people, &online)).unwrap(), &[&people[0], &people[1]]).unwrap();
    match other {
        "director" => TrustState::enrol(root, &beside, now()),
        _ => TrustState::enrol(&beside, root, now()),
    }
}

/// Whether a device that trusts the Image root `before` follows to `next`.
fn followed(before: &[u8], next: &[u8]) -> bool {
    let state = enrol(before).unwrap();
    let image = RepositoryMetadata { roots: vec![next.to_vec()], ..RepositoryMetadata::default() };
    adopt_roots(&state, &MetadataBundle { image, ..MetadataBundle::default() }).is_ok_and(|s| s.is_some())
}

#[test]
fn two_of_three_make_a_root_and_the_standing_says_who_is_missing() {
    let (people, [online]) = (keys::<3>(), keys());
    let spec = spec(1, &people, &online);
    let proposal = unsigned_root("director", &spec).unwrap();
    assert_eq!(repository(&proposal).unwrap().as_deref(), Some("director"));
    assert_eq!(RootSpec::read(&proposal).unwrap(), spec);
    assert!(enrol(&proposal).is_err(), "nobody has signed");

    let one = add(&proposal, &[&people[2]]).unwrap();
    let found = standing(&one, None).unwrap();
    assert!(
        !found.is_complete() && found.has(&people[2].public_key()) && !found.has(&people[0].public_key())
    );
    assert!(found.wants(&people[0].public_key()) && !found.wants(&online.public_key()));
    assert!(enrol(&one).is_err(), "one of two has signed");
    // The same person twice is one person.
    assert_eq!(add(&one, &[&people[2]]).unwrap(), one);

    let two = add(&one, &[&people[0]]).unwrap();
    assert!(standing(&two, None).unwrap().is_complete());
    enrol(&two).unwrap();
    // Whose key does not count is told.
    let stranger = add(&two, &[&online]).unwrap();
    assert_eq!(standing(&stranger, None).unwrap().strangers, [online.key_id().unwrap()]);
}

#[test]
fn a_signature_counts_for_these_bytes_only() {
    let (people, [online]) = (keys::<3>(), keys());
    let signed =
        add(&unsigned_root("image", &spec(1, &people, &online)).unwrap(), &[&people[0], &people[1]]).unwrap();
    let text = String::from_utf8(signed).unwrap();
    let changed = text.replace("2028-01-01", "2029-01-01");
    let found = standing(changed.as_bytes(), None).unwrap();
    assert_eq!((found.groups[0].signed(), found.strangers.len()), (0, 2));
    // A signature that does not hold is made anew by its owner.
    let mended = add(changed.as_bytes(), &[&people[0], &people[1]]).unwrap();
    assert!(standing(&mended, None).unwrap().is_complete());
}

#[test]
fn a_rotation_needs_the_old_and_the_new_and_is_told_in_words() {
    let (people, [online, new_online]) = (keys::<3>(), keys());
    let before = spec(1, &people, &online);
    let first = add(&unsigned_root("image", &before).unwrap(), &[&people[0], &people[1]]).unwrap();
    let [one, two, _lost] = people;
    let [three] = keys();
    let people = [one, two, three];
    let mut next = spec(2, &people, &online);
    next.timestamp = RoleKeys::single(new_online.public_key());
    let words = next.changes(&before).unwrap().join("\n");
    for expected in [
        format!("root: the key {} is new", people[2].key_id().unwrap()),
        format!("timestamp: the key {} is revoked", online.key_id().unwrap()),
    ] {
        assert!(words.contains(&expected), "{words}");
    }
    assert!(!words.contains("must sign"), "{words}");

    let proposal = unsigned_root("image", &next).unwrap();
    let by_new = add(&proposal, &[&people[0], &people[2]]).unwrap();
    let found = standing(&by_new, Some(&first)).unwrap();
    assert_eq!(found.groups.iter().map(|group| group.signed()).collect::<Vec<_>>(), [1, 2]);
    assert!(!found.is_complete() && !followed(&first, &by_new));
    let all = add(&by_new, &[&people[1]]).unwrap();
    assert!(standing(&all, Some(&first)).unwrap().is_complete() && followed(&first, &all));
}

#[test]
fn what_people_do_not_sign_or_cannot_keep_is_refused() {
    let [key] = keys();
    let root = unsigned_root("image", &spec(1, &keys::<2>(), &key)).unwrap();
    let text = String::from_utf8(root).unwrap();
    for role in ["snapshot", "timestamp", "mirrors"] {
        let other = text.replace("\"_type\":\"root\"", &format!("\"_type\":\"{role}\""));
        let error = add(other.as_bytes(), &[&key]).unwrap_err();
        assert!(matches!(error, SigningError::NotForPeople { .. }), "{error}");
    }
    // What is not read would be lost, and with it everyone else's signature.
    let extra = text.replacen("{\"signatures\"", "{\"x\":1,\"signatures\"", 1);
    assert!(matches!(add(extra.as_bytes(), &[&key]).unwrap_err(), SigningError::Unknown { .. }));
    for garbage in ["", "{}", "[]", &"[".repeat(100_000), "{\"signed\":{\"_type\":\"root\"}}"] {
        assert!(add(garbage.as_bytes(), &[&key]).is_err() && standing(garbage.as_bytes(), None).is_err());
    }
}
