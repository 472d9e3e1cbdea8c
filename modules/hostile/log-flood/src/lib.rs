//! Writes a hundred thousand long log lines, then gives its inputs back. The host must drop most of
//! them, and the request must still be answered.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::log::{Level, write};

struct LogFlood;

export!(LogFlood);

impl Guest for LogFlood {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let line = "flood ".repeat(500);
        for _ in 0..100_000 {
            write(Level::Error, &line);
        }
        Ok(inputs)
    }
}
