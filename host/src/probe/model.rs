//! What is inside a bare model, and one case recorded from seeded inputs.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use selvedge_control::{ControlError, ProbedModel, Reason};

use super::{refusal, seeded};
use crate::cases::record::record;
use crate::limits::MODEL_BYTES;
use crate::onnx;
use crate::runtime::Runtime;
use crate::session::{How, Model, Source};
use crate::tensor::NamedTensor;

/// Longest time that the one run may take. Creating the session cannot be limited from inside.
const DEADLINE: Duration = Duration::from_secs(60);

/// Opens the model in `file`, with external data beside it, and runs it once.
pub fn probe(runtime: &Runtime, file: &Path) -> Result<ProbedModel, ControlError> {
    let bad = |why: String| refusal(Reason::BadModel, format!("`{}` is refused: {why}", file.display()));
    let bytes = read(file).map_err(|error| {
        refusal(Reason::BadModel, format!("`{}` cannot be read: {error}", file.display()))
    })?;
    let external = onnx::external_data(&bytes).map_err(|error| bad(error.to_string()))?;
    for location in &external {
        if location.parse::<selvedge_package::FilePath>().is_err() {
            return Err(bad(format!("it names external data `{location}`, which no package can hold")));
        }
        let beside = file.with_file_name(location);
        if !beside.is_file() {
            return Err(bad(format!("its external data `{}` is missing", beside.display())));
        }
    }
    let source = if external.is_empty() { Source::Bytes(&bytes) } else { Source::File(file) };
    let model = Model::open(runtime.environment(), runtime.ticker(), source, How::PLAIN, || {
        // Nothing serves here: whoever started the trial gets its end.
        std::process::abort();
    })
    .map_err(|error| bad(error.to_string()))?;
    let inputs = seeded::inputs(model.inputs()).map_err(bad)?;
    let pairs: Vec<_> = inputs.iter().map(|input| (input.name.clone(), input.tensor.clone())).collect();
    let _busy = runtime.ticker().enter();
    let outputs: Vec<NamedTensor> = model
        .run_here(&pairs, DEADLINE.into())
        .map_err(|error| {
            bad(format!("it does not run with seeded inputs ({error}); write an acceptance case by hand"))
        })?
        .into_iter()
        .map(|(name, tensor)| NamedTensor::new(name, tensor))
        .collect();
    Ok(ProbedModel {
        inputs: model.inputs().to_vec(),
        outputs: model.outputs().to_vec(),
        external_data: external.into_iter().collect(),
        case: record("seeded", &inputs, &outputs),
    })
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(MODEL_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MODEL_BYTES {
        return Err(std::io::Error::other("it is larger than 2 GiB"));
    }
    Ok(bytes)
}
