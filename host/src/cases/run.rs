//! Runs a package's acceptance cases. One after the other: a case is also a measurement. They are the
//! warm-up, too: what has run once has its memory, its caches and an instance.

use std::sync::Arc;
use std::time::Duration;

use selvedge_control::{CaseResult, Purpose};
use selvedge_package::manifest::Acceptance;

use super::{Case, CaseError, compare, read};
use crate::clock;
use crate::serve::predictor::{self, Predictor};

/// How often a case is run before it counts as too slow: a busy moment of the device is no fault of the
/// package's.
const TRIES: u32 = 3;

/// Time after which a package that was accepted before runs no more of its cases.
const BRIEF: Duration = Duration::from_secs(1);

/// Runs the cases of the package, in the manifest's order, then warms it up. On trial every case counts;
/// what was accepted before runs its first one, and others as long as hardly any time has passed. An error
/// means that a case cannot be read; one that fails is in its result.
pub async fn run_all(package: &Arc<dyn Predictor>, purpose: Purpose) -> Result<Vec<CaseResult>, CaseError> {
    let acceptance = &package.manifest().acceptance;
    let start = clock::now();
    let mut results = Vec::with_capacity(acceptance.cases.len());
    if purpose == Purpose::Serve {
        for file in &acceptance.cases {
            if !results.is_empty() && clock::now().duration_since(start) >= BRIEF {
                break;
            }
            results.push(run(package, &case(package, file)?, acceptance).await);
        }
        // What has run is warm; of several sessions that is one.
        let sessions = package.manifest().models.iter().map(|model| model.sessions).max().unwrap_or(1);
        if let (2.., Some(first)) = (sessions, acceptance.cases.first())
            && clock::now().duration_since(start) < BRIEF
        {
            side_by_side(package, &case(package, first)?, sessions).await;
        }
        return Ok(results);
    }
    // All are read before one is run: a package with a bad case is refused without running it.
    let cases: Vec<_> = acceptance.cases.iter().map(|file| case(package, file)).collect::<Result<_, _>>()?;
    for case in &cases {
        results.push(run(package, case, acceptance).await);
    }
    if results.iter().all(|result| result.failure.is_none()) {
        warm_up(package, &cases).await;
    }
    Ok(results)
}

fn case(package: &Arc<dyn Predictor>, file: &selvedge_package::FilePath) -> Result<Case, CaseError> {
    let wrong = |why| CaseError { file: file.to_string(), why };
    let bytes = package.read_file(file).map_err(|error| wrong(error.to_string()))?;
    let files = |path: &_| package.read_file(path).map_err(|error| error.to_string());
    read::parse(&bytes, package.manifest(), &files).map_err(|error| wrong(error.to_string()))
}

async fn run(package: &Arc<dyn Predictor>, case: &Case, acceptance: &Acceptance) -> CaseResult {
    let limit = Duration::from_millis(acceptance.latency_ms.into());
    let slow = |ms: f64| !limit.is_zero() && ms > limit.as_secs_f64() * 1e3;
    let (mut ms, mut failure) = once(package, case, acceptance).await;
    // A first run also fills caches and makes an instance: latency is judged on a warm one.
    for _ in 1..TRIES {
        if failure.is_some() || !slow(ms) {
            break;
        }
        (ms, failure) = once(package, case, acceptance).await;
    }
    if failure.is_none() && slow(ms) {
        failure = Some(format!("took {ms:.1} ms; at most {} ms are allowed", limit.as_millis()));
    }
    CaseResult { case: case.name.clone(), ms, failure }
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

/// Asks the inputs of every case again, as often as the manifest says, by as many side by side as may be
/// served so: each finds an instance that has run before. What they answer was judged already. In a throw-away child,
/// too, where nobody is going to ask: what that takes is how a device knows whether two releases fit into its
/// memory, and this one is going to have all of its instances.
async fn warm_up(package: &Arc<dyn Predictor>, cases: &[Case]) {
    let manifest = package.manifest();
    for _ in 0..manifest.activation.warm_up {
        for case in cases {
            side_by_side(package, case, manifest.module.concurrency.max(1)).await;
        }
    }
}

async fn side_by_side(package: &Arc<dyn Predictor>, case: &Case, count: u32) {
    let deadline = Duration::from_millis(package.manifest().module.deadline_ms.into());
    let asked: Vec<_> = (0..count)
        .map(|_| {
            let (package, inputs) = (Arc::clone(package), case.inputs.clone());
            tokio::spawn(predictor::ask(package, inputs, deadline, ()))
        })
        .collect();
    for one in asked {
        // Nothing depends on how it ends.
        drop(one.await);
    }
}
