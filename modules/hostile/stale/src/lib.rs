//! Keeps what the first request brought and answers every later one with it: as the tensor itself (`handle`), as a
//! tensor that it reads again (`read`) or measures (`length`), by running the model on it (`run`), or as bytes that
//! it has copied into its own memory (`copy`), or as a module that takes its requests as wholes would (`whole`). The
//! input's name says which.

use std::cell::RefCell;

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::sessions::{Session, models};
use selvedge::model::tensors::{Datatype, Tensor};
use selvedge::model::whole::forward;

struct Stale;

export!(Stale);

thread_local! {
    static KEPT: RefCell<Option<(Tensor, Vec<u8>)>> = const { RefCell::new(None) };
}

impl Guest for Stale {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let Some(NamedTensor { name, tensor }) = inputs.into_iter().next() else { return Ok(Vec::new()) };
        let bytes = tensor.read(0, tensor.byte_length())?;
        let same = || Tensor::create(Datatype::Uint8, &[bytes.len() as u64], &bytes);
        let answer = match (KEPT.take(), name.as_str()) {
            (None, _) => {
                let answer = same()?;
                KEPT.set(Some((tensor, bytes)));
                answer
            }
            (Some((kept, _)), "handle") => kept,
            (Some((kept, copy)), "read") => {
                let read = kept.read(0, 3);
                KEPT.set(Some((kept, copy)));
                Tensor::create(Datatype::Uint8, &[3], &read?)?
            }
            (Some((kept, _)), "length") => {
                Tensor::create(Datatype::Uint8, &[1], &[kept.byte_length() as u8])?
            }
            (Some((kept, copy)), "run") => {
                let session = Session::open(&models()[0])?;
                let outputs = session.run(&[("x".to_owned(), &kept)], &[]);
                KEPT.set(Some((kept, copy)));
                outputs?.swap_remove(0).tensor
            }
            (Some(_), "whole") => {
                forward(&Session::open(&models()[0])?);
                same()?
            }
            (Some((_, copy)), _) => Tensor::create(Datatype::Uint8, &[copy.len() as u64], &copy)?,
        };
        Ok(vec![NamedTensor { name: "x".to_owned(), tensor: answer }])
    }
}
