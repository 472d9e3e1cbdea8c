//! `GET /metrics`: what Prometheus reads, under the names that Triton's users look for.
//!
//! Times are sums in microseconds, over requests that were answered. Releases of the same version count
//! as one. What Triton does not have is named `selvedge_…`, in seconds and bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::Serving;
use super::counts::{BOUNDS, Parts, Reason, Snapshot};
use crate::memory;

/// What Prometheus's text form is called.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A model's numbers.
#[derive(Debug, Clone, Default)]
struct Numbers {
    counts: Snapshot,
    pending: u64,
    memory: u64,
    sequences: u64,
    sequences_begun: u64,
}

/// Numbers by name and version.
type Models = BTreeMap<(String, String), Numbers>;

/// `GET /metrics`.
pub async fn metrics(State(serving): State<Arc<Serving>>) -> Response {
    let memory = memory::own();
    let mut models = Models::new();
    for served in serving.table.all() {
        let key = (served.manifest().name.to_string(), served.version().to_owned());
        let numbers = models.entry(key).or_default();
        numbers.counts.add(&served.counts.snapshot());
        numbers.pending += served.gate.waiting();
        numbers.memory += served.memory(memory);
        if let Some(sequences) = served.predictor.sequences() {
            numbers.sequences += sequences.count() as u64;
            numbers.sequences_begun += sequences.begun();
        }
    }
    let mut response = text(&models, memory).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}

/// Name, help, kind and value of what is one number a model.
type Single = (&'static str, &'static str, Kind, fn(&Numbers) -> u64);

const SINGLE: [Single; 13] = [
    ("nv_inference_request_success", "Requests answered", Kind::Counter, |it| it.counts.success),
    ("nv_inference_count", "Inferences done: the rows of all runs", Kind::Counter, |it| {
        it.counts.inferences()
    }),
    ("nv_inference_exec_count", "Runs: those of several requests once", Kind::Counter, |it| {
        it.counts.executions()
    }),
    (
        "nv_inference_request_duration_us",
        "Time of answered requests in all, once their bodies were here",
        Kind::Counter,
        |it| it.counts.times.iter().sum::<u64>() / 1000,
    ),
    ("nv_inference_queue_duration_us", "Time that they waited for their turn", Kind::Counter, |it| {
        it.counts.times[1] / 1000
    }),
    ("nv_inference_compute_input_duration_us", "Time of reading their tensors", Kind::Counter, |it| {
        it.counts.times[0] / 1000
    }),
    ("nv_inference_compute_infer_duration_us", "Time of module and model", Kind::Counter, |it| {
        it.counts.times[2] / 1000
    }),
    ("nv_inference_compute_output_duration_us", "Time of writing their answers", Kind::Counter, |it| {
        it.counts.times[3] / 1000
    }),
    ("nv_inference_pending_request_count", "Requests that wait for their turn", Kind::Gauge, |it| it.pending),
    ("selvedge_package_memory_bytes", "Memory that the host took for the package", Kind::Gauge, |it| {
        it.memory
    }),
    ("selvedge_sequences", "Sequences that the package keeps", Kind::Gauge, |it| it.sequences),
    ("selvedge_sequences_begun", "Sequences that have begun", Kind::Counter, |it| it.sequences_begun),
    ("selvedge_package_loaded", "1: the package is loaded", Kind::Gauge, |_| 1),
];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Everything, in Prometheus's text form.
fn text(models: &Models, memory: u64) -> String {
    let mut text = String::new();
    for (name, help, kind, value) in SINGLE {
        head(&mut text, name, help, kind);
        for (model, numbers) in models {
            line(&mut text, name, &labels(model), value(numbers));
        }
    }
    head(&mut text, "nv_inference_request_failure", "Requests not answered", Kind::Counter);
    for (model, numbers) in models {
        for (reason, count) in Reason::ALL.iter().zip(numbers.counts.failures) {
            let labels = format!("{},reason=\"{}\"", labels(model), reason.name());
            line(&mut text, "nv_inference_request_failure", &labels, count);
        }
    }
    for (name, help, of) in HISTOGRAMS {
        head(&mut text, name, help, Kind::Histogram);
        for (model, numbers) in models {
            let (parts, sum) = of(&numbers.counts);
            histogram(&mut text, name, &labels(model), parts, sum);
        }
    }
    head(&mut text, "selvedge_batch_size", "Rows of each run", Kind::Histogram);
    for (model, numbers) in models {
        sizes(&mut text, &labels(model), &numbers.counts);
    }
    head(&mut text, "selvedge_host_memory_bytes", "Memory that the host has to itself", Kind::Gauge);
    let _ = writeln!(text, "selvedge_host_memory_bytes {memory}");
    text
}

/// Parts of a histogram, and the sum in nanoseconds.
type Histogram = (&'static str, &'static str, fn(&Snapshot) -> (&Parts, u64));

