//! Asking a model without pause, as an application on the device would, and keeping every answer.
//!
//! The rate is kept whatever the answers take (an open loop): a slow answer does not hide the
//! requests that would have come meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::clock;

/// Longest time that one request may take: a request that is held back for longer has failed.
const LONGEST: Duration = Duration::from_secs(30);

/// Requests under way, in a thread of their own.
pub struct Asking {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Asked>>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// When it was sent.
    pub at: Instant,
    /// Until its answer was whole.
    pub took: Duration,
    /// The version that answered, or what went wrong.
    pub answer: Result<String, String>,
}

impl Asking {
    /// POSTs `body` to `url` once every `pace` until it is stopped.
    pub fn start(url: String, body: &'static str, pace: Duration) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made")
                .block_on(ask(url, body, pace, &stopped, &counted))
        });
        Self { stop, sent, thread }
    }

    /// How many were sent so far.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Sends no more, waits for the last answers and gives all of them.
    pub fn stop(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("asking does not panic")
    }
}

/// Those that were not answered well, as lines for a failed assertion.
pub fn failures(asked: &[Asked]) -> Vec<&String> {
    asked.iter().filter_map(|asked| asked.answer.as_ref().err()).collect()
}

async fn ask(
    url: String,
    body: &'static str,
    pace: Duration,
    stop: &AtomicBool,
    sent: &AtomicUsize,
) -> Vec<Asked> {
    let client = reqwest::Client::builder().timeout(LONGEST).build().expect("a client can be made");
    let mut tick = tokio::time::interval(pace);
    let mut running = tokio::task::JoinSet::new();
    let mut all = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        let (client, url) = (client.clone(), url.clone());
        running.spawn(async move {
            let at = clock::now();
            let answer = once(&client, &url, body).await;
            Asked { at, took: at.elapsed(), answer }
        });
        sent.fetch_add(1, Ordering::SeqCst);
        while let Some(done) = running.try_join_next() {
            all.push(done.expect("a request does not panic"));
        }
    }
    while let Some(done) = running.join_next().await {
        all.push(done.expect("a request does not panic"));
    }
    all.sort_by_key(|asked| asked.at);
    all
}

async fn once(client: &reqwest::Client, url: &str, body: &'static str) -> Result<String, String> {
    let response = client.post(url).body(body).send().await.map_err(|error| format!("{error:?}"))?;
    let status = response.status();
    let text = response.text().await.map_err(|error| format!("{error:?}"))?;
    if !status.is_success() {
        return Err(format!("{status}: {text}"));
    }
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    answer["model_version"].as_str().map(str::to_owned).ok_or_else(|| format!("no version in {text}"))
}
