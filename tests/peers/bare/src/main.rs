//! `peer-bare LIBRARY MODEL`: opens an ONNX model whose one input is int32 `[1, N]` with ort and the
//! host's session options, answers zeros once, says `answered`, and stays until its standard input
//! ends. No server, no sandbox, no runtime: what is left is ONNX Runtime itself.

use std::io::{Read as _, Write as _};

use anyhow::{Context as _, bail};
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::{Tensor, ValueType};

fn main() -> anyhow::Result<()> {
    let [library, model] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| anyhow::anyhow!("usage: peer-bare LIBRARY MODEL"))?;
    let environment = ort::init_from(&library)?.with_telemetry(false).build()?;
    let mut session = open(&environment, &model)?;
    let ValueType::Tensor { shape, .. } = session.inputs()[0].dtype() else {
        bail!("the model's first input is no tensor");
    };
    let length = shape.last().copied().filter(|&extent| extent > 0).context("its last extent is free")?;
    let zeros = vec![0_i32; usize::try_from(length)?];
    let name = session.inputs()[0].name().to_owned();
    let outputs = session.run(ort::inputs![name => Tensor::from_array(([1, length], zeros))?])?;
    let (_, scores) = outputs[0].try_extract_tensor::<f32>()?;
    println!("answered with {} scores", scores.len());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// With the options of `host/src/session`.
fn open(environment: &Environment, model: &str) -> ort::Result<Session> {
    Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .commit_from_file(model)
}
