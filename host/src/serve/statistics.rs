//! `GET /v2/models/M/stats` and `/v2/models/stats`: what became of requests, as Triton's statistics extension
//! says it. Durations are sums in nanoseconds over requests; there is no cache of answers.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::Serving;
use super::counts::{Runs, Snapshot};
use super::failure;
use super::served::{Held, Served};
use crate::memory;

/// The statistics of some models.
#[derive(Debug, Serialize)]
pub struct Statistics {
    /// One for each package.
    pub model_stats: Vec<ModelStatistics>,
}

/// The statistics of a model since it was loaded.
#[derive(Debug, Serialize)]
pub struct ModelStatistics {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Milliseconds since 1970; 0 before the first.
    pub last_inference: u64,
    /// Rows of all runs.
    pub inference_count: u64,
    /// Runs.
    pub execution_count: u64,
    /// By where the time went.
    pub inference_stats: InferenceStatistics,
    /// By the rows of a run.
    pub batch_stats: Vec<BatchStatistics>,
    /// What it takes.
    pub memory_usage: [MemoryUsage; 1],
}

/// How many, and how long together.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Duration {
    /// How many.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// By where the time went.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct InferenceStatistics {
    pub success: Duration,
    pub fail: Duration,
    pub queue: Duration,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
    pub cache_hit: Duration,
    pub cache_miss: Duration,
}

/// Runs of one size.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct BatchStatistics {
    pub batch_size: u64,
    pub compute_input: Duration,
    pub compute_infer: Duration,
    pub compute_output: Duration,
}

/// Memory that the host took for a package.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct MemoryUsage {
    pub r#type: &'static str,
    pub id: u64,
    pub byte_size: u64,
}

impl ModelStatistics {
    /// Of a package, where the host takes so many bytes of memory of its own.
    pub fn of(model: &Served, memory: u64) -> Self {
        Self::new(
            model.manifest().name.as_str(),
            model.version(),
            &model.counts.snapshot(),
            model.memory(memory),
        )
    }

    fn new(name: &str, version: &str, counts: &Snapshot, byte_size: u64) -> Self {
        let of = |ns: u64| Duration { count: counts.success, ns };
        let [input, queue, infer, output] = counts.times;
        let fail = Duration { count: counts.failures.iter().sum(), ns: counts.failing };
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            last_inference: counts.last,
            inference_count: counts.inferences(),
            execution_count: counts.executions(),
            inference_stats: InferenceStatistics {
                success: of(counts.times.iter().sum()),
                fail,
                queue: of(queue),
                compute_input: of(input),
                compute_infer: of(infer),
                compute_output: of(output),
                cache_hit: Duration::default(),
                cache_miss: Duration::default(),
            },
            batch_stats: counts.runs.iter().map(|(rows, runs)| batch(*rows, runs)).collect(),
            memory_usage: [MemoryUsage { r#type: "CPU", id: 0, byte_size }],
        }
    }
}

fn batch(batch_size: u64, runs: &Runs) -> BatchStatistics {
    let of = |ns: u64| Duration { count: runs.count, ns };
    let [input, infer, output] = runs.times;
    BatchStatistics {
        batch_size,
        compute_input: of(input),
        compute_infer: of(infer),
        compute_output: of(output),
    }
}

/// `GET …/stats`.
pub async fn one(model: Held) -> Response {
    let statistics = Statistics { model_stats: vec![ModelStatistics::of(&model, memory::own())] };
    failure::json(StatusCode::OK, &statistics)
}

/// `GET /v2/models/stats`: every package that is loaded, those that are not routed yet or any more included.
pub async fn all(State(serving): State<Arc<Serving>>) -> Response {
    let memory = memory::own();
    let served = serving.table.all();
    let model_stats = served.iter().map(|served| ModelStatistics::of(served, memory)).collect();
    failure::json(StatusCode::OK, &Statistics { model_stats })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn is_said_as_triton_says_it() {
        let counts = Snapshot {
            success: 3,
            failures: [1, 0, 1, 0],
            failing: 9,
            times: [1, 2, 30, 4],
            last: 5,
            runs: [(2, Runs { count: 1, times: [6, 7, 8] })].into(),
            ..Snapshot::default()
        };
        let told = serde_json::to_value(ModelStatistics::new("m", "1.0.0", &counts, 64)).unwrap();
        let of = |count: u64, ns: u64| json!({"count": count, "ns": ns});
        assert_eq!(
            told,
            json!({
                "name": "m", "version": "1.0.0", "last_inference": 5,
                "inference_count": 2, "execution_count": 1,
                "inference_stats": {
                    "success": of(3, 37), "fail": of(2, 9), "queue": of(3, 2), "compute_input": of(3, 1),
                    "compute_infer": of(3, 30), "compute_output": of(3, 4),
                    "cache_hit": of(0, 0), "cache_miss": of(0, 0),
                },
                "batch_stats": [{"batch_size": 2, "compute_input": of(1, 6), "compute_infer": of(1, 7),
                    "compute_output": of(1, 8)}],
                "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 64}],
            })
        );
    }
}
