//! Takes memory until there is none, touching every page. The host must refuse to grow past the
//! package's limit; this module then traps.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Balloon;

export!(Balloon);

impl Guest for Balloon {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let mut held: Vec<Vec<u8>> = Vec::new();
        loop {
            held.push(core::hint::black_box(vec![1; 1 << 20]));
        }
    }
}
