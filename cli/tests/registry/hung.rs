//! A registry that takes connections and says nothing: whoever set a time gets the answer that the time
//! is over, in that time and not in the client's own.

use std::net::TcpListener;

use crate::mock::Mock;

#[test]
fn the_time_that_was_given_holds() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let mock = Mock::start();
    let line = ["--registry", &address, "status", "edge-1", "--wait-for", "scale", "--timeout", "1"];
    mock.check(&line, 7, &["waited 1 s in vain for scale on edge-1"]);
}
