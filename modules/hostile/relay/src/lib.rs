//! Answers by `whole`, and not as it should. The setting `how` says what it does: nothing (`nothing`), say megabytes
//! (`long`), answer before there is a request (`early`), keep a tensor of its own (`keep`), fail and think better of it
//! (`sorry`), or as it should (`once`). Or the first request goes well, and with every later one it traps when it has
//! answered (`trap`), fails it then (`regret`), or hands it on again and again.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module-with-relay-and-init" });
use std::cell::Cell;

use exports::selvedge::model::{lifecycle, relay};
use selvedge::model::errors::{Code, Error};
use selvedge::model::sessions::{Session, models};
use selvedge::model::tensors::{Datatype, Tensor};
use selvedge::model::{config, whole};

struct Relay;

export!(Relay);

thread_local! {
    static FIRST: Cell<bool> = const { Cell::new(true) };
}

fn fail(message: String) {
    whole::fail(&Error { code: Code::InvalidInput, message });
}

fn how() -> String {
    config::get("how").unwrap_or_default()
}

impl lifecycle::Guest for Relay {
    fn init() -> Result<(), Error> {
        match how().as_str() {
            "early" => whole::forward(&Session::open(&models()[0])?),
            "keep" => std::mem::forget(Tensor::create(Datatype::Uint8, &[1_500_000], &vec![7; 1_500_000])?),
            _ => {}
        }
        Ok(())
    }
}

impl relay::Guest for Relay {
    fn predict() {
        let session = Session::open(&models()[0]).unwrap();
        match how().as_str() {
            "nothing" => {}
            "long" => (0..50).for_each(|_| fail("x".repeat(1 << 20))),
            "trap" => {
                whole::forward(&session);
                assert!(FIRST.replace(false), "it has answered");
            }
            "regret" => {
                whole::forward(&session);
                if !FIRST.replace(false) {
                    fail("on second thoughts".to_owned());
                }
            }
            "sorry" => {
                fail("no".to_owned());
                whole::forward(&session);
            }
            "once" | "keep" => whole::forward(&session),
            _ => {
                whole::forward(&session);
                if !FIRST.replace(false) {
                    fail("in between".to_owned());
                    whole::forward(&session);
                }
            }
        }
    }
}
