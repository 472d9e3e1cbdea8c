//! Writes the first inputs of the targets of the host: `cargo run -p selvedge-strangers --example seeds`.

use selvedge_strangers::{TARGETS, seeds};

fn main() {
    for (target, _) in TARGETS {
        let folder = seeds::folder(target);
        std::fs::create_dir_all(&folder).expect("a folder for the seeds");
        for (name, seed) in seeds::of(target) {
            std::fs::write(folder.join(name), seed).expect("a seed is written");
        }
    }
}
