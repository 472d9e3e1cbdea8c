//! Example 02 against the Python package whose model it runs: the same segments for real recordings, in one request
//! and piece by piece, and streams side by side that do not hear each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use selvedge_tests::examples;
use selvedge_tests::programs::{root, set_up};
use selvedge_tests::serving::Host;
use serde_json::{Value, json};

const RAW: &str = "/v2/models/voice-activity/raw";

/// Segments and sample rate by file name.
type Answers = BTreeMap<String, (Value, u64)>;

async fn host() -> Host {
    let host = Host::start().await;
    host.put(&examples::package("voice-activity")).await;
    host
}

fn python(script: &Path) -> Command {
    let mut python = Command::new(set_up("setup/venv/bin/python"));
    python.arg(script);
    python
}

/// Makes the recordings and asks the Python package about them.
fn recordings_in(folder: &Path) -> Answers {
    fs::create_dir_all(folder).unwrap();
    let mut python = python(&root().join("tests/tests/examples/recordings.py"));
    let output = python.arg(folder).arg(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Pairs of an answer's `segments`, and its `sample_rate`.
fn read(answer: &Value) -> (Vec<Value>, u64) {
    let [segments, rate] = &answer["outputs"].as_array().unwrap()[..] else { panic!("{answer}") };
    let pairs = segments["data"].as_array().unwrap().chunks(2).map(|pair| json!(pair));
    (pairs.collect(), rate["data"][0].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_the_segments_that_the_python_package_finds() {
    let dir = tempfile::tempdir().unwrap();
    let expected = recordings_in(dir.path());
    let count = |name: &str| expected[name].0.as_array().unwrap().len();
    assert!(expected.len() >= 19 && count("long.wav") >= 5 && count("noise.wav") == 0, "{expected:?}");

    let host = host().await;
    let mut found = 0;
    for (name, (segments, rate)) in &expected {
        let bytes = fs::read(dir.path().join(name)).unwrap();
        let (status, answer) = host.post_bytes(RAW, bytes.clone()).await;
        assert_eq!(status, 200, "{name}: {answer}");
        assert_eq!(read(&answer), (segments.as_array().unwrap().clone(), *rate), "{name}");
        // Piece by piece: at the ends of samples, or not.
        let piece = if name.starts_with("long") { 33_333 } else { 16_000 };
        assert_eq!(stream(&host, name, &bytes, piece).await, *segments, "{name} in pieces");
        found += segments.as_array().unwrap().len();
    }
    println!("{} recordings, {found} segments", expected.len());
    let client = python(&root().join("tests/tests/examples/stream.py"))
        .args([host.url.strip_prefix("http://").unwrap(), dir.path().join("long.wav").to_str().unwrap()])
        .output()
        .unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let segments = &expected["long.wav"].0;
    let by_every_client = json!([segments, segments, segments]);
    assert_eq!(serde_json::from_slice::<Value>(&client.stdout).unwrap(), by_every_client);
}

/// Sends a file as a sequence of its name; all segments of its answers.
async fn stream(host: &Host, name: &str, bytes: &[u8], piece: usize) -> Value {
    let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
    let mut segments = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let (first, last) = (at == 0, at + 1 == pieces.len());
        let path = format!("{RAW}?sequence_id={name}&sequence_start={first}&sequence_end={last}");
        let (status, answer) = host.post_bytes(&path, piece.to_vec()).await;
        assert_eq!(status, 200, "{name}: {answer}");
        segments.extend(read(&answer).0);
    }
    json!(segments)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_side_by_side_do_not_hear_each_other() {
    let host = Arc::new(host().await);
    let speech = set_up("setup/speech");
    let files = ["004.wav", "sense_and_sensibility-0930.wav", "002.wav"];
    let whole = |name: &str| fs::read(speech.join(name)).unwrap();
    let mut alone = Vec::new();
    for name in files {
        alone.push(json!(read(&host.post_bytes(RAW, whole(name)).await.1).0));
    }
    // Several of each, a piece of one after a piece of another.
    let streams = files.iter().chain(&files).enumerate().map(|(at, file)| {
        let (host, bytes) = (Arc::clone(&host), whole(file));
        tokio::spawn(async move { stream(&host, &(at + 1).to_string(), &bytes, 8_000).await })
    });
    let streams: Vec<_> = streams.collect();
    for (at, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.await.unwrap(), alone[at % files.len()], "{at}");
    }
    let metrics = reqwest::get(format!("{}/metrics", host.url)).await.unwrap();
    let text = metrics.text().await.unwrap();
    assert!(text.contains("selvedge_sequences{model=\"voice-activity\",version=\"1.0.0\"} 0"), "{text}");
    assert!(
        text.contains("selvedge_sequences_begun{model=\"voice-activity\",version=\"1.0.0\"} 6"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn says_what_it_cannot_hear() {
    let host = host().await;
    let bytes = fs::read(set_up("setup/speech").join("004.wav")).unwrap();
    let check = async |query: &str, body: &[u8], status: u16, says: &str| {
        let (found, answer) = host.post_bytes(&format!("{RAW}{query}"), body.to_vec()).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(found == status && error.contains(says), "{query}: {found} {answer}");
    };
    check("", b"", 400, "no WAV file").await;
    check("", b"ID3\x04 is another kind", 400, "no WAV file").await;
    check("", &bytes[..30], 400, "format is cut short").await;
    check("", &bytes[..40], 400, "does not end within its first 40 bytes").await;
    check("", &bytes[..2_000], 400, "bytes before its head says").await;
    let mut rate = bytes.clone();
    rate[24..28].copy_from_slice(&44_100_u32.to_le_bytes());
    check("", &rate, 400, "44100 samples a second").await;
    check("?sequence_id=1", &bytes, 409, "no request began it here").await;
    check("?sequence=1", &bytes, 400, "may say `sequence_id`").await;
    // What failed first has not begun, and a good beginning goes on.
    check("?sequence_id=1&sequence_start=true", b"nothing", 400, "no WAV file").await;
    check("?sequence_id=1", &bytes, 409, "a request of it failed").await;
    check("?sequence_id=1&sequence_start=true", &bytes[..1_000], 200, "").await;
    check("?sequence_id=1&sequence_end=true", &bytes[1_000..], 200, "").await;
}
