//! Delegated roles on their way to a device: which are needed, which are kept, which are refused.

use selvedge_package::trust::{
    DelegatedFile, ImageFiles, MetadataBundle, TrustError, TrustState, bins, verify_image,
};
use selvedge_signing::SigningKey;
use selvedge_signing::image::ImageTarget;
use selvedge_signing::online::{sign_image_snapshot, sign_timestamp};
use selvedge_signing::tree::add_release;
use serde_json::json;

use crate::fixture::{DAY, World, check_refused, device, target};
use crate::hand;
use crate::split::{hundred, split};

/// The bin of one digit that lists a release.
fn bin(release: &ImageTarget) -> String {
    bins::branch(&release.name()).swap_remove(0)
}

/// Puts a repository of `files` (role, bytes) into an offer, and of the delegated ones those in `give`.
fn put(world: &World, offer: &mut MetadataBundle, version: u64, files: &[(&str, &[u8])], give: &[&str]) {
    let (snapshot, timestamp) = hand::online(world, version, files);
    offer.image.timestamp = timestamp;
    offer.image.snapshot = snapshot;
    offer.image.delegated.clear();
    for (role, file) in files {
        if *role == "targets" {
            offer.image.targets = file.to_vec();
        } else if give.contains(role) {
            offer.image.delegated.push(DelegatedFile { role: (*role).into(), file: file.to_vec() });
        }
    }
}

/// A split repository of a hundred packages, an offer of two of them with their bins alone, and the
/// state after it.
struct Split {
    world: World,
    releases: Vec<ImageTarget>,
    offer: MetadataBundle,
    state: TrustState,
}

impl Split {
    fn new() -> Self {
        let mut world = World::new();
        let releases = hundred();
        let files = split(&world, &releases);
        let mut offer = world.offer("edge-1", &[&releases[1], &releases[2]]);
        let roles: Vec<_> = files.roles().collect();
        let (one, two) = (bin(&releases[1]), bin(&releases[2]));
        put(&world, &mut offer, 2, &roles, &[&one, &two]);
        let state = world.accept(&world.enrol(), &offer).unwrap().state;
        Self { world, releases, offer, state }
    }
}

#[test]
fn a_device_gets_its_own_branches_and_no_more() {
    let Split { world, state, offer, releases } = Split::new();
    assert!(offer.image.delegated.len() <= 2);
    let desired = state.desired(&device("edge-1")).unwrap().unwrap();
    assert_eq!(desired.assignments.len(), 2);
    assert_eq!(desired.assignments[0].digest, releases[1].digest);
    // It reads back from the disk, and is verified again from what is stored there.
    let read = TrustState::decode(&state.encode().unwrap()).unwrap();
    assert_eq!(read, state);
    assert_eq!(read.desired(&device("edge-1")).unwrap().unwrap(), desired);
    assert!(world.accept(&read, &offer).is_ok());
}

#[test]
fn what_the_device_holds_need_not_be_sent_again() {
    let Split { mut world, state, releases, .. } = Split::new();
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    let files = split(&world, &releases);
    let roles: Vec<_> = files.roles().collect();
    // Nothing new but the timestamp.
    put(&world, &mut offer, 3, &roles, &[]);
    let (_, timestamp) = hand::online(&world, 3, &roles);
    offer.image.timestamp = timestamp;
    offer.image.targets.clear();
    let next = world.accept(&state, &offer).unwrap().state;
    assert_eq!(next.accepted_versions().0, [3, 3, 2]);
    // The branch that is not assigned any more is forgotten.
    let only = next.desired(&device("edge-1")).unwrap().unwrap();
    assert_eq!(only.assignments.len(), 1);
    assert!(
        next.encode().unwrap().len() < state.encode().unwrap().len()
            || bin(&releases[1]) == bin(&releases[2])
    );

    // The same offer is of no use to a device that holds nothing.
    check_refused(world.accept(&world.enrol(), &offer), "incomplete", "neither offered nor held");
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    put(&world, &mut offer, 4, &roles, &[]);
    offer.image.snapshot.clear();
    check_refused(world.accept(&next, &offer), "incomplete", "snapshot");
}

#[test]
fn an_offer_whose_files_are_all_held_changes_the_assignment_alone() {
    let Split { mut world, state, releases, offer: first, .. } = Split::new();
    let mut offer = world.offer("edge-1", &[&releases[2]]);
    offer.image.timestamp = first.image.timestamp.clone();
    offer.image.snapshot.clear();
    offer.image.targets.clear();
    offer.image.delegated.clear();
    let next = world.accept(&state, &offer).unwrap();
    assert_eq!(next.desired.assignments.len(), 1);
    assert_eq!(next.desired.assignments[0].target, releases[2].name());
}

