//! Several models behind one module, for tests and to copy from: input `text` (BYTES [1]), outputs `label` (BYTES [1])
//! and `score` (FP32 [1]).
//!
//! It counts letters, hands the counts to the package's first model and the answer of each model to the next, and names
//! the largest number of the last by the setting `labels`. What goes from model to model stays with the host.

use std::cell::OnceCell;
use std::rc::Rc;

wit_bindgen::generate!({ path: "../../host/wit", world: "module-with-init" });

use exports::selvedge::model::{lifecycle, predictor};
use selvedge::model::config;
use selvedge::model::errors::{Code, Error};
use selvedge::model::sessions::{Session, models};
use selvedge::model::tensors::{Datatype, NamedTensor, Tensor};

struct Pipeline;

export!(Pipeline);

/// Opened models in the manifest's order, each with the name of its one input, and the labels.
struct Opened {
    stages: Vec<(Session, String)>,
    labels: Vec<String>,
}

impl lifecycle::Guest for Pipeline {
    fn init() -> Result<(), Error> {
        opened().map(drop)
    }
}

impl predictor::Guest for Pipeline {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let opened = opened()?;
        let [NamedTensor { tensor, .. }] = &inputs[..] else {
            return Err(error(
                Code::InvalidInput,
                format!("one input is wanted; there are {}", inputs.len()),
            ));
        };
        let text = tensor.element(0, 0, tensor.element_length(0)?)?;
        let mut numbers = counted(&text)?;
        for (session, input) in &opened.stages {
            let mut answer = session.run(&[(input.clone(), &numbers)], &[])?;
            let last = answer.pop().filter(|_| answer.is_empty());
            numbers =
                last.ok_or_else(|| error(Code::Internal, format!("`{input}`: one output is wanted")))?.tensor;
        }
        named(&numbers, &opened.labels)
    }
}

/// Opened once per instance.
fn opened() -> Result<Rc<Opened>, Error> {
    thread_local! {
        static OPENED: OnceCell<Rc<Opened>> = const { OnceCell::new() };
    }
    OPENED.with(|once| match once.get() {
        Some(opened) => Ok(opened.clone()),
        None => open().map(|opened| once.get_or_init(|| Rc::new(opened)).clone()),
    })
}

fn open() -> Result<Opened, Error> {
    let stages = models().into_iter().map(|name| {
        let session = Session::open(&name)?;
        let mut inputs = session.inputs();
        match (inputs.pop(), inputs.pop()) {
            (Some(input), None) => Ok((session, input.name)),
            _ => Err(error(Code::Internal, format!("model `{name}` has to have one input"))),
        }
    });
    let labels = config::get("labels").unwrap_or_default();
    Ok(Opened {
        stages: stages.collect::<Result<_, _>>()?,
        labels: labels.split(',').map(str::to_owned).collect(),
    })
}

/// How many of the bytes are vowels, other letters, digits and none of these: FP32 [1, 4].
fn counted(text: &[u8]) -> Result<Tensor, Error> {
    let mut counts = [0_f32; 4];
    for byte in text {
        let kind = match byte.to_ascii_lowercase() {
            b'a' | b'e' | b'i' | b'o' | b'u' => 0,
            b'a'..=b'z' => 1,
            b'0'..=b'9' => 2,
            _ => 3,
        };
        counts[kind] += 1.0;
    }
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    Tensor::create(Datatype::Fp32, &[1, 4], &bytes)
}

fn named(scores: &Tensor, labels: &[String]) -> Result<Vec<NamedTensor>, Error> {
    let bytes = scores.read(0, scores.byte_length())?;
    let (scores, _) = bytes.as_chunks::<4>();
    let scores: Vec<f32> = scores.iter().map(|score| f32::from_le_bytes(*score)).collect();
    if scores.len() != labels.len() {
        let message = format!("the last model gives {} numbers for {} labels", scores.len(), labels.len());
        return Err(error(Code::Internal, message));
    }
    let best = (0..scores.len()).reduce(|best, at| if scores[at] > scores[best] { at } else { best });
    let best = best.ok_or_else(|| error(Code::Internal, "the last model gives no number".to_owned()))?;
    let label = Tensor::create_bytes(&[1], &[labels[best].as_bytes().to_vec()])?;
    let score = Tensor::create(Datatype::Fp32, &[1], &scores[best].to_le_bytes())?;
    Ok(vec![
        NamedTensor { name: "label".to_owned(), tensor: label },
        NamedTensor { name: "score".to_owned(), tensor: score },
    ])
}

fn error(code: Code, message: String) -> Error {
    Error { code, message }
}
