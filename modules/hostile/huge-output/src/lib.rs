//! Answers with tensors of 16 MiB each until the host refuses to make another, and with all of them.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::tensors::{Datatype, Tensor};

struct HugeOutput;

export!(HugeOutput);

impl Guest for HugeOutput {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        const SIZE: u64 = 16 << 20;
        let data = vec![7; SIZE as usize];
        let mut outputs = Vec::new();
        while let Ok(tensor) = Tensor::create(Datatype::Uint8, &[SIZE], &data) {
            outputs.push(NamedTensor { name: format!("output{}", outputs.len()), tensor });
        }
        Ok(outputs)
    }
}
