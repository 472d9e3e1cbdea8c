//! Takes its requests as wholes. By the setting `how`, keeps the first one (`request`) or its answer (`answer`) and
//! answers the next with it, makes answers until there are no more handles (`many`) or with a megabyte of text each
//! (`long`), or hands requests on.

use std::cell::RefCell;

wit_bindgen::generate!({ path: "../../../host/wit", world: "module-with-relay" });
use exports::selvedge::model::relay::{Answer, Guest, Request};
use selvedge::model::config;
use selvedge::model::errors::{Code, Error};
use selvedge::model::sessions::{Session, models};

struct Whole;

export!(Whole);

thread_local! {
    static REQUEST: RefCell<Option<Request>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

fn failed(message: &str) -> Answer {
    Answer::failed(&Error { code: Code::InvalidInput, message: message.to_owned() })
}

impl Guest for Whole {
    fn predict(request: Request) -> Answer {
        let session = Session::open(&models()[0]).unwrap();
        match config::get("how").as_deref() {
            Some("request") => match REQUEST.replace(Some(request)) {
                Some(kept) => Request::run(kept, &session),
                None => failed("kept"),
            },
            Some("answer") => match ANSWER.take() {
                Some(kept) => kept,
                None => {
                    ANSWER.set(Some(Request::run(request, &session)));
                    failed("kept")
                }
            },
            Some("many") => loop {
                std::mem::forget(failed("one more"));
            },
            Some("long") => loop {
                std::mem::forget(failed(&"x".repeat(1 << 20)));
            },
            _ => Request::run(request, &session),
        }
    }
}
