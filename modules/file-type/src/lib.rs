//! Tells a file's type from its bytes: input `content` (BYTES [1], the file), outputs `label`
//! (BYTES [1]) and `score` (FP32 [1], 0 to 1).
//!
//! It prepares the bytes for the magika model `classifier` and judges its answer by the model's own
//! configuration, which travels in the package beside the model (capability `package-files`), so
//! that model and labels cannot disagree. Of a file it reads the two ends that the model looks at,
//! however long it is.

mod config;
mod features;
mod verdict;

use std::cell::OnceCell;
use std::rc::Rc;

use config::Config;
use verdict::Verdict;

mod bindings {
    wit_bindgen::generate!({ path: "../../host/wit", world: "module-with-init" });
}

use bindings::exports::selvedge::model::{lifecycle, predictor};
use bindings::selvedge::model::errors::{Code, Error};
use bindings::selvedge::model::sessions::Session;
use bindings::selvedge::model::tensors::{Datatype, NamedTensor, Tensor};

/// The manifest's name of the model.
const MODEL: &str = "classifier";
/// The model's input: INT32 [files, beginning + end].
const BYTES: &str = "bytes";
/// The model's output: FP32 [files, labels].
const SCORES: &str = "target_label";

struct FileType;

bindings::export!(FileType with_types_in bindings);

/// What an instance keeps between requests.
struct Classifier {
    config: Config,
    session: Session,
}

impl lifecycle::Guest for FileType {
    fn init() -> Result<(), Error> {
        classifier().map(drop)
    }
}

impl predictor::Guest for FileType {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let classifier = classifier()?;
        let content = Content::of(&inputs)?;
        answer(&classifier.judge(&content)?)
    }
}

/// Opened once per instance.
fn classifier() -> Result<Rc<Classifier>, Error> {
    thread_local! {
        static OPENED: OnceCell<Rc<Classifier>> = const { OnceCell::new() };
    }
    OPENED.with(|opened| {
        if let Some(classifier) = opened.get() {
            return Ok(classifier.clone());
        }
        let config = Config::read().map_err(internal)?;
        let classifier = Rc::new(Classifier { config, session: Session::open(MODEL)? });
        Ok(opened.get_or_init(|| classifier).clone())
    })
}

impl Classifier {
    fn judge(&self, content: &Content) -> Result<Verdict, Error> {
        let model = &self.config.model;
        if content.size == 0 {
            return Ok(Verdict::sure("empty"));
        }
        let beginning = content.beginning(model.block_size)?;
        let Some(tokens) = features::tokens(model, &beginning, &content.end(model.block_size)?) else {
            return Ok(verdict::of_few_bytes(&beginning));
        };
        let data: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let shape = [1, tokens.len() as u64];
        let bytes = Tensor::create(Datatype::Int32, &shape, &data)?;
        let outputs = self.session.run(&[(BYTES.to_owned(), &bytes)], &[SCORES.to_owned()])?;
        let output = outputs.first().ok_or_else(|| internal("the model answered nothing".to_owned()))?;
        let scores = scores_of(&output.tensor)?;
        verdict::of_scores(&self.config, &scores).map_err(internal)
    }
}

/// The file, still in the host's hands.
struct Content<'a> {
    tensor: &'a Tensor,
    size: u64,
}

impl<'a> Content<'a> {
    fn of(inputs: &'a [NamedTensor]) -> Result<Self, Error> {
        let [NamedTensor { name, tensor }] = inputs else {
            return Err(invalid(format!("one input is wanted, `content`; there are {}", inputs.len())));
        };
        if name != "content" {
            return Err(invalid(format!("the input is called `content`, not `{name}`")));
        }
        if tensor.datatype() != Datatype::Bytes || tensor.shape() != [1] {
            return Err(invalid("`content` is BYTES of shape [1]: one file".to_owned()));
        }
        Ok(Self { tensor, size: tensor.element_length(0)? })
    }

    fn beginning(&self, most: usize) -> Result<Vec<u8>, Error> {
        self.tensor.element(0, 0, self.size.min(most as u64))
    }

    fn end(&self, most: usize) -> Result<Vec<u8>, Error> {
        let length = self.size.min(most as u64);
        self.tensor.element(0, self.size - length, length)
    }
}

fn scores_of(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    if tensor.datatype() != Datatype::Fp32 {
        return Err(internal(format!("the model's output `{SCORES}` is not FP32")));
    }
    let data = tensor.read(0, tensor.byte_length())?;
    let (scores, _) = data.as_chunks::<4>();
    Ok(scores.iter().map(|score| f32::from_le_bytes(*score)).collect())
}

fn answer(verdict: &Verdict) -> Result<Vec<NamedTensor>, Error> {
    let label = Tensor::create_bytes(&[1], &[verdict.label.as_bytes().to_vec()])?;
    let score = Tensor::create(Datatype::Fp32, &[1], &verdict.score.to_le_bytes())?;
    Ok(vec![
        NamedTensor { name: "label".to_owned(), tensor: label },
        NamedTensor { name: "score".to_owned(), tensor: score },
    ])
}

fn invalid(message: String) -> Error {
    Error { code: Code::InvalidInput, message }
}

fn internal(message: String) -> Error {
    Error { code: Code::Internal, message }
}
