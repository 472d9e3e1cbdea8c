//! A prediction on a thread that serves, as long as it takes no longer than handing it over would.

use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::predictor::Prediction;
use super::reserve;
use crate::clock;
use crate::failure::PredictError;
use crate::session::blocking;
use crate::tensor::NamedTensor;
use crate::threads::{self, yielding::Way};

/// What a prediction gives.
pub type Answer = Result<Vec<NamedTensor>, PredictError>;

/// Longest time that it may compute here at once, or wait here for something: a session that another one has.
const HERE: Duration = Duration::from_millis(1);

/// What is to become of it.
enum Step {
    Answered(Answer),
    Waits,
    Moves,
}

/// A prediction and what is held until it has ended. Should nobody wait for its answer any more it ends by itself.
struct Here<H: Send + 'static>(Option<(Prediction, H)>);

impl<H: Send + 'static> Here<H> {
    /// Goes on from `since`, which is about now.
    fn go_on(&mut self, context: &mut Context<'_>, since: Instant) -> Step {
        let (Some((prediction, _)), Some(_place)) = (&mut self.0, reserve::place()) else {
            return Step::Moves;
        };
        let polled = AssertUnwindSafe(|| prediction.as_mut().poll(context));
        match std::panic::catch_unwind(polled) {
            Ok(Poll::Ready(answer)) => Step::Answered(answer),
            Ok(Poll::Pending) if clock::now() - since > HERE => Step::Moves,
            Ok(Poll::Pending) => Step::Waits,
            Err(_) => Step::Answered(Err(panicked())),
        }
    }
}

impl<H: Send + 'static> Drop for Here<H> {
    fn drop(&mut self) {
        if let (Some((prediction, held)), Ok(_)) = (self.0.take(), Handle::try_current()) {
            drop(aside(prediction, held, Way::Some));
        }
    }
}

/// Begins it here, `now`; gives its answer, or the prediction back where it takes longer.
pub async fn ask<H: Send + 'static>(
    prediction: Prediction,
    held: H,
    now: Instant,
) -> Result<Answer, (Prediction, H)> {
    let mut here = Here(Some((prediction, held)));
    // Nearly all end at once, and need no timer.
    let mut step = std::future::poll_fn(|context| Poll::Ready(here.go_on(context, now))).await;
    if let Step::Waits = step {
        let going_on = std::future::poll_fn(|context| match here.go_on(context, clock::now()) {
            Step::Waits => Poll::Pending,
            step => Poll::Ready(step),
        });
        step = tokio::time::timeout(HERE, going_on).await.unwrap_or(Step::Moves);
    }
    match (step, here.0.take()) {
        (Step::Answered(answer), _) => Ok(answer),
        (_, Some(rest)) => Err(rest),
        (_, None) => Ok(Err(panicked())),
    }
}

/// Goes on with it on a thread that computes. Within tokio.
pub fn aside(prediction: Prediction, held: impl Send + 'static, way: Way) -> JoinHandle<Answer> {
    // What the module logs belongs to the request's trace, if it has one.
    let span = tracing::Span::current();
    threads::compute(way, move || {
        let _entered = span.entered();
        let answer = blocking::allow(|| Handle::current().block_on(prediction));
        drop(held);
        answer
    })
}

/// What is said where a prediction panicked.
pub fn panicked() -> PredictError {
    PredictError::Internal("the request panicked; the host's log says more".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::ManuallyDrop;
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot;

    /// Without a reserve nothing is asked here. The threads stay: they may not be waited for within a test's own.
    fn threads() -> (reserve::Reserve, ManuallyDrop<Runtime>) {
        let (executor, reserve) = reserve::threads().expect("there are threads");
        (reserve, ManuallyDrop::new(executor))
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_ends_by_itself_and_is_held_until_then() {
        let _threads = threads();
        // On a busy machine its time here can be over at the first look: that one is given back.
        let mut tries = 0;
        let (end, mut gone) = loop {
            let (end, ended) = oneshot::channel::<()>();
            let (held, gone) = oneshot::channel::<()>();
            let prediction: Prediction = Box::pin(async move {
                ended.await.expect("nobody drops the other end");
                Ok(Vec::new())
            });
            let mut asking = Box::pin(ask(prediction, held, clock::now()));
            let begun = std::future::poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
            match begun {
                Poll::Pending => break (end, gone),
                Poll::Ready(answer) => assert!(answer.is_err() && tries < 1000, "it is not given back"),
            }
            tries += 1;
        };
        tokio::task::yield_now().await;
        assert!(gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        end.send(()).expect("it waits");
        assert!(gone.await.is_err(), "given back once it has ended");
    }

    #[tokio::test]
    async fn what_waits_too_long_is_given_back() {
        let _threads = threads();
        let prediction: Prediction = Box::pin(std::future::pending());
        assert!(ask(prediction, (), clock::now()).await.is_err());
        let prediction: Prediction = Box::pin(async { panic!("as a test wants it") });
        assert!(matches!(ask(prediction, (), clock::now()).await, Ok(Err(PredictError::Internal(_)))));
    }
}
