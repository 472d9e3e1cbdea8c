//! A case as a package in a real host, asked over HTTP.

use std::sync::Arc;

use selvedge_host::cases::record::record;
use selvedge_host::engine::{self, ticker::Ticker};
use selvedge_host::session::ort::environment::Environment;
use selvedge_host::session::{How, Model, SessionError, Source, library};
use selvedge_host::tensor::NamedTensor;
use selvedge_package::tensor::TensorSpec;
use selvedge_tests::programs::set_up;
use selvedge_tests::serving::{Host, LONG, Package, Spec, Written};
use serde_json::{Value as Json, json};

use crate::answer;
use crate::cases::{Case, Set};
use crate::direct;
use crate::groups::Outcome;
use crate::unable;
use crate::value::{self, Value};

/// Bytes of a tensor from which on it has a file of its own in the acceptance case.
const LARGE: usize = 1 << 16;

/// ONNX Runtime in this process.
pub struct Runner {
    environment: Environment,
    ticker: Ticker,
}

/// The tensors of a set, as a client knows them.
pub struct Tensors {
    pub inputs: Vec<NamedTensor>,
    pub outputs: Vec<NamedTensor>,
}

impl Runner {
    pub fn new() -> Self {
        let (environment, _) = library::load(&set_up("setup/onnxruntime/libonnxruntime.so")).unwrap();
        Self { environment, ticker: Ticker::start(engine::new_engine().unwrap()).unwrap() }
    }

    /// Runs a case directly and through the host.
    pub async fn run(&self, host: &Arc<Host>, number: usize, case: &Case) -> Outcome {
        let directly = self.directly(case);
        let model =
            Model::open(&self.environment, &self.ticker, Source::Bytes(&case.model.0), How::PLAIN, || {
                panic!("a case that cannot be stopped");
            });
        let (model, directly) = match (model, directly) {
            (Err(error @ SessionError::Tensor { .. }), _) => return Outcome::Refused(error.to_string()),
            (Err(SessionError::Onnx(_)), Err(Unable::Opens(why))) => {
                return unable::at_opening(host, number, case, why).await;
            }
            (Err(error), _) => return Outcome::Failed(format!("opened only directly: {error}")),
            (Ok(_), Err(Unable::Opens(why))) => {
                return Outcome::Failed(format!("does not open directly: {why}"));
            }
            (Ok(model), Err(Unable::Runs(set, why))) => {
                return unable::at_the_run(host, number, (case, set), &model, why).await;
            }
            (Ok(model), Ok(directly)) => (model, directly),
        };
        let sets = case.sets.iter().zip(&directly.outputs);
        let sets: Vec<Tensors> = sets.map(|(set, outputs)| tensors(case, set, outputs)).collect();
        let package = package(number, (model.inputs(), model.outputs()), case, &sets[0]);
        match (through(host, &package, &sets).await, directly.differs) {
            (Ok(()), None) => Outcome::Passed,
            (Ok(()), Some(why)) => Outcome::Differs(why),
            (Err(why), Some(_)) if why.contains(": element ") && self.varies(case) => {
                Outcome::Differs("something else at every run".to_owned())
            }
            (Err(why), _) => Outcome::Failed(why),
        }
    }

    /// Whether ONNX Runtime, too, gives other elements for the same inputs.
    fn varies(&self, case: &Case) -> bool {
        let Ok(mut session) = direct::open(&self.environment, &case.model.0) else { return false };
        let mut run = || direct::run(&mut session, case, &case.sets[0].inputs);
        // Random numbers are the same for a few runs.
        run().is_ok_and(|first| (0..16).any(|_| run().is_ok_and(|again| again != first)))
    }

    /// What ONNX Runtime gives for each set.
    fn directly(&self, case: &Case) -> Result<Directly, Unable> {
        let mut session = direct::open(&self.environment, &case.model.0).map_err(Unable::Opens)?;
        let mut directly = Directly { outputs: Vec::new(), differs: None };
        for (number, set) in case.sets.iter().enumerate() {
            let outputs = direct::run(&mut session, case, &set.inputs);
            let outputs = outputs.map_err(|why| Unable::Runs(number, why))?;
            assert_eq!(set.outputs.len(), outputs.len(), "outputs of {}", case.name);
            let pairs = set.outputs.iter().zip(&outputs).zip(&case.outputs);
            let mut differences = pairs.filter_map(|((expected, actual), name)| {
                value::difference(expected.as_ref(), actual.as_ref(), case.rtol, case.atol)
                    .map(|why| format!("`{name}`: {why}"))
            });
            directly.differs = directly.differs.or(differences.next());
            directly.outputs.push(outputs);
        }
        Ok(directly)
    }
}

/// What ONNX Runtime gave for each set, and how it is not what the case says.
struct Directly {
    outputs: Vec<Vec<Option<Value>>>,
    differs: Option<String>,
}

/// Where ONNX Runtime gave up, and why.
enum Unable {
    Opens(String),
    Runs(usize, String),
}

/// What a client sends and gets.
pub fn tensors(case: &Case, set: &Set, outputs: &[Option<Value>]) -> Tensors {
    let of = |names: &[String], values: &[Option<Value>]| {
        let pairs = names.iter().zip(values);
        pairs.flat_map(|(name, value)| value::tensors(name, value.as_ref())).collect()
    };
    Tensors { inputs: of(&case.inputs, &set.inputs), outputs: of(&case.outputs, outputs) }
}

/// The package of a case. Its first set is its acceptance case.
pub fn package(
    number: usize,
    specs: (&[TensorSpec], &[TensorSpec]),
    case: &Case,
    first: &Tensors,
) -> Written {
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
    let package = optional(package, "inputs", specs.0);
    let package = optional(package, "outputs", specs.1);
    files.into_iter().fold(package, |package, (path, bytes)| package.listed(&path, bytes)).write()
}

/// Says of a package what may be left out.
fn optional(package: Package, list: &str, specs: &[TensorSpec]) -> Package {
    let optional = specs.iter().enumerate().filter(|(_, spec)| spec.optional);
    optional.fold(package, |package, (at, _)| package.optional(list, at))
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
