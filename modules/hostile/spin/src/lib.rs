//! Loops for ever when asked. The host must end the request at its deadline.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Spin;

export!(Spin);

impl Guest for Spin {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let mut turns = 0_u64;
        loop {
            turns = core::hint::black_box(turns.wrapping_add(1));
        }
    }
}