#[test]
fn a_bin_that_is_kept_back_or_old_or_forged_is_refused() {
    let Split { mut world, state, releases, .. } = Split::new();
    let files = split(&world, &releases);
    let wanted = bin(&releases[1]);
    let mut newer = files.clone();
    let stranger = SigningKey::generate().unwrap();
    let list = |version, targets: &[&ImageTarget], keys: &[&SigningKey]| {
        hand::sign(&hand::targets(version, world.now + DAY * 300, targets, None), keys)
    };
    let inside: Vec<_> = releases.iter().filter(|release| bin(release) == wanted).collect();
    let good = list(3, &inside, &[&world.image.targets]);
    let forged = list(3, &inside, &[&stranger]);
    let empty = list(3, &[], &[&world.image.targets]);
    newer.set(&wanted, good.clone());
    let roles: Vec<_> = newer.roles().collect();
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    put(&world, &mut offer, 3, &roles, &[&wanted]);
    assert!(world.accept(&state, &offer).is_ok());
    let with = |file: Option<&[u8]>| {
        let mut offer = offer.clone();
        offer.image.delegated.clear();
        if let Some(file) = file {
            offer.image.delegated.push(DelegatedFile { role: wanted.clone(), file: file.to_vec() });
        }
        world.accept(&state, &offer)
    };
    let old = files.bins[&wanted].clone();
    check_refused(with(None), "incomplete", &wanted);
    check_refused(with(Some(&old)), "not-trusted", "does not match snapshot pin");
    check_refused(with(Some(&forged)), "not-trusted", "threshold not met");
    check_refused(with(Some(b"{}")), "not-trusted", "signed");
    check_refused(with(Some(&vec![b' '; (256 << 10) + 1])), "too-large", "262145");
    check_refused(with(Some(&empty)), "not-released", "never released");
    // And no bin in the snapshot: the package was never released.
    let mut offer = offer.clone();
    let without: Vec<_> = roles.iter().copied().filter(|(role, _)| *role != wanted).collect();
    put(&world, &mut offer, 3, &without, &[]);
    check_refused(world.accept(&state, &offer), "not-trusted", "snapshot removes");
    check_refused(world.accept(&world.enrol(), &offer), "not-released", "never released");
    // A bin, once seen, never goes back, though the snapshot pins it.
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    put(&world, &mut offer, 4, &roles, &[&wanted]);
    let held = world.accept(&state, &offer).unwrap().state;
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    let old: Vec<_> = files.roles().collect();
    put(&world, &mut offer, 5, &old, &[&wanted]);
    check_refused(world.accept(&held, &offer), "rollback", &wanted);
}

#[test]
fn a_stored_bin_that_is_changed_or_gone_is_damage() {
    let Split { state, releases, .. } = Split::new();
    let good: serde_json::Value = serde_json::from_slice(&state.encode().unwrap()).unwrap();
    let role = bin(&releases[1]);
    let changed = good["image"]["delegated"][&role].as_str().unwrap().replacen("package-", "packagf-", 1);
    for stored in [Some(json!(changed)), Some(json!("")), None] {
        let mut value = good.clone();
        let map = value["image"]["delegated"].as_object_mut().unwrap();
        match stored {
            Some(stored) => drop(map.insert(role.clone(), stored)),
            None => drop(map.remove(&role)),
        }
        let read = TrustState::decode(value.to_string().as_bytes()).unwrap();
        let error = read.desired(&device("edge-1")).unwrap_err();
        assert!(matches!(error, TrustError::Damaged { .. }), "{error}");
    }
}

#[test]
fn more_roles_than_are_needed_are_refused_unread() {
    let Split { mut world, state, releases, .. } = Split::new();
    let mut offer = world.offer("edge-1", &[&releases[1]]);
    let file = |role: String| DelegatedFile { role, file: b"{}".to_vec() };
    offer.image.delegated = (0..257).map(|at| file(format!("role-{at}"))).collect();
    check_refused(world.accept(&state, &offer), "too-large", "257 delegated roles");
    offer.image.delegated = vec![file("x".repeat(256))];
    check_refused(world.accept(&state, &offer), "too-large", "256 bytes");
    offer.image.delegated = vec![file("x".into()), file("x".into())];
    check_refused(world.accept(&state, &offer), "not-trusted", "twice");
}

