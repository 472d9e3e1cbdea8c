//! The short run: every way in is fed the seeds of its fuzz target, and many changed ones, the same each
//! time. `SELVEDGE_STRANGERS_ROUND` repeats one; what long runs have found lies among the seeds.

use std::fs;
use std::panic::catch_unwind;

use selvedge_strangers::mutate::{Random, changed};
use selvedge_strangers::{TARGETS, seeds};

/// Feeds so many changed seeds to a target.
fn feed(target: &str, rounds: u64) {
    let (_, check) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target");
    let seeds = read(target);
    for (name, seed) in &seeds {
        assert!(
            catch_unwind(|| check(seed)).is_ok(),
            "what is wrong with the seed `{target}/{name}` stands above"
        );
    }
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let only = std::env::var("SELVEDGE_STRANGERS_ROUND").ok().map(|round| round.parse().expect("a number"));
    for round in only.map_or(0..rounds, |round: u64| round..round + 1) {
        let input = changed(&mut Random::new(round), &seeds);
        if catch_unwind(|| check(&input)).is_err() {
            let shown = input.escape_ascii();
            panic!(
                "what is wrong stands above; SELVEDGE_STRANGERS_ROUND={round} repeats it: {target}, b\"{shown}\""
            );
        }
    }
}

/// In the order of their names, so that a round is the same on every machine.
fn read(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = seeds::folder(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut read: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("an entry of the folder").path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            (name.unwrap_or_default(), fs::read(&path).expect("a seed that can be read"))
        })
        .collect();
    read.sort();
    read
}

#[test]
fn requests_in_json() {
    feed("oip_json", 300_000);
}

#[test]
fn requests_with_binary_data() {
    feed("oip_binary", 300_000);
}

#[test]
fn messages_of_grpc() {
    feed("oip_grpc", 300_000);
}

#[test]
fn requests_to_the_control_socket() {
    feed("control_socket", 10_000);
}

/// Found by the fuzz target: every path is asked for a long text of what has to be escaped.
#[test]
fn what_comes_is_not_said_back_at_any_length() {
    for letter in 0..=u8::MAX {
        for fill in ["\\", "\"pt\\", "\u{1}"] {
            let body = fill.repeat(4000 / fill.len());
            let length = u16::try_from(body.len()).unwrap().to_le_bytes();
            selvedge_strangers::control_socket::check(&[&[letter][..], &length, body.as_bytes()].concat());
        }
    }
}

#[test]
fn onnx_files() {
    feed("onnx_protobuf", 300_000);
}

/// What is written where there are no seeds is what is there, and all of it is short.
#[test]
fn the_seeds_are_those_that_are_written() {
    for (target, _) in TARGETS {
        let read = read(target);
        for seed in seeds::of(target) {
            assert!(read.contains(&seed), "the seed {target}/{} is another: write them again", seed.0);
        }
        assert!(read.iter().all(|(_, seed)| seed.len() < 4096), "{target}");
        assert!(read.iter().map(|(_, seed)| seed.len()).sum::<usize>() < 25 << 10, "{target}");
    }
}
