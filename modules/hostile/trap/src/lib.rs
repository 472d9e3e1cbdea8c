//! Traps when an input is called `trap`, and else gives its inputs back. A trap must cost this
//! request and no other.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Trap;

export!(Trap);

impl Guest for Trap {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        if inputs.iter().any(|input| input.name == "trap") {
            core::arch::wasm32::unreachable();
        }
        Ok(inputs)
    }
}