/// Checks what becomes of a package behind general delegations: `targets.json` delegates as `tree`
/// says, each role delegates to the roles that it names, and `file-type` is listed by `at`.
fn find(tree: &[(&str, &[(&str, serde_json::Value)])], at: &str) -> Result<(), TrustError> {
    let mut world = World::new();
    let release = target("file-type", "1.0.0", 1);
    let key = &world.image.targets;
    let signed = |split: &[(&str, serde_json::Value)], listed: bool| {
        let roles = split.iter().map(|(name, rest)| hand::role(name, &[key], rest.clone())).collect();
        let list: &[&ImageTarget] = if listed { &[&release] } else { &[] };
        let split = Some(hand::delegations(&[key], roles));
        hand::sign(&hand::targets(2, world.now + DAY * 300, list, split), &[key])
    };
    let mut files = Vec::new();
    for (role, split) in tree {
        files.push(((*role).to_owned(), signed(split, *role == at)));
    }
    for (name, _) in tree.iter().flat_map(|(_, split)| split.iter()) {
        if !files.iter().any(|(role, _)| role == name) {
            files.push(((*name).to_owned(), signed(&[], *name == at)));
        }
    }
    let roles: Vec<_> = files.iter().map(|(role, file)| (role.as_str(), file.as_slice())).collect();
    let names: Vec<_> = roles.iter().map(|(role, _)| *role).collect();
    let mut offer = world.offer("edge-1", &[&release]);
    put(&world, &mut offer, 2, &roles, &names);
    let accepted = world.accept(&world.enrol(), &offer)?;
    assert_eq!(accepted.state.desired(&device("edge-1")).unwrap().unwrap(), accepted.desired);
    Ok(())
}

#[test]
fn delegations_of_every_form_are_followed() {
    let any = json!({ "paths": ["*.pkg.json"] });
    let other = json!({ "paths": ["other-*"] });
    let last = json!({ "paths": ["*"], "terminating": true });
    let hash = selvedge_package::Digest::of(b"file-type-1.0.0.pkg.json").hex();
    let near = json!({ "path_hash_prefixes": ["ff00", &hash[..7]] });
    let far = json!({ "path_hash_prefixes": ["ff00"] });
    let deep = json!({ "paths": ["*/*"] });
    let found = |tree: &[(&str, &[(&str, serde_json::Value)])], at| find(tree, at).is_ok();
    assert!(found(&[("targets", &[("a", any.clone())])], "a"));
    assert!(found(&[("targets", &[("a", other.clone()), ("b", any.clone())])], "b"));
    assert!(!found(&[("targets", &[("a", other.clone())])], "a"));
    assert!(!found(&[("targets", &[("a", deep)])], "a"));
    assert!(found(&[("targets", &[("a", near)])], "a"));
    assert!(!found(&[("targets", &[("a", far)])], "a"));
    // In order, depth first; a terminating one ends the search.
    assert!(found(
        &[("targets", &[("a", any.clone()), ("b", any.clone())]), ("a", &[("c", any.clone())])],
        "c"
    ));
    assert!(!found(&[("targets", &[("a", last.clone()), ("b", any.clone())])], "b"));
    assert!(found(&[("targets", &[("a", last.clone())]), ("a", &[("c", any.clone())])], "c"));
    // A cycle ends too, and so does a name that belongs to the root.
    assert!(found(
        &[
            ("targets", &[("a", any.clone())]),
            ("a", &[("b", any.clone())]),
            ("b", &[("a", any.clone()), ("c", any.clone())])
        ],
        "c"
    ));
    assert!(!found(&[("targets", &[("a", any.clone())]), ("a", &[("a", any.clone())])], "nobody"));
    assert!(!found(&[("targets", &[("snapshot", any.clone())])], "snapshot"));
    // A tree without end is left.
    let names: Vec<_> = (0..40).map(|at| format!("role-{at}")).collect();
    let wide: Vec<_> = names.iter().map(|name| (name.as_str(), any.clone())).collect();
    assert!(found(&[("targets", &wide)], "role-30"));
    let error = find(&[("targets", &wide)], "role-32").unwrap_err();
    assert_eq!(error.reason(), "too-large");
    assert!(matches!(find(&[("targets", &[("a", other)])], "a"), Err(TrustError::NotReleased { .. })));
}

