//! Answers by `whole`, and not as it should: by the setting `how`, not at all (`nothing`), with megabytes of text each
//! time (`long`), or once and in order (`once`); without it, again and again. Its `init` hands on what there is not.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module-with-relay-and-init" });
use exports::selvedge::model::{lifecycle, relay};
use selvedge::model::errors::{Code, Error};
use selvedge::model::sessions::{Session, models};
use selvedge::model::{config, whole};

struct Relay;

export!(Relay);

fn fail(message: String) {
    whole::fail(&Error { code: Code::InvalidInput, message });
}

impl lifecycle::Guest for Relay {
    fn init() -> Result<(), Error> {
        fail("too early".to_owned());
        whole::forward(&Session::open(&models()[0])?);
        Ok(())
    }
}

impl relay::Guest for Relay {
    fn predict() {
        let session = Session::open(&models()[0]).unwrap();
        match config::get("how").as_deref() {
            Some("nothing") => {}
            Some("long") => (0..50).for_each(|_| fail("x".repeat(1 << 20))),
            Some("once") => whole::forward(&session),
            _ => {
                whole::forward(&session);
                fail("in between".to_owned());
                whole::forward(&session);
            }
        }
    }
}
