//! Part `soak`: how a host has grown after a million requests, and after ten thousand loads and unloads.

use selvedge_tests::report::Report;
use selvedge_tests::serving::{Host, LONG, Package, tensor};
use selvedge_tests::usage::settled_kib;
use serde_json::json;

use super::wrk::{self, Asked};

const REQUESTS: u64 = 1_000_000;
const REQUESTS_TO_WARM_UP: u64 = 100_000;
const LOADS: u64 = 10_000;
const LOADS_TO_WARM_UP: u64 = 1_000;
const GROWN_MIB: f64 = 5.0;

/// Requests between two looks.
const SECONDS: u64 = 5;

pub async fn measure(report: &mut Report) -> anyhow::Result<()> {
    let host = Host::start().await;
    let place = tempfile::tempdir()?;
    host.put(&Package::identity("identity", 1).write()).await;
    let url = format!("{}/v2/models/identity/infer", host.url);
    let body = json!({"inputs": [tensor(("x", "FP32"), &[2, 3], json!([1, 2, 3, 4, 5, 6]))]}).to_string();
    let mut done = 0;
    let mut ask = |until: u64| {
        while done < until {
            let asked = Asked { url: &url, body: body.as_bytes(), headers: &[] };
            done += wrk::run(&asked, 8, SECONDS, place.path())?.requests;
        }
        anyhow::Ok(done)
    };
    ask(REQUESTS_TO_WARM_UP)?;
    let before = settled_kib(host.id());
    let requests = ask(REQUESTS_TO_WARM_UP + REQUESTS)?;
    told(report, "requests", requests, before, settled_kib(host.id()));

    let others = [2, 3].map(|release| Package::identity("other", release).write());
    let mut loads = 0;
    let mut before = 0;
    while loads < LOADS_TO_WARM_UP + LOADS {
        if loads == LOADS_TO_WARM_UP {
            before = settled_kib(host.id());
        }
        let other = &others[loads as usize % 2];
        host.put(other).await;
        host.control.unload(&other.package, LONG).await?;
        loads += 1;
    }
    told(report, "loads and unloads", loads - LOADS_TO_WARM_UP, before, settled_kib(host.id()));
    Ok(())
}

fn told(report: &mut Report, what: &str, count: u64, before: u64, after: u64) {
    let grown = (after as f64 - before as f64) / 1024.0;
    println!("{count} {what}: {:.2} MiB, {grown:+.2} MiB since the warm-up", after as f64 / 1024.0);
    report.figure(&format!("pss_mib after {what}"), after as f64 / 1024.0);
    report.at_most(&format!("growth by {what}, MiB"), grown, GROWN_MIB);
}
