//! A request as a whole: the module says who answers it, and sees nothing of it.
//!
//! What came and what goes back counts for the instance as tensors behind handles do, and is gone with the request.

use std::mem;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::imports::bindings::selvedge::model::whole;
use super::imports::{self, Code, Error, Named, OpenSession};
use super::state::State;
use super::within;
use crate::failure::PredictError;
use crate::session::{Model, Timed};
use crate::tensor::NamedTensor;

/// What came, and what becomes of it.
#[derive(Default)]
pub struct Whole {
    /// Until it is handed on.
    came: Option<Named>,
    said: Said,
    /// What of it counts as held.
    size: usize,
}

/// What a module said of its request.
#[derive(Default)]
enum Said {
    #[default]
    Nothing,
    /// This model answers, and was not free at once.
    Later(Arc<Model>, Named),
    Answer(Result<Named, Error>),
}

fn footprint(tensors: &Named) -> usize {
    tensors.iter().fold(0, |size, (_, tensor)| size.saturating_add(tensor.footprint()))
}

impl State {
    /// A request begins, if the limits allow it.
    pub fn came(&mut self, inputs: Vec<NamedTensor>) -> Result<(), Error> {
        let inputs: Named = inputs.into_iter().map(|NamedTensor { name, tensor }| (name, tensor)).collect();
        let size = footprint(&inputs);
        self.held = self.held_with(size)?;
        self.whole = Some(Whole { came: Some(inputs), said: Said::Nothing, size });
        Ok(())
    }

    /// Nothing of it is held any more.
    fn gone(&mut self) -> Option<Whole> {
        let whole = self.whole.take()?;
        self.held = self.held.saturating_sub(whole.size);
        Some(whole)
    }

    /// What a model gave takes the place of what it was given, if there is room for both.
    fn say(&mut self, answer: Result<Named, Error>) {
        let size = answer.as_ref().map_or(0, footprint);
        let (answer, size) = match self.held_with(size) {
            Ok(_) => (answer, size),
            Err(limit) => (Err(limit), 0),
        };
        drop(self.gone());
        self.held = self.held.saturating_add(size);
        self.whole = Some(Whole { came: None, said: Said::Answer(answer), size });
    }

    /// The module is done with its request: the answer.
    pub async fn answered(&mut self) -> Result<Result<Vec<NamedTensor>, Error>, PredictError> {
        if matches!(self.whole, Some(Whole { said: Said::Later(..), .. })) {
            Box::pin(self.later()).await?;
        }
        let outputs = match self.gone().unwrap_or_default().said {
            Said::Answer(Ok(outputs)) => outputs,
            Said::Answer(Err(error)) => return Ok(Err(error)),
            Said::Nothing | Said::Later(..) => {
                return Err(PredictError::Module("it ended without an answer".to_owned()));
            }
        };
        self.check_count(outputs.len())?;
        self.check_size(footprint(&outputs))?;
        Ok(Ok(outputs.into_iter().map(|(name, tensor)| NamedTensor { name, tensor }).collect()))
    }

    /// Has the model answer that was not free at once. Rare, and large.
    async fn later(&mut self) -> Result<(), PredictError> {
        let said = self.whole.as_mut().map(|whole| mem::take(&mut whole.said));
        let Some(Said::Later(model, inputs)) = said else { return Ok(()) };
        let deadline = self.deadline;
        let run = async { imports::given(model.run(inputs, Vec::new(), deadline).await) };
        // Either way, there is no error but that of the deadline.
        let Ok(answer) = within(deadline.answer, run).await else {
            return Err(PredictError::Deadline(self.allowed()));
        };
        self.say(answer);
        Ok(())
    }
}

/// What is said only of a request.
fn asked(whole: &mut Option<Whole>) -> wasmtime::Result<&mut Whole> {
    let why = "`whole` answers requests that come by `relay`, and there is none";
    whole.as_mut().ok_or_else(|| wasmtime::format_err!(why))
}

impl whole::Host for State {
    fn forward(&mut self, session: Resource<OpenSession>) -> wasmtime::Result<()> {
        let OpenSession { model, index } = self.table.get(&session)?;
        let Some(inputs) = asked(&mut self.whole)?.came.take() else {
            self.say(Err(imports::error(Code::Internal, "the request was handed to a model before")));
            return Ok(());
        };
        let mut ran = None;
        let timed = self.began.map_or(Timed::Here, |began| Timed::ByCaller { began, ran: &mut ran });
        match model.run_at_once(&inputs, &[], self.deadline, timed) {
            Some(answer) => {
                self.ran = ran.map(|how| (*index, how));
                let answer = imports::given(answer)?;
                self.say(answer);
            }
            None => asked(&mut self.whole)?.said = Said::Later(model.clone(), inputs),
        }
        Ok(())
    }

    fn fail(&mut self, mut error: Error) -> wasmtime::Result<()> {
        let came = asked(&mut self.whole)?.came.is_some();
        // More is never told; and what is cut off is freed.
        error.message.truncate(error.message.floor_char_boundary(self.text()));
        error.message.shrink_to_fit();
        // What a model gave before, or was to be given.
        if !came {
            drop(self.gone());
        }
        self.whole.get_or_insert_default().said = Said::Answer(Err(error));
        Ok(())
    }
}
