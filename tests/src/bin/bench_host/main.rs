//! `cargo xtask bench host [PART…]`: what the host costs. Parts: `call` (what the sandbox adds to a call,
//! against `Session::run` in the same process, and what a large binary tensor costs a request), `http` (requests a second and processor time a request,
//! against a bare axum + ort server, under wrk from a process of its own), `memory` (PSS with one model of
//! 3 MB, against the least program that opens it), `hostile` (a well-behaved model's 95th percentile beside
//! each hostile guest, against alone; `guests=spin,trap` names some of them), `soak` (growth over a million
//! requests and ten thousand loads).
//!
//! What is compared takes turns. Ends with one line of JSON.
#![allow(clippy::unwrap_used)]

mod call;
mod client;
mod copies;
mod hostile;
mod http;
mod memory;
mod native;
mod soak;
mod wrk;

use selvedge_tests::report::Report;

const PARTS: [&str; 5] = ["call", "http", "memory", "hostile", "soak"];
/// Which guests `hostile` measures, where not all: `guests=spin,trap`.
const ONLY: &str = "guests=";

fn main() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("bench_host: this is a debug build; its figures mean nothing");
    }
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let only: Vec<String> = words.extract_if(.., |word| word.starts_with(ONLY)).collect();
    let only: Vec<&str> = only.iter().flat_map(|word| word[ONLY.len()..].split(',')).collect();
    if let Some(unknown) = words.iter().find(|word| !PARTS.contains(&word.as_str())) {
        anyhow::bail!("no part is called `{unknown}`; there are: {}", PARTS.join(", "));
    }
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let mut report = Report::default();
    if wanted("call") {
        call::measure(&mut report)?;
    }
    // A process has one ONNX Runtime; the other parts start programs and have none in here.
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(async {
        if wanted("http") {
            http::measure(&mut report).await?;
        }
        if wanted("memory") {
            memory::measure(&mut report).await;
        }
        if wanted("hostile") {
            hostile::measure(&mut report, &only).await?;
        }
        if wanted("soak") {
            soak::measure(&mut report).await?;
        }
        anyhow::Ok(())
    })?;
    report.print("host");
    Ok(())
}
