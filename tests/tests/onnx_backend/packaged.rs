//! A case as a package in a real host, asked over HTTP.

use std::sync::Arc;

use selvedge_host::cases::record::record;
use selvedge_host::engine::{self, ticker::Ticker};
use selvedge_host::session::ort::environment::Environment;
use selvedge_host::session::{Model, SessionError, Source, library};
use selvedge_host::tensor::NamedTensor;
use selvedge_package::tensor::TensorSpec;
use selvedge_tests::programs::set_up;
use selvedge_tests::serving::{Host, LONG, Package, Spec, Written};
use serde_json::{Value as Json, json};

use crate::answer;
use crate::cases::{Case, Set};
use crate::direct;
use crate::groups::Outcome;
use crate::value::{self, Value};

/// Bytes of a tensor from which on it has a file of its own in the acceptance case.
const LARGE: usize = 1 << 16;

/// ONNX Runtime in this process.
pub struct Runner {
    environment: Environment,
    ticker: Ticker,
}

/// The tensors of a set, as a client knows them.
struct Tensors {
    inputs: Vec<NamedTensor>,
    outputs: Vec<NamedTensor>,
}

impl Runner {
    pub fn new() -> Self {
        let (environment, _) = library::load(&set_up("setup/onnxruntime/libonnxruntime.so")).unwrap();
        Self { environment, ticker: Ticker::start(engine::new_engine().unwrap()).unwrap() }
    }

    /// Runs a case directly and through the host.
    pub async fn run(&self, host: &Arc<Host>, number: usize, case: &Case) -> Outcome {
        let outputs = match self.directly(case) {
            Ok(outputs) => outputs,
            Err(why) => return Outcome::OnnxRuntime(why),
        };
        let model = Model::open(&self.environment, &self.ticker, Source::Bytes(&case.model.0), 1, || {
            panic!("a case that cannot be stopped");
        });
        let model = match model {
            Ok(model) => model,
            Err(error @ SessionError::Tensor { .. }) => return Outcome::Refused(error.to_string()),
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let sets: Vec<Tensors> =
            case.sets.iter().zip(&outputs).map(|(set, outputs)| tensors(case, set, outputs)).collect();
        let package = package(number, (model.inputs(), model.outputs()), case, &sets[0]);
        match through(host, &package, &sets).await {
            Ok(()) => Outcome::Passed,
            Err(why) => Outcome::Failed(why),
        }
    }

    /// What ONNX Runtime gives for each set, if that is what the case says.
    fn directly(&self, case: &Case) -> Result<Vec<Vec<Option<Value>>>, String> {
        let mut session = direct::open(&self.environment, &case.model.0)?;
        let mut all = Vec::new();
        for set in &case.sets {
            let outputs = direct::run(&mut session, case, &set.inputs)?;
            let close = set.outputs.iter().zip(&outputs).all(|(expected, actual)| {
                value::close(expected.as_ref(), actual.as_ref(), case.rtol, case.atol)
            });
            if set.outputs.len() != outputs.len() || !close {
                return Err("it gives something else than the case says".to_owned());
            }
            all.push(outputs);
        }
        Ok(all)
    }
}

fn tensors(case: &Case, set: &Set, outputs: &[Option<Value>]) -> Tensors {
    let of = |names: &[String], values: &[Option<Value>]| {
        let pairs = names.iter().zip(values);
        pairs.flat_map(|(name, value)| value::tensors(name, value.as_ref())).collect()
    };
    Tensors { inputs: of(&case.inputs, &set.inputs), outputs: of(&case.outputs, outputs) }
}

/// The package of a case. Its first set is its acceptance case.
fn package(number: usize, specs: (&[TensorSpec], &[TensorSpec]), case: &Case, first: &Tensors) -> Written {
    fn list(specs: &[TensorSpec]) -> Vec<Spec<'_>> {
        specs.iter().map(|spec| (&*spec.name, spec.datatype.name(), &*spec.shape)).collect()
    }
    let mut golden = record(&case.name, &first.inputs, &first.outputs);
    let mut files = Vec::new();
    for (direction, given) in [("inputs", &first.inputs), ("outputs", &first.outputs)] {
        for (at, NamedTensor { tensor, .. }) in given.iter().enumerate() {
            // What is large lies in files of its own, as in a package that a person makes.
            if let Some(bytes) = tensor.as_fixed().filter(|bytes| bytes.len() > LARGE) {
                let path = format!("{direction}-{at}.bin");
                let written = golden[direction][at].as_object_mut().unwrap();
                written.remove("data");
                written.insert("file".to_owned(), path.clone().into());
                files.push((path, bytes.to_vec()));
            }
        }
    }
    let tensors = (&list(specs.0)[..], &list(specs.1)[..]);
    let package = Package::new(&format!("case-{number}"), 1, case.model.0.clone(), tensors, golden);
    files.into_iter().fold(package, |package, (path, bytes)| package.listed(&path, bytes)).write()
}

async fn through(host: &Arc<Host>, package: &Written, sets: &[Tensors]) -> Result<(), String> {
    let loaded =
        host.control.load(&package.load(), LONG).await.map_err(|error| format!("loading: {error}"))?;
    let answers = async {
        if let Some(failed) = loaded.first_failure() {
            return Err(format!("its acceptance case: {:?}", failed.failure));
        }
        host.control.activate(&package.package, LONG).await.map_err(|error| error.to_string())?;
        for set in sets {
            let name = package.package.name.as_str();
            in_json(host, name, set).await.map_err(|error| format!("in JSON: {error}"))?;
            as_bytes(host, name, set).await.map_err(|error| format!("as bytes: {error}"))?;
        }
        Ok(())
    };
    let answers = answers.await;
    host.control.unload(&package.package, LONG).await.map_err(|error| format!("unloading: {error}"))?;
    answers
}

/// Asks in JSON; what comes has to be what ONNX Runtime gave.
async fn in_json(host: &Arc<Host>, name: &str, set: &Tensors) -> Result<(), String> {
    // Numbers that JSON does not have are strings here, which the host takes.
    let recorded = record("", &set.inputs, &set.outputs);
    // Elements that are not UTF-8 could not be written as text.
    let base64 = |output: &NamedTensor| json!({"name": output.name, "parameters": {"encoding": "base64"}});
    let outputs: Json = set.outputs.iter().map(base64).collect();
    let request = json!({"inputs": recorded["inputs"], "outputs": outputs});
    let (status, text) = host.post_text(&format!("/v2/models/{name}/infer"), request.to_string()).await;
    if status != 200 {
        return Err(format!("{status}: {text}"));
    }
    answer::compare(&answer::from_json(&text)?, &set.outputs)
}

/// Asks with binary data and for binary data.
async fn as_bytes(host: &Arc<Host>, name: &str, set: &Tensors) -> Result<(), String> {
    let (mut inputs, mut body) = (Vec::new(), Vec::new());
    for NamedTensor { name, tensor } in &set.inputs {
        let bytes = answer::to_bytes(tensor);
        inputs.push(json!({
            "name": name, "datatype": tensor.datatype().name(), "shape": tensor.shape(),
            "parameters": {"binary_data_size": bytes.len()},
        }));
        body.extend(bytes);
    }
    let request = json!({"inputs": inputs, "parameters": {"binary_data_output": true}}).to_string();
    let path = format!("/v2/models/{name}/infer");
    let (status, head, tail) = host.post_binary(&path, request, &body).await;
    if status != 200 {
        return Err(format!("{status}: {head}"));
    }
    answer::compare(&answer::from_binary(&head, &tail)?, &set.outputs)
}
