//! Sleeps for an hour when asked. It costs no time of the processor, so no epoch ends it: the host must
//! drop the call at its deadline.

use std::time::Duration;

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Sleep;

export!(Sleep);

impl Guest for Sleep {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        std::thread::sleep(Duration::from_secs(3600));
        Ok(inputs)
    }
}
