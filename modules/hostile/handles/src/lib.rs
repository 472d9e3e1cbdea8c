//! Makes tiny tensors for ever and keeps them. The host must stop it by count, long before memory.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::tensors::{Datatype, Tensor};

struct Handles;

export!(Handles);

impl Guest for Handles {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let mut held = Vec::new();
        loop {
            held.push(Tensor::create(Datatype::Uint8, &[1], &[0])?);
        }
    }
}
