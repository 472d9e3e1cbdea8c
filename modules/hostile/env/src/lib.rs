//! Tells what it sees of its surroundings: variables, clocks, random numbers, files. Without
//! capabilities it must see nothing, and the same nothing every time.

use std::time::{Duration, Instant, SystemTime};

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::{config, tensors::Tensor};

struct Env;

export!(Env);

impl Guest for Env {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let variables: Vec<_> = std::env::vars().map(|(key, value)| format!("{key}={value}")).collect();
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::MAX);
        let start = Instant::now();
        let mut work = 0_u64;
        for turn in 0..20_000_000_u64 {
            work = core::hint::black_box(work ^ turn);
        }
        let moved = start.elapsed() > Duration::ZERO;
        // A hash map's seed comes from the random numbers of the host.
        let random = {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(1)
        };
        let files: Vec<_> = std::fs::read_dir("/package")
            .map(|entries| entries.flatten().map(|entry| entry.path().display().to_string()).collect())
            .unwrap_or_default();
        let escape =
            std::fs::read("/package/../../../etc/passwd").is_ok() || std::fs::read("/etc/passwd").is_ok();
        let written = std::fs::write("/package/new", b"x").is_ok();
        let settings: Vec<_> =
            config::all().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let lines = [
            format!("variables {}", variables.join(",")),
            format!("wall {}", wall.as_secs()),
            format!("moved {moved}"),
            format!("random {random}"),
            format!("files {}", files.join(",")),
            format!("escape {escape}"),
            format!("written {written}"),
            format!("settings {}", settings.join(",")),
        ];
        let elements: Vec<_> = lines.iter().map(|line| line.clone().into_bytes()).collect();
        let tensor = Tensor::create_bytes(&[lines.len() as u64], &elements)?;
        Ok(vec![NamedTensor { name: "seen".to_owned(), tensor }])
    }
}
