//! `cargo xtask bench delivery [PART…]`: how fast a blob gets to a device, against the least that could
//! move it in the same run. Parts: `loopback` (100 MB through Mosquitto, against bare rumqttc at QoS 0
//! with the same blocks and window, and against that with the least of checking and keeping), `memory` (the agent's PSS while 500 MB come), `slow` (1 Mbit/s,
//! 300 ms there and back, 2 % loss, over TLS, against one bare TCP download under cubic), `cut` (the
//! same link, silent for 5 s of every 20 s, against what the time in between allows), and, only where it is
//! named, `largest` (PSS while a blob of 2 GiB comes, the largest there may be; wants 10 GB of disk).
//!
//! What is compared takes turns, three times, and the spread is said.
//! Ends with one line of JSON.

mod link;
mod loopback;

use std::time::Duration;

use selvedge_tests::emulated;
use selvedge_tests::report::Report;

const PARTS: [&str; 5] = ["loopback", "memory", "slow", "cut", "largest"];
const PATIENCE: Duration = Duration::from_secs(900);
const MB: usize = 1_000_000;

fn main() {
    emulated::enter();
    if cfg!(debug_assertions) {
        eprintln!("bench_delivery: this is a debug build; its figures on loopback mean little");
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = words.iter().find(|word| !PARTS.contains(&word.as_str())) {
        panic!("no part is called `{unknown}`; there are: {}", PARTS.join(", "));
    }
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let mut report = Report::default();
    if wanted("loopback") || wanted("memory") {
        loopback::measure(&mut report, wanted("loopback"), wanted("memory"));
    }
    if words.iter().any(|word| word == "largest") {
        loopback::largest(&mut report);
    }
    if wanted("slow") || wanted("cut") {
        link::measure(&mut report, wanted("slow"), wanted("cut"));
    }
    report.print("delivery");
}
