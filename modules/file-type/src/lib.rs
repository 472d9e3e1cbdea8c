//! placeholder
mod bindings {
    wit_bindgen::generate!({ path: "../../host/wit", world: "module" });
}
use bindings::exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
struct Component;
impl Guest for Component {
    fn predict(_inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> { Ok(vec![]) }
}
bindings::export!(Component with_types_in bindings);
