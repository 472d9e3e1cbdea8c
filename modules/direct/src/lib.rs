//! The built-in module: hands a request's tensors to the package's first model and its answer back.
//!
//! It never sees a tensor, only says which model answers, and imports nothing but the model interface: no WASI.
//! Memory comes from a bump allocator that starts over whenever nothing is allocated, which is after every request.
#![no_std]

extern crate alloc;

mod bump;

use alloc::string::String;
use core::cell::OnceCell;

wit_bindgen::generate!({ path: "../../host/wit", world: "module-with-relay" });

use exports::selvedge::model::relay::Guest;
use selvedge::model::errors::{Code, Error};
use selvedge::model::sessions::{Session, models};
use selvedge::model::whole;

struct Direct;

export!(Direct);

impl Guest for Direct {
    fn predict() {
        match session() {
            Ok(session) => whole::forward(session),
            Err(error) => whole::fail(&error),
        }
    }
}

/// The session, opened once per instance.
fn session() -> Result<&'static Session, Error> {
    struct Once(OnceCell<Session>);
    // SAFETY: a component instance has one thread, and is never entered twice at once.
    unsafe impl Sync for Once {}
    static SESSION: Once = Once(OnceCell::new());

    if let Some(session) = SESSION.0.get() {
        return Ok(session);
    }
    let session = match models().first() {
        Some(name) => Session::open(name),
        None => Err(Error { code: Code::Internal, message: String::from("the package has no model") }),
    }?;
    Ok(SESSION.0.get_or_init(|| session))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
