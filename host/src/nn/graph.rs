//! Graphs: the models of the package, and no others.

use std::sync::Arc;

use selvedge_package::Digest;
use wasmtime::component::Resource;

use super::bindings::wasi::nn::graph::{self, ExecutionTarget, GraphEncoding};
use super::failure::{Answer, Code, Failure};
use super::inference::Context;
use crate::sandbox::state::State;
use crate::session::Model;

/// A model that a guest loaded.
pub struct Graph(Arc<Model>);

impl graph::Host for State {
    fn load(
        &mut self,
        builder: Vec<Vec<u8>>,
        encoding: GraphEncoding,
        target: ExecutionTarget,
    ) -> Answer<Resource<Graph>> {
        let found = self.by_bytes(&builder, encoding).and_then(|model| on(model, target));
        self.answer(found)
    }

    fn load_by_name(&mut self, name: String) -> Answer<Resource<Graph>> {
        let models = &self.shared.models;
        let found =
            models.iter().find(|(model, _)| model.as_str() == name).map(|(_, model)| Graph(model.clone()));
        let found = found.ok_or_else(|| {
            let name: String = name.chars().take(80).collect();
            let known: Vec<_> = models.iter().map(|(name, _)| format!("`{name}`")).collect();
            let why = format!("no model `{name}` in the package; it has {}", known.join(", "));
            Failure::new(Code::NotFound, why)
        });
        self.answer(found)
    }
}

impl State {
    /// The model of which these are the bytes.
    fn by_bytes(&self, builder: &[Vec<u8>], encoding: GraphEncoding) -> Result<Arc<Model>, Failure> {
        if !matches!(encoding, GraphEncoding::Onnx | GraphEncoding::Autodetect) {
            return Err(Failure::new(Code::InvalidEncoding, "models are ONNX files here"));
        }
        let [bytes] = builder else {
            let why = format!("{} builders came; an ONNX file is one", builder.len());
            return Err(Failure::new(Code::InvalidArgument, why));
        };
        // Others are not hashed: a guest could keep the host at it.
        let size = bytes.len() as u64;
        let candidates =
            || self.shared.files.iter().zip(&self.shared.models).filter(|(file, _)| file.1 == size);
        let found = candidates().next().and_then(|_| {
            let digest = Digest::of(bytes);
            candidates().find(|(file, _)| file.0 == digest)
        });
        found.map(|(_, (_, model))| model.clone()).ok_or_else(|| {
            Failure::new(
                Code::Security,
                "the bytes are none of the package's models; only those are loaded, also by their names",
            )
        })
    }
}

/// The graph, if the model runs where it was asked for.
fn on(model: Arc<Model>, target: ExecutionTarget) -> Result<Graph, Failure> {
    let asked = match target {
        ExecutionTarget::Cpu => "cpu",
        ExecutionTarget::Gpu => "gpu",
        ExecutionTarget::Tpu => "tpu",
    };
    if model.targets().contains(&asked) {
        return Ok(Graph(model));
    }
    let there = model.targets().join(", ");
    let why = format!("the model runs on {there} as the package's manifest says, and not on {asked}");
    Err(Failure::new(Code::UnsupportedOperation, why))
}

impl graph::HostGraph for State {
    fn init_execution_context(&mut self, graph: Resource<Graph>) -> Answer<Resource<Context>> {
        let context = Context::new(self.table.get(&graph)?.0.clone());
        self.answer(Ok(context))
    }

    fn drop(&mut self, graph: Resource<Graph>) -> wasmtime::Result<()> {
        self.table.delete(graph)?;
        Ok(())
    }
}
