//! Passes nonsense to every call of its host: each must give an error, none may end the host. Answers
//! with the errors.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::sessions::{Session, models};
use selvedge::model::tensors::{Datatype, Tensor};

struct Lies;

export!(Lies);

impl Guest for Lies {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let mut errors = Vec::new();
        let mut note = |what: &str, error: Option<Error>| {
            errors.push(
                format!("{what}: {}", error.map_or("no error".to_owned(), |error| error.message))
                    .into_bytes(),
            );
        };
        note("too short", Tensor::create(Datatype::Fp32, &[2], &[0; 4]).err());
        note("overflow", Tensor::create(Datatype::Fp32, &[u64::MAX, u64::MAX], &[]).err());
        note("bool", Tensor::create(Datatype::Bool, &[1], &[2]).err());
        note("bytes", Tensor::create(Datatype::Bytes, &[1], &[2]).err());
        note("rank", Tensor::create(Datatype::Uint8, &[1; 1000], &[2]).err());
        note("elements", Tensor::create_bytes(&[2], &[b"a".to_vec()]).err());
        let good = Tensor::create(Datatype::Int32, &[2], &[0; 8])?;
        note("read", good.read(u64::MAX, u64::MAX).err());
        note("read past", good.read(0, 9).err());
        note("write past", good.write(7, &[0, 0]).err());
        note("element", good.element(0, 0, 1).err());
        note("element length", good.element_length(0).err());
        let text = Tensor::create_bytes(&[1], &[b"a\0b".to_vec()])?;
        note("text read", text.read(0, 1).err());
        note("text element", text.element(1, 0, 1).err());
        note("text element past", text.element(0, u64::MAX, 1).err());
        note("no such model", Session::open("nothing").err());
        for model in models() {
            let session = Session::open(&model)?;
            note("no inputs", session.run(&[], &[]).err());
            note("unknown input", session.run(&[("nonsense".to_owned(), &good)], &[]).err());
            let inputs = session.inputs();
            if let Some(input) = inputs.first() {
                note("wrong type", session.run(&[(input.name.clone(), &text)], &[]).err());
                note(
                    "twice",
                    session.run(&[(input.name.clone(), &good), (input.name.clone(), &good)], &[]).err(),
                );
            }
            note("unknown output", session.run(&[], &["nonsense".to_owned()]).err());
        }
        let tensor = Tensor::create_bytes(&[errors.len() as u64], &errors)?;
        Ok(vec![NamedTensor { name: "errors".to_owned(), tensor }])
    }
}
