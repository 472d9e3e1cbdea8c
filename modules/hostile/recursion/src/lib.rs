//! Calls itself for ever. The host must end it when its stack does.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Recursion;

export!(Recursion);

#[inline(never)]
#[allow(unconditional_recursion)]
fn deeper(depth: u64) -> u64 {
    let frame = core::hint::black_box([depth; 16]);
    deeper(depth + 1) + frame[7]
}

impl Guest for Recursion {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        core::hint::black_box(deeper(0));
        Ok(Vec::new())
    }
}
