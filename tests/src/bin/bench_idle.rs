//! `cargo xtask bench idle [SECONDS]`: what an agent costs while nothing happens, with its defaults:
//! wake-ups per minute of all its threads, and bytes on its connection to the broker, over TLS: per hour as
//! they are, per day with the headers of TCP and IP, both ways. The limits are those of `docs/agent.md`.

use std::time::Duration;

use selvedge_tests::packages::push_identity;
use selvedge_tests::stack::Stack;
use selvedge_tests::usage::{pss_kib, waits};
use selvedge_tests::wire::Wire;

/// Time measured unless the command line says otherwise: several heartbeats.
const SECONDS: u64 = 300;
/// Time in which the report of the update is acknowledged and everything has settled.
const SETTLE: Duration = Duration::from_secs(20);

const WAKE_UPS_PER_MINUTE: f64 = 30.0;
const BYTES_PER_HOUR: f64 = 20_000.0;
const BYTES_PER_DAY: f64 = 550_000.0;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let mut stack = Stack::without_agent();
    let wire = Wire::to(stack.broker_address());
    stack.agents_broker = wire.address.clone();
    stack.start_agent();
    push_identity(&stack, 3_000_000);
    stack.wait_committed("identity", 1);
    std::thread::sleep(SETTLE);

    let agent = stack.agent.as_ref().expect("the agent was started").id();
    let host = stack.host_id().expect("it has a host");
    let count = || (waits(agent) as f64, waits(host) as f64, wire.up() as f64, wire.down() as f64);
    let (before, charged) = (count(), wire.charged());
    std::thread::sleep(Duration::from_secs(seconds));
    let after = count();
    let per = |before: f64, after: f64, unit: f64| (after - before) / seconds as f64 * unit;
    let wakes = per(before.0, after.0, 60.0);
    let host_wakes = per(before.1, after.1, 60.0);
    let (up, down) = (per(before.2, after.2, 3600.0), per(before.3, after.3, 3600.0));
    let day = per(charged as f64, wire.charged() as f64, 86_400.0);
    println!("measured for {seconds} s");
    println!("{:<40} {wakes:>10.1}", "agent, wake-ups per minute");
    println!("{:<40} {host_wakes:>10.1}", "host, wake-ups per minute");
    println!("{:<40} {up:>10.0}", "agent, bytes sent per hour");
    println!("{:<40} {down:>10.0}", "agent, bytes received per hour");
    println!("{:<40} {day:>10.0}", "both ways a day, with TCP and IP");
    println!("{:<40} {:>10.2}", "agent, PSS in MiB", pss_kib(agent) as f64 / 1024.0);
    let bar = |name: &str, value: f64, limit: f64| serde_json::json!({"name": name, "value": value, "limit": limit, "holds": value <= limit});
    let report = serde_json::json!({
        "bench": "idle",
        "figures": {
            "seconds": seconds, "wake_ups_per_minute": wakes, "host_wake_ups_per_minute": host_wakes,
            "bytes_sent_per_hour": up, "bytes_received_per_hour": down,
            "bytes_per_day": day,
        },
        "bars": [
            bar("agent wake-ups per minute", wakes, WAKE_UPS_PER_MINUTE),
            bar("agent bytes sent per hour", up, BYTES_PER_HOUR),
            bar("bytes a day both ways, with TCP and IP", day, BYTES_PER_DAY),
        ],
    });
    drop(stack);
    println!("{report}");
}
