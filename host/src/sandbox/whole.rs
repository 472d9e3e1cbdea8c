//! All tensors of a request, or of an answer, behind one handle.
//!
//! They count and end as single ones do; the module cannot look at them.

use wasmtime::component::Resource;

use super::held::{Footprint, Held};
use super::imports::bindings::selvedge::model::whole;
use super::imports::{Error, Named, OpenSession, run};
use super::state::{LimitMet, State};

/// What came with a request.
#[derive(Debug)]
pub struct Inputs(pub Named);

/// What a model gave, or why it gave nothing.
#[derive(Debug)]
pub struct Outcome(pub Result<Named, Error>);

/// What is behind a handle of the one.
pub type Request = Held<Inputs>;

/// What is behind a handle of the other.
pub type Answer = Held<Outcome>;

impl Footprint for Inputs {
    fn footprint(&self) -> usize {
        footprint(&self.0)
    }
}

impl Footprint for Outcome {
    fn footprint(&self) -> usize {
        match &self.0 {
            Ok(tensors) => footprint(tensors),
            Err(error) => error.message.len(),
        }
    }
}

fn footprint(tensors: &Named) -> usize {
    tensors.iter().fold(0, |size, (_, tensor)| size.saturating_add(tensor.footprint()))
}

impl State {
    /// Puts an answer behind a handle. Where it does not fit, that is the answer.
    fn outcome(&mut self, answer: Result<Named, Error>) -> wasmtime::Result<Resource<Answer>> {
        let made = match self.made(Outcome(answer)) {
            Err(limit) => self.made(Outcome(Err(limit))),
            made => made,
        };
        // No more handles.
        made.map_err(|limit| LimitMet(limit.message).into())
    }
}

impl whole::Host for State {}

impl whole::HostRequest for State {
    async fn run(
        &mut self,
        request: Resource<Request>,
        session: Resource<OpenSession>,
    ) -> wasmtime::Result<Resource<Answer>> {
        let model = self.table.get(&session)?.0.clone();
        // They count for as long as they are there, which is to the end of the run.
        let inputs = match self.table.get_mut(&request)?.lend() {
            Ok(inputs) => inputs,
            Err(expired) => {
                self.table.delete(request)?;
                return self.outcome(Err(expired.into()));
            }
        };
        let size = inputs.footprint();
        let answer = run(&model, inputs.0, Vec::new(), self.deadline).await?;
        let outcome = self.outcome(answer);
        self.ended(request, size)?;
        outcome
    }

    fn drop(&mut self, request: Resource<Request>) -> wasmtime::Result<()> {
        self.release(request).map(drop)
    }
}

impl whole::HostAnswer for State {
    fn failed(&mut self, mut error: Error) -> wasmtime::Result<Resource<Answer>> {
        // More is never told; and what is cut off is freed.
        error.message.truncate(error.message.floor_char_boundary(self.text()));
        error.message.shrink_to_fit();
        self.outcome(Err(error))
    }

    fn drop(&mut self, answer: Resource<Answer>) -> wasmtime::Result<()> {
        self.release(answer).map(drop)
    }
}
