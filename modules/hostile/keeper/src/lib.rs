//! Keeps things between the requests of a sequence, some that it may and some that it may not. Its input `x` (UINT8) is
//! a word that says what to do; it answers with words.

use std::cell::{Cell, RefCell};

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::errors::Code;
use selvedge::model::sequences;
use selvedge::model::sessions::{Session, models};
use selvedge::model::tensors::{Datatype, Tensor};

struct Keeper;

export!(Keeper);

thread_local! {
    static REQUESTS: Cell<u32> = const { Cell::new(0) };
    static KEPT: RefCell<Vec<Tensor>> = const { RefCell::new(Vec::new()) };
}

impl Guest for Keeper {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let Some(NamedTensor { tensor, .. }) = inputs.into_iter().next() else { return Ok(Vec::new()) };
        let word = tensor.read(0, tensor.byte_length())?;
        let answer = answer(&String::from_utf8_lossy(&word), tensor)?;
        let tensor = Tensor::create(Datatype::Uint8, &[answer.len() as u64], answer.as_bytes())?;
        Ok(vec![NamedTensor { name: "x".to_owned(), tensor }])
    }
}

fn answer(word: &str, input: Tensor) -> Result<String, Error> {
    REQUESTS.set(REQUESTS.get() + 1);
    let kept = match word {
        "count" => return Ok(REQUESTS.get().to_string()),
        "part" => {
            let sequences::Part { id, first, last } = sequences::current();
            return Ok(format!("{id:?} first={first} last={last}"));
        }
        "trap" => panic!("asked for"),
        "spin" => loop {
            std::hint::black_box(REQUESTS.get());
        },
        "error" => return Err(Error { code: Code::InvalidInput, message: "asked for".to_owned() }),
        "read" => {
            let bytes = KEPT.with_borrow(|kept| kept[kept.len() - 1].read(0, 4))?;
            return Ok(format!("{bytes:?}"));
        }
        // What the module made, what came with the request, what a model gave, and more than may be.
        "made" => Tensor::create(Datatype::Uint8, &[4], &[1, 2, 3, 4])?,
        "input" => input,
        "output" => {
            let zeros = Tensor::create(Datatype::Fp32, &[2, 3], &[0; 24])?;
            let session = Session::open(&models()[0])?;
            session.run(&[("x".to_owned(), &zeros)], &[])?.swap_remove(0).tensor
        }
        "hoard" => Tensor::create(Datatype::Uint8, &[1 << 20], &vec![7; 1 << 20])?,
        other => return Ok(other.to_owned()),
    };
    KEPT.with_borrow_mut(|all| all.push(kept));
    Ok(KEPT.with_borrow(Vec::len).to_string())
}
