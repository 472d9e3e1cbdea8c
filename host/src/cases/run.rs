//! Runs a package's acceptance cases. One after the other: a case is also a measurement.

use std::sync::Arc;
use std::time::Duration;

use selvedge_control::CaseResult;
use selvedge_package::manifest::Acceptance;

use super::{Case, CaseError, compare, read};
use crate::clock;
use crate::serve::predictor::{self, Predictor};

/// Runs every case of the package, in the manifest's order. An error means that a case cannot be
/// read; one that fails is in its result.
pub async fn run_all(package: &Arc<dyn Predictor>) -> Result<Vec<CaseResult>, CaseError> {
    let acceptance = &package.manifest().acceptance;
    // All are read before one is run: a package with a bad case is refused without running it.
    let mut cases = Vec::with_capacity(acceptance.cases.len());
    for file in &acceptance.cases {
        let wrong = |why| CaseError { file: file.to_string(), why };
        let bytes = package.read_file(file).map_err(|error| wrong(error.to_string()))?;
        let files = |path: &_| package.read_file(path).map_err(|error| error.to_string());
        let case = read::parse(&bytes, package.manifest(), &files);
        cases.push(case.map_err(|error| wrong(error.to_string()))?);
    }
    let mut results = Vec::with_capacity(cases.len());
    for case in cases {
        results.push(run(package, case, acceptance).await);
    }
    Ok(results)
}

async fn run(package: &Arc<dyn Predictor>, case: Case, acceptance: &Acceptance) -> CaseResult {
    let limit = Duration::from_millis(acceptance.latency_ms.into());
    let (mut ms, mut failure) = once(package, &case, acceptance).await;
    // A first run also fills caches and makes an instance: latency is judged on a warm one.
    if failure.is_none() && !limit.is_zero() && ms > limit.as_secs_f64() * 1e3 {
        (ms, failure) = once(package, &case, acceptance).await;
        if failure.is_none() && ms > limit.as_secs_f64() * 1e3 {
            failure = Some(format!("took {ms:.1} ms; at most {} ms are allowed", limit.as_millis()));
        }
    }
    CaseResult { case: case.name, ms, failure }
}

async fn once(package: &Arc<dyn Predictor>, case: &Case, acceptance: &Acceptance) -> (f64, Option<String>) {
    let deadline = Duration::from_millis(package.manifest().module.deadline_ms.into());
    let start = clock::now();
    let answer = predictor::ask(Arc::clone(package), case.inputs.clone(), deadline, ()).await;
    let ms = clock::now().duration_since(start).as_secs_f64() * 1e3;
    let tolerance = case.tolerance.unwrap_or_else(|| acceptance.tolerance_on(std::env::consts::ARCH));
    let failure = match answer {
        Ok(outputs) => compare::compare(&case.outputs, &outputs, tolerance).err().map(|m| m.to_string()),
        Err(error) => Some(error.to_string()),
    };
    (ms, failure)
}
