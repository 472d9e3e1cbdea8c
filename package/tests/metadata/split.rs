//! A repository that is split into bins, verified as a whole: what signs, serves and publishes it
//! takes the one form that is used here and no other.

use std::collections::BTreeMap;

use selvedge_package::trust::{ImageFiles, bins, read_proposed_image, verify_image};
use selvedge_signing::SigningKey;
use selvedge_signing::image::ImageTarget;
use serde_json::{Value, json};

use crate::fixture::{DAY, World, target};
use crate::hand;

/// Releases, each in the bin of one digit that its name falls into.
pub fn in_bins(releases: &[ImageTarget]) -> BTreeMap<String, Vec<&ImageTarget>> {
    let mut found = BTreeMap::<String, Vec<&ImageTarget>>::new();
    for release in releases {
        found.entry(bins::branch(&release.name()).swap_remove(0)).or_default().push(release);
    }
    found
}

/// A repository split once.
pub fn split(world: &World, releases: &[ImageTarget]) -> ImageFiles {
    let expires = world.now + DAY * 300;
    let signed = |list: &[&ImageTarget], split| {
        hand::sign(&hand::targets(2, expires, list, split), &[&world.image.targets])
    };
    let bins = in_bins(releases).into_iter().map(|(role, list)| (role, signed(&list, None))).collect();
    ImageFiles { targets: signed(&[], Some(hand::sixteen(world, ""))), bins }
}

pub fn hundred() -> Vec<ImageTarget> {
    (0..100).map(|at| target(&format!("package-{at}"), "1.0.0", 1)).collect()
}

#[test]
fn a_split_repository_is_verified_whole() {
    let world = World::new();
    let releases = hundred();
    let files = split(&world, &releases);
    let read = verify_image(&world.image_roots[0], &files, world.now).unwrap();
    assert_eq!(read.version, 2);
    assert_eq!(read.releases.len(), 100);
    assert_eq!(read.roles.len(), 1 + files.bins.len());
    assert_eq!(read.expires, world.now + DAY * 300);
    let mut names: Vec<_> = releases.iter().map(ImageTarget::name).collect();
    names.sort();
    assert_eq!(read.releases.iter().map(|release| release.target.clone()).collect::<Vec<_>>(), names);
    // A bin that has no file is an empty one.
    let mut fewer = files.clone();
    let (role, _) = fewer.bins.pop_first().unwrap();
    let read = verify_image(&world.image_roots[0], &fewer, world.now).unwrap();
    assert!(read.releases.len() < 100 && !read.roles.contains_key(&role));
    // Old files, and files of other signers.
    let late = verify_image(&world.image_roots[0], &files, world.now + DAY * 301).unwrap_err();
    assert_eq!(late.reason(), "expired");
    let other = World::new();
    assert!(verify_image(&other.image_roots[0], &files, world.now).is_err());
}

/// Checks that the whole is refused after `change`, with `words` in the message.
fn check_refused(words: &str, change: impl FnOnce(&World, &mut ImageFiles)) {
    let world = World::new();
    let mut files = split(&world, &hundred());
    change(&world, &mut files);
    let error = verify_image(&world.image_roots[0], &files, world.now).unwrap_err();
    // Whoever is asked to sign is told of everything but the missing signatures.
    let proposed = read_proposed_image(&world.image_roots[0], &files, world.now);
    assert_eq!(proposed.is_ok(), words == "ThresholdNotMet", "{words}");
    let text = format!("{error}: {:?}", std::error::Error::source(&error));
    assert!(text.contains(words), "{text:?} lacks {words:?}");
}

/// `targets.json` with a change of its delegations, signed anew.
fn with_delegations(world: &World, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut split = hand::sixteen(world, "");
    change(&mut split);
    let signed = hand::targets(2, world.now + DAY * 300, &[], Some(split));
    hand::sign(&signed, &[&world.image.targets])
}

#[test]
fn another_form_is_refused() {
    let stranger = SigningKey::generate().unwrap();
    check_refused("nothing delegates to it", |_, files| {
        let (_, file) = files.bins.pop_first().unwrap();
        files.bins.insert("bin-00".into(), file);
    });
    check_refused("falls into another bin", |_, files| {
        let (_, file) = files.bins.pop_first().unwrap();
        *files.bins.first_entry().unwrap().get_mut() = file;
    });
    check_refused("ThresholdNotMet", |world, files| {
        let list = hand::targets(2, world.now + DAY, &[], None);
        *files.bins.first_entry().unwrap().get_mut() = hand::sign(&list, &[&stranger]);
    });
    check_refused("lists targets all the same", |world, files| {
        let one = target("package-1", "1.0.0", 1);
        let all = hand::targets(2, world.now + DAY, &[&one], Some(hand::sixteen(world, "")));
        files.targets = hand::sign(&all, &[&world.image.targets]);
    });
    check_refused("not split into sixteen", |world, files| {
        files.targets = with_delegations(world, |split| drop(split["roles"].as_array_mut().unwrap().pop()));
    });
    check_refused("not in their order", |world, files| {
        files.targets = with_delegations(world, |split| split["roles"].as_array_mut().unwrap().reverse());
    });
    check_refused("other than its prefix", |world, files| {
        files.targets = with_delegations(world, |split| {
            split["roles"][3]["path_hash_prefixes"] = json!(["3", "4"]);
        });
    });
    check_refused("not terminating", |world, files| {
        files.targets = with_delegations(world, |split| split["roles"][3]["terminating"] = json!(false));
    });
    check_refused("other keys, or another threshold", |world, files| {
        files.targets = with_delegations(world, |split| split["roles"][3]["threshold"] = json!(2));
    });
    check_refused("other keys, or another threshold", |world, files| {
        files.targets = with_delegations(world, |split| {
            let more = hand::delegations(&[&stranger], Vec::new());
            split["keys"].as_object_mut().unwrap().extend(more["keys"].as_object().unwrap().clone());
            let id = json!(stranger.key_id().unwrap());
            split["roles"][3]["keyids"].as_array_mut().unwrap().push(id);
        });
    });
    check_refused("deeper than bins go", |world, files| {
        for prefix in ["0", "00", "000", "0000"] {
            let split = Some(hand::sixteen(world, prefix));
            let file = hand::sign(&hand::targets(1, world.now + DAY, &[], split), &[&world.image.targets]);
            files.bins.insert(bins::role(prefix), file);
        }
    });
    check_refused("262145 bytes", |_, files| {
        *files.bins.first_entry().unwrap().get_mut() = vec![b' '; (256 << 10) + 1];
    });
}
