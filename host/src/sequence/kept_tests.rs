//! What is kept for a sequence, for how long, and whose turn it is.

use super::*;

/// For what must happen at all; nothing here asserts speed.
fn soon() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn part(id: u64) -> Part {
    Part { id: Id::Number(id), first: false, last: false }
}

fn first(id: u64) -> Part {
    Part { first: true, ..part(id) }
}

fn last(id: u64) -> Part {
    Part { last: true, ..part(id) }
}

fn many(most: usize) -> Sequences {
    Sequences::within(most, Duration::from_secs(3600))
}

/// One request, which finds a number, adds one and keeps it.
async fn count(sequences: &Sequences, part: Part) -> Result<u32, SequenceError> {
    let mut turn = sequences.enter(part, soon()).await?;
    let before = turn.take().map_or(0, |state| *state.downcast::<u32>().unwrap());
    turn.keep(Box::new(before + 1));
    Ok(before)
}

fn unknown(result: Result<u32, SequenceError>) -> Option<Ended> {
    match result {
        Err(SequenceError::Unknown { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_sequence_has_its_own_state_until_it_ends() {
    let sequences = many(2);
    assert_eq!(unknown(count(&sequences, part(1)).await), None);
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    assert_eq!(count(&sequences, first(2)).await, Ok(0));
    assert_eq!(count(&sequences, part(1)).await, Ok(1));
    assert_eq!(count(&sequences, part(1)).await, Ok(2));
    assert_eq!(count(&sequences, last(1)).await, Ok(3));
    assert_eq!(unknown(count(&sequences, part(1)).await), Some(Ended::Last));
    assert_eq!(count(&sequences, part(2)).await, Ok(1));
    assert_eq!((sequences.count(), sequences.begun()), (1, 2));
    // Begun anew in the middle: what it had is gone.
    assert_eq!(count(&sequences, first(2)).await, Ok(0));
    assert_eq!(count(&sequences, part(2)).await, Ok(1));
    // One that begins and ends at once leaves nothing.
    assert_eq!(count(&sequences, Part { first: true, ..last(3) }).await, Ok(0));
    assert_eq!((sequences.count(), sequences.has(&Id::Number(3))), (1, false));
}

#[tokio::test]
async fn one_more_than_may_be_is_turned_away_and_the_others_go_on() {
    let sequences = many(2);
    for id in [1, 2] {
        assert_eq!(count(&sequences, first(id)).await, Ok(0));
    }
    assert_eq!(count(&sequences, first(3)).await, Err(SequenceError::TooMany(2)));
    assert_eq!(count(&sequences, last(1)).await, Ok(1));
    assert_eq!(count(&sequences, first(3)).await, Ok(0));
    assert_eq!(count(&sequences, part(2)).await, Ok(1));
}

#[tokio::test]
async fn a_turn_that_took_nothing_changes_nothing() {
    let sequences = many(1);
    drop(sequences.enter(first(1), soon()).await.unwrap());
    assert_eq!((sequences.count(), sequences.begun()), (0, 0));
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    for request in [part(1), first(1), last(1)] {
        drop(sequences.enter(request, soon()).await.unwrap());
    }
    assert_eq!(count(&sequences, part(1)).await, Ok(1));
}

#[tokio::test]
async fn what_is_taken_and_not_kept_is_the_end() {
    let sequences = many(1);
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    let mut turn = sequences.enter(part(1), soon()).await.unwrap();
    assert!(turn.take().is_some());
    drop(turn);
    assert_eq!(sequences.count(), 0);
    assert_eq!(unknown(count(&sequences, part(1)).await), Some(Ended::Failed));
}

#[tokio::test]
async fn requests_of_a_sequence_run_one_at_a_time_in_their_order() {
    let sequences = many(1);
    let running = sequences.enter(first(1), soon()).await.unwrap();
    let mut order = Vec::new();
    for at in 1..MOST_WAITING {
        let waiting = sequences.enter(Part { first: true, ..last(1) }, soon());
        order.push((at, Box::pin(waiting)));
    }
    // Each takes its place when it is first looked at.
    for (_, waiting) in &mut order {
        assert!(futures_poll(waiting).is_none());
    }
    assert_eq!(sequences.enter(part(1), soon()).await.map(drop), Err(SequenceError::Crowded("1".to_owned())));
    drop(running);
    for at in 0..order.len() {
        let turn = futures_poll(&mut order[at].1).unwrap().unwrap();
        assert!(order[at + 1..].iter_mut().all(|(_, waiting)| futures_poll(waiting).is_none()), "{at}");
        drop(turn);
    }
    assert_eq!(sequences.count(), 0);
}

/// Looks at a future once.
fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn who_waited_for_the_last_request_finds_no_sequence_or_begins_one() {
    let sequences = many(1);
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    let mut ending = sequences.enter(last(1), soon()).await.unwrap();
    let (mut goes_on, mut begins) =
        (Box::pin(count(&sequences, part(1))), Box::pin(count(&sequences, first(1))));
    assert!(futures_poll(&mut goes_on).is_none() && futures_poll(&mut begins).is_none());
    let state = ending.take().unwrap();
    ending.keep(state);
    assert_eq!(unknown(goes_on.await), Some(Ended::Last));
    assert_eq!(begins.await, Ok(0));
    assert_eq!(count(&sequences, part(1)).await, Ok(1));
}

#[tokio::test]
async fn a_turn_is_waited_for_until_the_deadline() {
    let sequences = many(1);
    let running = sequences.enter(first(1), soon()).await.unwrap();
    let late = sequences.enter(part(1), clock::now() + Duration::from_millis(5)).await;
    assert_eq!(late.map(drop), Err(SequenceError::Late("1".to_owned())));
    drop(running);
}

#[tokio::test]
async fn one_without_requests_ends_by_itself_and_a_busy_one_does_not() {
    let sequences = Sequences::within(2, Duration::from_millis(20));
    let mut live = sequences.live();
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    let busy = sequences.enter(first(2), soon()).await.unwrap();
    live.wait_for(|count| *count == 1).await.unwrap();
    assert_eq!(unknown(count(&sequences, part(1)).await), Some(Ended::Idle(Duration::from_millis(20))));
    assert!(sequences.has(&Id::Number(2)));
    drop(busy);
    assert_eq!(sequences.count(), 0);
    // Another task watches the next one.
    assert_eq!(count(&sequences, first(3)).await, Ok(0));
    live.wait_for(|count| *count == 0).await.unwrap();
}

#[test]
fn a_sequence_outlives_the_runtime_that_watched_it() {
    let sequences = Sequences::within(1, Duration::from_millis(1));
    for id in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The one before is over by now, or is waited for here.
        let begun = runtime.block_on(async {
            loop {
                match count(&sequences, first(id)).await {
                    Err(SequenceError::TooMany(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                    other => break other,
                }
            }
        });
        assert_eq!(begun, Ok(0));
    }
}

#[tokio::test]
async fn all_end_at_once_those_that_run_after_their_request() {
    let sequences = many(2);
    for id in [1, 2] {
        assert_eq!(count(&sequences, first(id)).await, Ok(0));
    }
    let mut running = sequences.enter(part(2), soon()).await.unwrap();
    sequences.end_all();
    assert_eq!(sequences.count(), 1);
    let state = running.take().unwrap();
    running.keep(state);
    assert_eq!(sequences.count(), 0);
    for id in [1, 2] {
        assert_eq!(unknown(count(&sequences, part(id)).await), Some(Ended::Gone));
    }
    // None begins until it is wanted again.
    assert_eq!(count(&sequences, first(1)).await, Err(SequenceError::Closed));
    sequences.open_again();
    assert_eq!(count(&sequences, first(1)).await, Ok(0));
    assert_eq!(count(&sequences, part(1)).await, Ok(1));
}

#[tokio::test]
async fn none_that_was_ended_is_left_by_who_gives_a_turn_back_or_waits() {
    let sequences = many(2);
    for id in [1, 2] {
        assert_eq!(count(&sequences, first(id)).await, Ok(0));
    }
    let given_back = sequences.enter(part(1), soon()).await.unwrap();
    let running = sequences.enter(part(2), soon()).await.unwrap();
    let (mut goes_on, mut begins) =
        (Box::pin(count(&sequences, part(2))), Box::pin(count(&sequences, first(2))));
    assert!(futures_poll(&mut goes_on).is_none() && futures_poll(&mut begins).is_none());
    sequences.end_all();
    drop(given_back);
    assert!(!sequences.has(&Id::Number(1)));
    assert_eq!(unknown(count(&sequences, part(1)).await), Some(Ended::Gone));
    drop(running);
    assert_eq!(unknown(goes_on.await), Some(Ended::Gone));
    assert_eq!(begins.await, Err(SequenceError::Closed));
    assert_eq!(sequences.count(), 0);
}

#[tokio::test]
async fn one_that_began_anew_elsewhere_ends_here_and_may_begin_again() {
    let sequences = many(2);
    for id in [1, 2] {
        assert_eq!(count(&sequences, first(id)).await, Ok(0));
    }
    sequences.end(&Id::Number(1));
    assert_eq!(unknown(count(&sequences, part(1)).await), Some(Ended::Anew));
    let running = sequences.enter(part(2), soon()).await.unwrap();
    sequences.end(&Id::Number(2));
    // Begins after the one that runs, and is not ended with what was there before.
    let mut begins = Box::pin(count(&sequences, first(2)));
    assert!(futures_poll(&mut begins).is_none());
    drop(running);
    assert_eq!(begins.await, Ok(0));
    assert_eq!(count(&sequences, part(2)).await, Ok(1));
}

#[tokio::test]
async fn ends_are_remembered_but_not_for_ever() {
    let sequences = many(1);
    for id in 1..=(REMEMBERED as u64 + 1) {
        assert_eq!(count(&sequences, Part { first: true, ..last(id) }).await, Ok(0));
    }
    assert_eq!(unknown(count(&sequences, part(1)).await), None);
    assert_eq!(unknown(count(&sequences, part(2)).await), Some(Ended::Last));
}

#[test]
fn an_error_says_what_to_do() {
    let check = |error: SequenceError, says: &str| assert!(error.to_string().contains(says), "{error}");
    let id = || "a".to_owned();
    check(SequenceError::Unknown { id: id(), why: None }, "`a`: no request began it here; begin it with");
    let idle = Some(Ended::Idle(Duration::from_secs(60)));
    check(SequenceError::Unknown { id: id(), why: idle }, "it ended after 60 s without a request");
    check(SequenceError::TooMany(16), "keeps 16 sequences at once");
    check(SequenceError::Crowded(id()), "16 requests of sequence `a`");
}
