//! ONNX Runtime alone, in a session as the host opens one.

use selvedge_host::runtime::Runtime;
use selvedge_host::session::ort;
use selvedge_host::session::ort::session::Session;
use selvedge_host::session::ort::session::builder::GraphOptimizationLevel;
use selvedge_host::session::ort::value::Tensor;
use selvedge_tests::clock::now;

/// A session.
pub fn session(runtime: &Runtime, model: &[u8]) -> ort::Result<Session> {
    Session::builder(runtime.environment())?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .commit_from_memory(model)
}

/// A session and its input `x`, made beforehand.
pub struct Native {
    session: Session,
    value: Tensor<f32>,
}

impl Native {
    /// Of this model, for an input of this shape.
    pub fn new(runtime: &Runtime, model: &[u8], shape: &[u64]) -> ort::Result<Self> {
        let extents: Vec<i64> = shape.iter().map(|&extent| extent.cast_signed()).collect();
        let data = vec![0.5_f32; shape.iter().product::<u64>() as usize];
        Ok(Self { session: session(runtime, model)?, value: Tensor::from_array((extents, data))? })
    }

    /// Microseconds of one run, its output `y` freed.
    pub fn run(&mut self) -> anyhow::Result<f64> {
        let inputs = ort::inputs!["x" => &self.value];
        let start = now();
        let outputs = self.session.run(inputs)?;
        anyhow::ensure!(outputs["y"].is_tensor());
        drop(outputs);
        Ok((now() - start).as_secs_f64() * 1e6)
    }
}