#[test]
fn a_director_that_delegates_is_refused() {
    let mut world = World::new();
    let mut offer = world.offer("edge-1", &[]);
    let read: serde_json::Value = serde_json::from_slice(&offer.director.targets).unwrap();
    let mut signed = read["signed"].clone();
    let key = &world.director.targets;
    signed["delegations"] =
        hand::delegations(&[key], vec![hand::role("a", &[key], json!({ "paths": ["*"] }))]);
    offer.director.targets = hand::sign(&signed, &[key]);
    let version = signed["version"].as_u64().unwrap();
    std::mem::swap(&mut world.image, &mut world.director);
    let (snapshot, timestamp) = hand::online(&world, version, &[("targets", &offer.director.targets)]);
    std::mem::swap(&mut world.image, &mut world.director);
    offer.director.snapshot = snapshot;
    offer.director.timestamp = timestamp;
    check_refused(world.accept(&world.enrol(), &offer), "not-trusted", "delegates");
}

#[test]
fn hardware_and_floors_are_judged_by_what_was_released() {
    let Split { state, .. } = Split::new();
    let desired = state.desired(&device("edge-1")).unwrap().unwrap();
    let assigned = &desired.assignments[0];
    assert!(assigned.check_hardware("x86_64").is_ok());
    let error = assigned.check_hardware("aarch64").unwrap_err();
    assert_eq!(error.reason(), "wrong-hardware");
    assert!(error.to_string().contains("x86_64"), "{error}");
    assert!(assigned.check_floor(assigned.release).is_ok());
    assert_eq!(assigned.check_floor(assigned.release + 1).unwrap_err().reason(), "below-floor");
}

/// What our own signing makes of many releases: each is found by a device that was given the files on its
/// branch and no other, and its offer stays small.
#[test]
fn a_grown_repository_is_followed_along_one_branch() {
    let mut world = World::new();
    let root = world.image_roots[0].clone();
    let expires = world.now + DAY * 300;
    let releases: Vec<_> = (0..90).map(|at| target(&format!("package-{at}"), "1.0.0", 1)).collect();
    let mut files: Option<ImageFiles> = None;
    for release in &releases {
        let changed = add_release(&root, files.as_ref(), release, expires, &[&world.image.targets]).unwrap();
        files = Some(changed.on(files.as_ref()));
    }
    let files = files.unwrap();
    assert!(files.bins.len() > 8, "it was split");
    let read = verify_image(&root, &files, world.now).unwrap();
    assert_eq!(read.releases.len(), releases.len());

    let expires = world.now + DAY * 7;
    let snapshot = sign_image_snapshot(9, &files, expires, &world.image.snapshot).unwrap();
    let timestamp = sign_timestamp(9, &snapshot, expires, &world.image.timestamp).unwrap();
    let mut state = world.enrol();
    for release in releases.iter().step_by(7) {
        let mut offer = world.offer("edge-1", &[release]);
        offer.image.timestamp = timestamp.clone();
        offer.image.snapshot = snapshot.clone();
        offer.image.targets = files.targets.clone();
        let branch = bins::branch(&release.name()).into_iter();
        offer.image.delegated = branch
            .filter_map(|role| Some(DelegatedFile { file: files.bins.get(&role)?.clone(), role }))
            .collect();
        let accepted = world.accept(&state, &offer).unwrap();
        assert_eq!(accepted.desired.assignments[0].digest, release.digest);
        let mut cbor = Vec::new();
        ciborium::into_writer(&offer, &mut cbor).unwrap();
        assert!(cbor.len() < 64 << 10, "{} bytes", cbor.len());
        state = accepted.state;
    }
}

/// A release signed by "two people" of a delegated role who have one key.
#[test]
fn one_key_under_two_ids_is_not_two_signers_of_a_delegated_role() {
    let mut world = World::new();
    let release = target("file-type", "1.0.0", 1);
    let key = &world.image.targets;
    let mut split = hand::delegations(&[key], vec![hand::role("a", &[key], json!({ "paths": ["*"] }))]);
    let id = key.key_id().unwrap();
    split["keys"]["twin"] = split["keys"][&id].clone();
    split["roles"][0]["keyids"] = json!([id, "twin"]);
    let expires = world.now + DAY * 300;
    let top = hand::sign(&hand::targets(2, expires, &[], Some(split)), &[key]);
    let list = hand::sign(&hand::targets(2, expires, &[&release], None), &[key]);
    let mut offer = world.offer("edge-1", &[&release]);
    put(&world, &mut offer, 2, &[("targets", &top), ("a", &list)], &["a"]);
    check_refused(world.accept(&world.enrol(), &offer), "not-trusted", "would count twice");
}
