//! Opens a connection. No manifest can ask for the network, so the host must refuse to load this.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};

struct Sockets;

export!(Sockets);

impl Guest for Sockets {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        match std::net::TcpStream::connect("127.0.0.1:1") {
            Ok(_) => Ok(Vec::new()),
            Err(_) => Ok(inputs),
        }
    }
}
