//! A run: what comes as values for ONNX Runtime, under a watch, and what it gives as tensors.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ort::session::{RunOptions, Session, SharedSessionInner};
use selvedge_package::tensor::TensorSpec;

use super::kinds::Outlet;
use super::run::Few;
use super::values::{self, Value, ValueError};
use super::{Ran, RunError, Timed, first_line, run};
use crate::clock;
use crate::deadline::Deadline;
use crate::engine::watch::Watch;
use crate::tensor::Tensor;

/// Runs that are expected to take longer leave the caller's thread.
const SHORT: Duration = Duration::from_micros(500);

/// What the runs of a session have in common.
pub struct Runner {
    pub options: Arc<RunOptions>,
    pub watch: Arc<Watch>,
    pub memory: Arc<SharedSessionInner>,
    /// What the model takes and gives.
    pub taken: Vec<Outlet>,
    pub given: Vec<Outlet>,
    /// Nanoseconds that a run takes, a moving average; `u64::MAX` before the first.
    pub pace: AtomicU64,
}

impl Runner {
    /// Whether a run is expected to be over before another thread would have begun.
    pub fn short(&self) -> bool {
        self.pace.load(Ordering::Relaxed) <= SHORT.as_nanos() as u64
    }

    /// Runs the session, which is the caller's for as long. No `wanted`: all that it gives.
    pub fn run(
        &self,
        session: &mut Session,
        inputs: &[(String, Tensor)],
        wanted: &[String],
        deadline: Deadline,
        timed: Timed<'_>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let mut values = Few::new();
        for outlet in &self.taken {
            let value = value(outlet, inputs).map_err(|error| {
                RunError::InvalidInput(format!("the model's input `{}`: {error}", outlet.name()))
            })?;
            values.extend(value.map(|value| (outlet, value)));
        }
        let given: Few<&Outlet> = if wanted.is_empty() {
            self.given.iter().collect()
        } else {
            let wanted: HashSet<&str> = wanted.iter().map(String::as_str).collect();
            let asked = |spec: &TensorSpec| wanted.contains(spec.name.as_str());
            self.given.iter().filter(|outlet| outlet.specs().iter().any(asked)).collect()
        };
        let start = match timed {
            Timed::Here => clock::now(),
            Timed::ByCaller { began, .. } => began,
        };
        if start >= deadline.answer {
            return Err(RunError::Deadline);
        }
        let armed = self.watch.arm(deadline, start);
        let answer = run::run(session, &self.options, &values, &given);
        let stopped = armed.over();
        let how = if answer.is_ok() || stopped { Ran::Through } else { Ran::NotThrough };
        match timed {
            Timed::Here => self.learn(how, clock::now() - start),
            Timed::ByCaller { ran, .. } => *ran = Some(how),
        }
        let answer = match answer {
            // Too late, even where it came to its end.
            _ if stopped => return Err(RunError::Deadline),
            Ok(answer) => answer,
            Err(error) => return Err(refused(&error)),
        };
        let mut outputs = Vec::with_capacity(answer.len());
        for (value, outlet) in answer.into_iter().zip(given) {
            let failed =
                |why: &dyn Display| RunError::Model(format!("its output `{}`: {why}", outlet.name()));
            let Some(value) = value else {
                if outlet.is_optional() {
                    continue;
                }
                return Err(failed(&"ONNX Runtime gave none"));
            };
            if outlet.is_plain() {
                let tensor = values::from_value(value, &self.memory, session.allocator())
                    .map_err(|error| failed(&error))?;
                outputs.push((outlet.name().to_owned(), tensor));
                continue;
            }
            let tensors = outlet
                .tensors_of(value, &self.memory, session.allocator())
                .map_err(|error| failed(&error))?;
            let names = outlet.specs().iter().map(|spec| spec.name.clone());
            outputs.extend(names.zip(tensors));
        }
        Ok(outputs)
    }

    /// A run took so long. Two that end at once may count as one.
    pub fn learn(&self, how: Ran, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX - 1);
        self.pace.store(expected(self.pace.load(Ordering::Relaxed), how, took), Ordering::Relaxed);
    }
}

/// What the next run is expected to take: an average that each moves by an eighth. One that did not go through says
/// only what the next takes at least.
fn expected(pace: u64, how: Ran, took: u64) -> u64 {
    match pace {
        pace if how == Ran::NotThrough && took < pace => pace,
        u64::MAX => took,
        pace => pace - pace / 8 + took / 8,
    }
}

/// What ONNX Runtime takes, made of the tensors that stand for it; none where it was left out.
fn value<'a>(outlet: &Outlet, inputs: &'a [(String, Tensor)]) -> Result<Option<Value<'a>>, ValueError> {
    let find = |name: &str| inputs.iter().find(|(given, _)| given == name).map(|(_, tensor)| tensor);
    let tensors: Vec<&Tensor> = match outlet.specs() {
        [spec] => match find(&spec.name) {
            Some(tensor) => return outlet.to_value(&[tensor]).map(Some),
            None => Vec::new(),
        },
        specs => specs.iter().filter_map(|spec| find(&spec.name)).collect(),
    };
    match tensors.len() {
        0 if outlet.is_optional() => Ok(None),
        some if some < outlet.specs().len() => {
            let names: Vec<_> = outlet.specs().iter().map(|spec| format!("`{}`", spec.name)).collect();
            Err(ValueError::Parts(format!("{} come together or not at all", names.join(" and "))))
        }
        _ => outlet.to_value(&tensors).map(Some),
    }
}

fn refused(error: &ort::Error) -> RunError {
    let why = first_line(error.message());
    match error.code() {
        ort::ErrorCode::InvalidArgument => RunError::InvalidInput(why),
        _ => RunError::Model(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_makes_no_model_short() {
        assert_eq!(expected(u64::MAX, Ran::NotThrough, 1000), u64::MAX);
        assert_eq!(expected(u64::MAX, Ran::Through, 1000), 1000);
        assert_eq!(expected(8000, Ran::NotThrough, 1000), 8000);
        assert_eq!(expected(8000, Ran::NotThrough, 16_000), 9000);
        assert_eq!(expected(8000, Ran::Through, 16_000), 9000);
        assert_eq!(expected(8000, Ran::Through, 0), 7000);
    }
}
