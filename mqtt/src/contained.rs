//! Futures that may panic.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Polls a future that may panic, since what a broker sends reaches a parser that is not ours.
pub(crate) async fn contained<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(said(panic.as_ref()))),
    })
    .await
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_contained_and_its_words_are_kept() {
        assert_eq!(contained(async { 7 }).await, Ok(7));
        let panicking = contained(async {
            tokio::task::yield_now().await;
            panic!("broken {}", "parser")
        });
        let panicked: Result<(), String> = panicking.await;
        assert_eq!(panicked, Err("broken parser".to_owned()));
    }
}