const HISTOGRAMS: [Histogram; 3] = [
    ("selvedge_request_duration_seconds", "Times of answered requests", |counts| {
        (&counts.latency, counts.times.iter().sum())
    }),
    ("selvedge_queue_duration_seconds", "Times that they waited for their turn", |counts| {
        (&counts.queue, counts.times[1])
    }),
    ("selvedge_compute_duration_seconds", "Times of module and model", |counts| {
        (&counts.compute, counts.times[2])
    }),
];

fn histogram(text: &mut String, name: &str, labels: &str, parts: &Parts, nanos: u64) {
    let mut sum = 0;
    for (at, count) in parts.iter().enumerate() {
        sum += count;
        let bound = BOUNDS.get(at).map_or("+Inf".to_owned(), |&micros| seconds(micros));
        line(text, &format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), sum);
    }
    let _ = writeln!(text, "{name}_sum{{{labels}}} {}", seconds(nanos / 1000));
    line(text, &format!("{name}_count"), labels, sum);
}

/// Bounds of the sizes of runs.
const SIZES: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

fn sizes(text: &mut String, labels: &str, counts: &Snapshot) {
    let name = "selvedge_batch_size";
    let up_to = |most: u64| counts.runs.range(..=most).map(|(_, runs)| runs.count).sum::<u64>();
    for most in SIZES {
        line(text, &format!("{name}_bucket"), &format!("{labels},le=\"{most}\""), up_to(most));
    }
    line(text, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), counts.executions());
    line(text, &format!("{name}_sum"), labels, counts.inferences());
    line(text, &format!("{name}_count"), labels, counts.executions());
}

fn seconds(micros: u64) -> String {
    (micros as f64 / 1e6).to_string()
}

fn head(text: &mut String, name: &str, help: &str, kind: Kind) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    // Writing to a string does not fail, here and below.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

/// Neither names of packages nor versions have a quote, a backslash or a line's end.
fn labels((model, version): &(String, String)) -> String {
    format!("model=\"{model}\",version=\"{version}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::counts::Runs;

    #[test]
    fn every_line_has_its_type_and_a_histogram_adds_up() {
        let mut numbers = Numbers { pending: 3, memory: 4096, ..Numbers::default() };
        numbers.counts.success = 3;
        numbers.counts.failures = [0, 1, 0, 2];
        numbers.counts.times = [1_000, 2_000, 3_000_000_000, 4_000];
        (numbers.counts.latency[0], numbers.counts.latency[15]) = (2, 1);
        numbers.counts.queue[0] = 3;
        numbers.counts.runs =
            [(1, Runs { count: 1, times: [0; 3] }), (3, Runs { count: 2, times: [0; 3] })].into();
        let models = Models::from([(("m".to_owned(), "1.0.0".to_owned()), numbers)]);
        let text = text(&models, 5);
        let labels = r#"{model="m",version="1.0.0""#;
        for expected in [
            format!("nv_inference_request_success{labels}}} 3"),
            format!("nv_inference_request_failure{labels},reason=\"OTHER\"}} 2"),
            format!("nv_inference_request_failure{labels},reason=\"CANCELED\"}} 1"),
            format!("nv_inference_request_duration_us{labels}}} 3000007"),
            format!("nv_inference_compute_infer_duration_us{labels}}} 3000000"),
            format!("nv_inference_pending_request_count{labels}}} 3"),
            format!("selvedge_package_memory_bytes{labels}}} 4096"),
            format!("selvedge_request_duration_seconds_bucket{labels},le=\"0.00025\"}} 2"),
            format!("selvedge_request_duration_seconds_bucket{labels},le=\"10\"}} 2"),
            format!("selvedge_request_duration_seconds_bucket{labels},le=\"+Inf\"}} 3"),
            format!("selvedge_request_duration_seconds_sum{labels}}} 3.000007"),
            format!("selvedge_request_duration_seconds_count{labels}}} 3"),
            format!("selvedge_queue_duration_seconds_bucket{labels},le=\"0.00025\"}} 3"),
            format!("selvedge_queue_duration_seconds_sum{labels}}} 0.000002"),
            format!("selvedge_compute_duration_seconds_sum{labels}}} 3"),
            format!("nv_inference_count{labels}}} 7"),
            format!("nv_inference_exec_count{labels}}} 3"),
            format!("selvedge_batch_size_bucket{labels},le=\"2\"}} 1"),
            format!("selvedge_batch_size_bucket{labels},le=\"4\"}} 3"),
            format!("selvedge_batch_size_sum{labels}}} 7"),
            "selvedge_host_memory_bytes 5".to_owned(),
        ] {
            assert!(text.lines().any(|line| line == expected), "no {expected} in\n{text}");
        }
        let mut kinds = Vec::new();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                kinds.push(kind.split(' ').next().unwrap());
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(name.starts_with(kinds.last().unwrap()), "{line} without its type");
            }
        }
        let count = kinds.len();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), count, "a type stands once");
    }
}
