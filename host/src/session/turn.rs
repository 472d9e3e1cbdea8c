//! When a model runs, and on which thread: at once where it is free and short, at its turn otherwise.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ort::session::Session;
use tokio::sync::{MutexGuard, OwnedMutexGuard};

use super::check::select;
use super::{Model, Ran, RunError, Timed, blocking};
use crate::deadline::Deadline;
use crate::tensor::Tensor;
use crate::threads::{compute, yielding::Way};

/// Runs that take no more nanoseconds are waited for by looking again and again, at most so often: some
/// microseconds on any processor.
const AWAITED: u64 = 20_000;
const LOOKS: u32 = 400;

impl Model {
    /// Runs the model. No `outputs` asks for all of them, and none is asked for twice. Others are not kept, though ONNX
    /// Runtime computes them all the same. One that the model declares optional comes if there is one.
    pub async fn run(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.check_wanted(&outputs)?;
        self.check(&inputs)?;
        let lane = match &self.lanes {
            Some(lanes) => Some(lanes.take(deadline).await?),
            None => None,
        };
        let model = lane.as_ref().map_or(self, |lane| lane.model);
        model.run_alone(inputs, outputs, deadline).await
    }

    /// In this session.
    async fn run_alone(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let answer = if self.runner.short() {
            let mut session = self.lock(deadline).await?;
            self.runner.run(&mut session, &inputs, &outputs, deadline, Timed::Here)?
        } else if blocking::allowed() {
            if let Ok(mut session) = self.session.try_lock() {
                self.runner.run(&mut session, &inputs, &outputs, deadline, Timed::Here)?
            } else {
                let (runner, wanted) = (self.runner.clone(), outputs.clone());
                self.queue.ask(deadline, move |session| {
                    runner.run(session, &inputs, &wanted, deadline, Timed::Here)
                })?
            }
        } else {
            let mut session = self.lock(deadline).await?;
            let (runner, wanted) = (self.runner.clone(), outputs.clone());
            compute(Way::Some, move || runner.run(&mut session, &inputs, &wanted, deadline, Timed::Here))
                .await
                .map_err(|error| RunError::Model(format!("its thread ended: {error}")))??
        };
        Ok(select(answer, &outputs))
    }

    /// As [`Self::run`], where it has to wait for nothing and may run on this thread; `None`: it does not.
    pub fn run_at_once(
        &self,
        inputs: &[(String, Tensor)],
        outputs: &[String],
        deadline: Deadline,
        timed: Timed<'_>,
    ) -> Option<Result<Vec<(String, Tensor)>, RunError>> {
        if self.lanes.is_some() || !(blocking::allowed() || self.runner.short()) {
            return None;
        }
        if let Err(error) = self.check_wanted(outputs).and_then(|()| self.check(inputs)) {
            return Some(Err(error));
        }
        let mut session = self.soon()?;
        let answer = self.runner.run(&mut session, inputs, outputs, deadline, timed);
        Some(answer.map(|answer| select(answer, outputs)))
    }

    /// A run took so long that was timed by its caller.
    pub fn learn(&self, how: Ran, took: Duration) {
        self.runner.learn(how, took);
    }

    /// The session, if it is free or about to be: a run of a few microseconds is waited for right here, since
    /// anything else would take longer.
    fn soon(&self) -> Option<MutexGuard<'_, Session>> {
        let looks = if self.runner.pace.load(Ordering::Relaxed) <= AWAITED { LOOKS } else { 1 };
        for _ in 0..looks {
            if let Ok(session) = self.session.try_lock() {
                return Some(session);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// As [`Model::run`], on this thread, blocking. For the probe.
    pub fn run_here(
        &self,
        inputs: &[(String, Tensor)],
        deadline: Deadline,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.check(inputs)?;
        self.runner.run(&mut self.session.blocking_lock(), inputs, &[], deadline, Timed::Here)
    }

    async fn lock(&self, deadline: Deadline) -> Result<OwnedMutexGuard<Session>, RunError> {
        tokio::time::timeout_at(deadline.answer.into(), self.session.clone().lock_owned())
            .await
            .map_err(|_| RunError::Deadline)
    }
}
