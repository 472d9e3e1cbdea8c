//! Hands elements to the model `model` through wasi-nn and the answer back, as guests of wasi-nn do.

wit_bindgen::generate!({
    path: ["../../../host/wit/deps/wasi-nn.wit", "wit"],
    world: "selvedge:peer/peer",
    generate_all,
});

use std::cell::OnceCell;

use wasi::nn::errors::Error;
use wasi::nn::graph::load_by_name;
use wasi::nn::inference::GraphExecutionContext;
use wasi::nn::tensor::{Tensor, TensorType};

struct Peer;

export!(Peer);

thread_local! {
    static CONTEXT: OnceCell<GraphExecutionContext> = const { OnceCell::new() };
}

impl Guest for Peer {
    fn infer(shape: Vec<u32>, data: Vec<u8>) -> Result<Vec<u8>, String> {
        CONTEXT.with(|context| {
            if context.get().is_none() {
                let graph = load_by_name("model").map_err(told)?;
                // It was empty, and there is one thread.
                let _ = context.set(graph.init_execution_context().map_err(told)?);
            }
            let context = context.get().ok_or("there is no context")?;
            let input = Tensor::new(&shape, TensorType::Fp32, &data);
            let outputs = context.compute(vec![("x".to_owned(), input)]).map_err(told)?;
            Ok(outputs.first().ok_or("there is no output")?.1.data())
        })
    }
}

fn told(error: Error) -> String {
    error.data()
}
