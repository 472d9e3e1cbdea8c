//! Cases that ONNX Runtime cannot do: the host has to say so, in the words of ONNX Runtime, and go on.

use std::sync::Arc;

use selvedge_host::probe::seeded;
use selvedge_host::session::Model;
use selvedge_tests::serving::{Host, LONG, Package, Spec, tensor};
use serde_json::json;

use crate::cases::Case;
use crate::groups::Outcome;
use crate::packaged::{Tensors, package, tensors};
use crate::value::Value;

/// A model that ONNX Runtime does not open: the package is refused for it.
pub async fn at_opening(host: &Arc<Host>, number: usize, case: &Case, why: String) -> Outcome {
    let one = |name| tensor((name, "FP32"), &[1], json!([1]));
    let golden = json!({"name": "never asked", "inputs": [one("x")], "outputs": [one("y")]});
    let specs: [Spec; 2] = [("x", "FP32", &[1]), ("y", "FP32", &[1])];
    let specs = (&specs[..1], &specs[1..]);
    let package = Package::new(&format!("case-{number}"), 1, case.model.0.clone(), specs, golden).write();
    match host.control.load(&package.load(), LONG).await {
        Ok(_) => Outcome::Failed("a model was loaded that ONNX Runtime does not open".to_owned()),
        Err(error) => said(&error.to_string(), &why),
    }
}

/// A model that ONNX Runtime opens and does not run with the inputs of a set: the acceptance case says so.
pub async fn at_the_run(
    host: &Arc<Host>,
    number: usize,
    (case, set): (&Case, usize),
    model: &Model,
    why: String,
) -> Outcome {
    let set = &case.sets[set];
    // ONNX Runtime takes no empty sequence; a client cannot even send one.
    if set.inputs.iter().flatten().any(|value| matches!(value, Value::Sequence(items) if items.is_empty())) {
        return Outcome::Unable(why);
    }
    // What they would be does not matter.
    let outputs = seeded::inputs(model.outputs()).unwrap();
    let asked = Tensors { outputs, ..tensors(case, set, &[]) };
    let package = package(number, (model.inputs(), model.outputs()), case, &asked);
    let loaded = match host.control.load(&package.load(), LONG).await {
        Ok(loaded) => loaded,
        Err(error) => return Outcome::Failed(format!("loading: {error}")),
    };
    let failure = loaded.first_failure().and_then(|failed| failed.failure.clone());
    host.control.unload(&package.package, LONG).await.unwrap();
    failure.map_or_else(
        || Outcome::Failed("it ran, which ONNX Runtime did not".to_owned()),
        |failure| said(&failure, &why),
    )
}

/// The host's words have those of ONNX Runtime in them.
fn said(host: &str, why: &str) -> Outcome {
    // Places in the process and lengths of text may differ.
    let start: String = why.chars().take(60).collect();
    if host.contains(&start) {
        Outcome::Unable(why.to_owned())
    } else {
        Outcome::Failed(format!("the host says `{host}`, and ONNX Runtime `{why}`"))
    }
}
