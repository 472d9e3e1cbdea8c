//! A stolen Director key: it may choose among what was released, and nothing else.

use selvedge_package::Digest;
use selvedge_package::trust::DirectorAssignment;

use crate::fixture::{World, check_refused, target};

fn check(change: impl FnOnce(&mut DirectorAssignment), reason: &str, words: &str) {
    let mut world = World::new();
    let state = world.enrol();
    world.release(&target("other", "1.0.0", 1));
    world.sequence = 1;
    let mut assignment = world.assignment("edge-1", &[&target("file-type", "1.0.0", 1)]);
    change(&mut assignment);
    let offer = world.offer_of(&assignment);
    check_refused(world.accept(&state, &offer), reason, words);
}

#[test]
fn both_must_agree_on_name_length_digest_and_release() {
    let of = "not-released";
    check(|a| a.assignments[0].digest = Digest::of(b"evil"), of, "disagree on the digest");
    check(|a| a.assignments[0].length += 1, of, "disagree on the length");
    check(|a| a.assignments[0].release = 2, of, "disagree on the release");
    check(|a| a.assignments[0].package = "other".parse().unwrap(), of, "disagree on the package");
    check(|a| a.assignments[0].target = "other-1.0.0.pkg.json".into(), of, "disagree");
    check(|a| a.assignments[0].target = "evil-1.0.0.pkg.json".into(), of, "never released");
    check(|a| a.assignments[0].target = "../../etc/passwd".into(), of, "never released");
}

#[test]
fn malformed_assignments_are_refused() {
    let of = "bad-assignment";
    check(|a| a.format = 2, of, "format 2");
    check(|a| a.sequence = 0, of, "sequence 0");
    check(|a| a.assignments.push(a.assignments[0].clone()), of, "assigned twice");
    check(|a| drop(a.assignments[0].settings.insert("a=b".into(), "".into())), of, "settings");
    check(|a| drop(a.assignments[0].settings.insert("a".into(), "\0".into())), of, "settings");
    check(|a| a.nonce = vec![0; 65], "too-large", "nonce");
}

#[test]
fn a_rollback_to_a_release_that_exists_is_the_directors_to_choose() {
    let mut world = World::new();
    let (first, second) = (target("file-type", "1.0.0", 1), target("file-type", "1.1.0", 2));
    world.release(&second);
    let offer = world.offer("edge-1", &[&second]);
    let held = world.accept(&world.enrol(), &offer).unwrap().state;
    let offer = world.offer("edge-1", &[&first]);
    assert_eq!(world.accept(&held, &offer).unwrap().desired.assignments[0].release, 1);
}
