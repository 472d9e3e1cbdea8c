//! Loops for ever before its first request. The same deadline must hold there.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module-with-init" });
use exports::selvedge::model::lifecycle::Guest as Lifecycle;
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct SpinInit;

export!(SpinInit);

impl Lifecycle for SpinInit {
    fn init() -> Result<(), Error> {
        let mut turns = 0_u64;
        loop {
            turns = core::hint::black_box(turns.wrapping_add(1));
        }
    }
}

impl Guest for SpinInit {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        Ok(inputs)
    }
}
